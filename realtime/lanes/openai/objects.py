"""Sessions, responses and items as OpenAI Realtime clients know them. Pure.

Nothing is here that the published API does not have: a strict client drops what it does not know.
"""

from __future__ import annotations

from typing import Any, Final

from realtime.conversation.events import AnswerInfo, AnswerUsage
from realtime.conversation.protocol import (
    AudioFormat,
    ConversationInfo,
    ItemWire,
    Kept,
    PartWire,
    SpokenInfo,
)
from realtime.events import StatusDetails

Json = dict[str, Any]

REASONS: Final = ("turn_detected", "client_cancelled", "max_output_tokens", "content_filter")
OPTIONAL: Final = ("reasoning", "parallel_tool_calls")
"""Fields of a session that are shown only to clients that have set them."""


def session_object(info: ConversationInfo) -> Json:
    """A session."""
    kept = info.kept
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": info.id,
        "model": info.model,
        "instructions": info.instructions,
        "output_modalities": info.output_modalities,
        "max_output_tokens": info.max_output_tokens,
        "tools": [tool.model_dump() for tool in info.tools],
        "tool_choice": info.model_dump(include={"tool_choice"})["tool_choice"],
        "tracing": kept.get("tracing"),
        "truncation": kept.get("truncation") or "auto",
        "prompt": None,
        "include": kept.get("include"),
        "expires_at": info.expires_at,
        "audio": {"input": _input(info), "output": _output(info)},
        **{name: kept[name] for name in OPTIONAL if kept.get(name) is not None},
    }


def response_object(info: AnswerInfo) -> Json:
    """A response."""
    spoken = info.audio
    return {
        "object": "realtime.response",
        "id": info.id,
        "status": info.status,
        "status_details": _status_details(info.status_details),
        "output": [item_object(item) for item in info.output],
        "conversation_id": info.conversation_id,
        "output_modalities": info.output_modalities,
        "max_output_tokens": info.max_output_tokens,
        "audio": None if spoken is None else {"output": _spoken_once(spoken.output, info.kept)},
        "usage": None if info.usage is None else usage_object(info.usage),
        "metadata": info.metadata,
    }


def item_object(item: ItemWire) -> Json:
    """An item; a message that is still being made is shown without its content."""
    known: Json = {"id": item.id, "object": "realtime.item", "type": item.type}
    known["status"] = item.status
    if item.type == "function_call":
        return known | {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    if item.type == "function_call_output":
        return known | {"call_id": item.call_id, "output": item.output}
    parts = [] if item.status == "in_progress" else item.content or []
    return known | {"role": item.role, "content": [part_object(part) for part in parts]}


def part_object(part: PartWire) -> Json:
    """A content part."""
    if part.type.endswith("audio"):
        return {"type": part.type, "transcript": part.transcript}
    return {"type": part.type, "text": part.text or ""}


def usage_object(usage: AnswerUsage) -> Json:
    """What a response took: tokens of the text model, frames of the model that speaks."""
    n_output = usage.output_tokens + usage.n_frames
    return {
        "total_tokens": usage.input_tokens + n_output,
        "input_tokens": usage.input_tokens,
        "output_tokens": n_output,
        "input_token_details": {
            "text_tokens": usage.input_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {
            "text_tokens": usage.output_tokens,
            "audio_tokens": usage.n_frames,
        },
    }


def _input(info: ConversationInfo) -> Json:
    heard, kept = info.audio.input, info.kept
    detection = heard.turn_detection
    return {
        "format": _format(heard.format),
        "transcription": None if heard.transcription is None else kept.get("transcription"),
        "noise_reduction": kept.get("noise_reduction"),
        "turn_detection": None if detection is None else detection.model_dump(),
    }


def _output(info: ConversationInfo) -> Json:
    speed = info.kept.get("speed")
    return _spoken(info.audio.output, info.kept) | {"speed": 1.0 if speed is None else speed}


def _spoken(spoken: SpokenInfo, kept: Kept) -> Json:
    # The client's own name of the voice, where it has one.
    return {"format": _format(spoken.format), "voice": kept.get("voice") or spoken.voice}


def _spoken_once(spoken: SpokenInfo, kept: Kept) -> Json:
    """The same for a response, where a voice is a name in any case."""
    known = _spoken(spoken, kept)
    voice = known["voice"]
    return known | {"voice": voice["id"] if isinstance(voice, dict) else voice}


def _format(form: AudioFormat) -> Json:
    if form.type == "audio/pcm":
        return {"type": form.type, "rate": form.rate}
    return {"type": form.type}


def _status_details(details: StatusDetails | None) -> Json | None:
    if details is None:
        return None
    known: Json = {"type": details.type}
    if details.type == "incomplete":
        # The API has no reason of its own for a response that has become too long to be spoken.
        known["reason"] = "max_output_tokens"
    elif details.reason in REASONS:
        known["reason"] = details.reason
    if details.error is not None:
        known["error"] = details.error.model_dump(include={"type", "code", "message"})
    return known
