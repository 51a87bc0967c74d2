"""Messages that were right once: what a client may send, with something changed somewhere."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
VAD = {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 300, "idle_timeout_ms": None}
TEXT_ITEM = {
    "type": "message",
    "id": "my_id",
    "role": "user",
    "content": [{"type": "input_text", "text": "hi"}],
}
AUDIO_ITEM = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_audio", "audio": "AAAA" * 600, "transcript": "hi"}],
}
ANSWER_ITEM = {
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_audio", "transcript": "yes"}],
}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "1"}
SHARED = [
    {"type": "input_audio_buffer.append", "event_id": "e1", "audio": "AAAA" * 600},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    *(
        {"type": "conversation.item.create", "item": item, "previous_item_id": "root"}
        for item in (TEXT_ITEM, AUDIO_ITEM, ANSWER_ITEM, CALL, RESULT)
    ),
    {"type": "conversation.item.retrieve", "item_id": "my_id"},
    {
        "type": "conversation.item.truncate",
        "item_id": "my_id",
        "content_index": 0,
        "audio_end_ms": 10,
    },
    {"type": "conversation.item.delete", "item_id": "my_id"},
    {"type": "response.create"},
    {
        "type": "response.create",
        "response": {
            "conversation": "none",
            "input": [TEXT_ITEM, {"type": "item_reference", "id": "my_id"}],
            "metadata": {"a": "b"},
            "max_output_tokens": 5,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "f"},
        },
    },
    {"type": "response.cancel"},
    {"type": "response.cancel", "response_id": "resp_1"},
]
OPENAI = [
    *SHARED,
    {"type": "output_audio_buffer.clear"},
    {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "model": "gpt-realtime",
            "instructions": "be kind",
            "output_modalities": ["audio"],
            "max_output_tokens": "inf",
            "tools": [TOOL],
            "tool_choice": "auto",
            "tracing": {"workflow_name": "w"},
            "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
            "include": [],
            "reasoning": {"effort": "low"},
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "whisper-1", "language": "en"},
                    "noise_reduction": {"type": "near_field"},
                    "turn_detection": VAD,
                },
                "output": {"format": {"type": "audio/pcmu"}, "voice": "ash", "speed": 1.1},
            },
        },
    },
    {
        "type": "session.update",
        "session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}},
    },
]
PARLEY = [
    *SHARED,
    {"type": "output_audio.playout", "response_id": "resp_1", "heard_ms": 5},
    {
        "type": "session.update",
        "session": {
            "model": "scripted",
            "instructions": "be kind",
            "output_modalities": ["audio"],
            "tools": [TOOL],
            "options": {"speed": 1.1, "seed": 5},
            "language": "en",
            "audio": {
                "input": {
                    "format": {"type": "audio/opus"},
                    "transcription": {"language": "en"},
                    "turn_detection": VAD,
                },
                "output": {"format": {"type": "audio/pcma"}, "voice": "bob"},
            },
        },
    },
]
SPEECH = [
    {
        "type": "session.update",
        "event_id": "e1",
        "session": {
            "model": "toy-tone",
            "voice": "low",
            "language": "en",
            "options": {"speed": 1.5, "seed": 5, "max_seconds": 2.0},
            "output": {
                "codec": "opus",
                "bitrate_bps": 24000,
                "complexity": 2,
                "sample_rate_hz": 24000,
                "pace": "playback",
            },
        },
    },
    {"type": "session.update", "session": {"output": {"codec": "pcm16", "pace": "fast"}}},
    {"type": "response.create", "response": {"voice": "high", "metadata": {"a": "b"}}},
    {"type": "response.create"},
    {"type": "input_text.append", "text": "Hello there, you. "},
    {"type": "input_text.append", "text": "And"},
    {"type": "input_text.flush"},
    {"type": "input_text.end"},
    {"type": "response.cancel"},
    {"type": "response.cancel", "response_id": "resp_1"},
    {"type": "output_audio.playout", "response_id": "resp_1", "heard_ms": 20},
]
"""One of every message, by lane, with as many of its fields as there are."""

LEAVES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, 10**30, "", "x", "root", "inf", "\x00", "\ud800", "🙂"),
    *("a" * 200, [], {}, [None], {"type": "message"}, {"id": "ash"}, [[[[]]]], "my_id", "audio"),
]


def garbled(message: Any, chance: random.Random) -> Any:
    """A copy with one thing changed: a value, a name, or something left out or said twice."""
    message = copy.deepcopy(message)
    places = list(_places(message))
    holder, key = chance.choice(places)
    match chance.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[chance.choice(["x", "", "type", "audio", "\ud800"])] = holder.pop(key)
        case 1:
            holder.append(holder[key])
        case 2:
            other, other_key = chance.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        case _:
            holder[key] = copy.deepcopy(chance.choice(LEAVES))
    return message


def messages(lane: list[Any], n_messages: int, seed: int) -> Any:
    """JSON texts, half of them garbled once, the others more often or not at all."""
    chance = random.Random(seed)
    for _ in range(n_messages):
        message = chance.choice(lane)
        for _ in range(chance.choice([0, 1, 1, 1, 2, 5])):
            if message:
                message = garbled(message, chance)
        yield json.dumps(message)


def _places(value: Any) -> Any:
    """(holder, key) of everything inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield value, key
        if isinstance(one, dict | list):
            yield from _places(one)
