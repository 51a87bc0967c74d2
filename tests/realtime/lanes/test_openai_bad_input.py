"""The lane of OpenAI Realtime clients: what is wrong gets its documented error, and no more."""

import base64
from contextlib import suppress

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from realtime.audio.coder import pcm16_bytes
from tests.cases import text_cases, wire_cases
from tests.realtime.harness import run, until
from tests.realtime.lanes.ga_client import closed, ga_client
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

CASES = wire_cases()
TEXTS = text_cases()
DEEP = "[" * 100_000 + "]" * 100_000
TRUNCATE = '{"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, '
PUSH_TO_TALK = {"input": {"turn_detection": None}}


async def still_serves(client):
    """The session goes on as if nothing had been."""
    await client.write("Still there?")
    assert (await client.answer())["status"] == "completed"


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        (CASES["not JSON"]["send"], "invalid_event", None),
        (CASES["JSON array"]["send"], "invalid_event", None),
        (CASES["no type"]["send"], "invalid_event", "type"),
        (CASES["unknown type"]["send"], "invalid_event", "type"),
        (DEEP, "invalid_event", None),
        ("", "invalid_event", None),
        ("\x00", "invalid_event", None),
        (b"\x01\x02\x03", "invalid_event", None),
        (b"", "invalid_event", None),
        ('{"type": "response.audio.delta"}', "invalid_event", "type"),
        ('{"type": "output_audio_buffer.clear"}', "unsupported_event", "type"),
        ('{"type": "output_audio.playout", "response_id": "x"}', "invalid_event", "type"),
        ('{"type": "input_audio_buffer.append"}', "missing_field", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "%%%"}', "invalid_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "AAA"}', "invalid_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": 5}', "invalid_value", "audio"),
        ('{"type": "input_audio_buffer.commit", "now": 1}', "unknown_field", "now"),
        ('{"type": "input_audio_buffer.commit", "event_id": 7}', "invalid_value", "event_id"),
        ('{"type": "session.update"}', "missing_field", "session"),
        ('{"type": "session.update", "session": null}', "invalid_value", "session"),
        ('{"type": "conversation.item.create"}', "missing_field", "item"),
        ('{"type": "conversation.item.truncate", "item_id": "x"}', "missing_field", None),
        (TRUNCATE + '"audio_end_ms": 1' + "0" * 400 + "}", "invalid_value", "audio_end_ms"),
        (TRUNCATE + '"audio_end_ms": 1e999}', "invalid_value", "audio_end_ms"),
        (TRUNCATE + '"audio_end_ms": NaN}', "invalid_event", None),
        ('{"type": "response.create", "response": []}', "invalid_value", "response"),
    ],
)
def test_a_bad_message_is_refused_and_the_socket_stays_open(message, code, param):
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.socket.send(message)
            error = await client.error()
            assert (error["type"], error["code"]) == ("invalid_request_error", code)
            assert param is None or error["param"] == param
            await still_serves(client)

    run(scenario)


BAD_SETTINGS = {
    "type": ["transcription", 1, None],
    "model": [5, ""],
    "instructions": [5, ["be kind"], "x" * 20_001, "\ud800"],
    "output_modalities": [["audio", "text"], [], ["video"], "audio"],
    "max_output_tokens": [0, 4097, "many", 1.5, True],
    "tools": [{}, [5], [{"type": "function"}], [{"type": "web_search"}]],
    "tools.0": [[{"type": "function", "name": "a b"}], [{"type": "mcp", "server_label": "x"}]],
    "tool_choice": ["maybe", 5, {"type": "function"}, {"type": "mcp", "server_label": "x"}],
    "tool_choice.name": [{"type": "function", "name": "nowhere"}],
    "tracing": ["on", 5, []],
    "tracing.workflow": ["x"],
    "tracing.workflow_name": [5, "\ud800"],
    "truncation": ["never", {}, {"type": "retention_ratio"}],
    "include": [["everything"], "item.input_audio_transcription.logprobs"],
    "prompt": [{"id": "pmpt_1"}],
    "reasoning": [{"effort": "huge"}, "high"],
    "parallel_tool_calls": ["yes"],
    "modalities": [["audio"]],
    "voice": ["ash"],
    "input_audio_format": ["pcm16"],
    "audio": ["loud", []],
    "audio.input": [5],
    "audio.input.format": [
        "pcm16",
        {"type": "audio/opus"},
        {"type": "audio/pcm", "rate": 16000},
        {"type": "audio/pcmu", "rate": 8000},
        {"rate": 24000},
    ],
    "audio.input.transcription": ["whisper-1", {"modell": "whisper-1"}, {"language": 5}],
    "audio.input.noise_reduction": ["near_field", {"type": "quiet"}],
    "audio.input.turn_detection": [
        "server_vad",
        {"type": "none"},
        {"type": "server_vad", "threshold": 1.5},
        {"type": "server_vad", "silence_duration_ms": "500"},
        {"type": "server_vad", "eagerness": "low"},
        {"type": "semantic_vad", "eagerness": "eager"},
        {"type": "semantic_vad", "threshold": 0.5},
        {"type": "server_vad", "create_response": 1},
    ],
    "audio.output.format": [{"type": "audio/mp3"}, {"type": "audio/pcm", "rate": 48000}],
    "audio.output.voice": [17, "nobody", {"name": "ash"}, ""],
    "audio.output.speed": [0.2, 1.6, "fast"],
}


def nested(path, value):
    """`value` at a dotted path; numbers are places in lists that `value` gives itself."""
    names = [name for name in path.split(".") if not name.isdigit()]
    if names[-1] == "name":
        names.pop()
    for name in reversed(names):
        value = {name: value}
    return value


def test_every_bad_setting_is_refused_by_its_name_and_changes_nothing():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            before = client.session
            for path, values in BAD_SETTINGS.items():
                for value in values:
                    session = {"type": "realtime", **nested(path, value)}
                    error = await client.refused("session.update", session=session)
                    assert error["param"].startswith(f"session.{path}"), (path, value, error)
                    steps = error["param"].split(".")
                    assert all(step.isidentifier() or step.isdigit() for step in steps), error
                    assert error["code"] != "invalid_event"
            assert await client.update() == before
            await still_serves(client)

    run(scenario)


BAD_ITEMS = [
    ({"type": "message", "role": "user"}, "item.content", "missing_field"),
    ({"type": "message", "role": "user", "content": []}, "item.content", "missing_field"),
    (
        {"type": "message", "role": "user", "content": [{"type": "text", "text": "x"}]},
        "item.content.0.type",
        "invalid_value",
    ),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "%"}]},
        "item.content.0.audio",
        "invalid_audio",
    ),
    (
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}],
        },
        "item.content.0.type",
        "unsupported_content_type",
    ),
    ({"type": "function_call", "call_id": "c", "name": "f"}, "item.arguments", "missing_field"),
    ({"type": "function_call_output", "output": "x"}, "item.call_id", "missing_field"),
    ({"type": "mcp_approval_response"}, "item.type", "invalid_value"),
    ({"type": "message", "role": "robot"}, "item.role", "invalid_value"),
    ({"type": "message", "colour": "red"}, "item.colour", "unknown_field"),
    ({"type": "message", "id": ""}, "item.id", "invalid_value"),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a\x00b"}]},
        "item.content.0",
        "invalid_text",
    ),
]


def test_every_bad_item_is_refused_by_its_field():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.write("mine", id="taken")
            for item, param, code in BAD_ITEMS:
                error = await client.refused("conversation.item.create", item=item)
                assert (error["param"], error["code"]) == (param, code), item
            content = [{"type": "input_text", "text": "x"}]
            item = {"type": "message", "role": "user", "content": content}
            error = await client.refused("conversation.item.create", item=item | {"id": "taken"})
            assert error["param"] == "item.id"
            error = await client.refused(
                "conversation.item.create", item=item, previous_item_id="gone"
            )
            assert error["param"] == "previous_item_id"
            await still_serves(client)
            assert len(client.events("conversation.item.added")) == 3

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("delete", "item_delete_invalid_item_id"),
        ("retrieve", "item_retrieve_invalid_item_id"),
        ("truncate", "item_truncate_invalid_item_id"),
    ],
)
def test_an_item_that_is_not_there(kind, code):
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            fields = {"content_index": 0, "audio_end_ms": 5} if kind == "truncate" else {}
            error = await client.refused(f"conversation.item.{kind}", item_id="gone", **fields)
            assert (error["code"], error["param"]) == (code, "item_id")

    run(scenario)


def test_a_second_response_and_a_cancel_of_none():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            for fields in ({}, {"response_id": "resp_none"}):
                error = await client.refused("response.cancel", **fields)
                assert error["code"] == "response_cancel_not_active"
                assert error["message"].startswith("Cancellation failed")
            await client.send("response.create")
            error = await client.refused("response.create")
            assert error["code"] == "conversation_already_has_active_response"
            await until(lambda: agent.replies)
            agent.replies[0].end()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_bad_base64_leaves_the_buffer_as_it_was():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.update(audio=PUSH_TO_TALK)
            payload = pcm16_bytes(np.full(4800, LOUD, np.float32))
            await client.append(payload[:5001])
            error = await client.refused("input_audio_buffer.append", audio="AAAA=AAA")
            assert error["code"] == "invalid_audio"
            await client.append(payload[5001:])
            await client.send("input_audio_buffer.commit")
            await client.until("input_audio_buffer.committed")
            await until(lambda: here.agent.transcriptions)
            assert len(here.agent.transcriptions[0].pcm) == 3200

    run(scenario)


def test_a_commit_of_too_little():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.update(audio=PUSH_TO_TALK)
            for ms in (0, 50):
                await client.speak((LOUD, ms))
                error = await client.refused("input_audio_buffer.commit")
                assert error["code"] == "input_audio_buffer_commit_empty"
            await client.speak((LOUD, 50))
            await client.send("input_audio_buffer.commit")
            await client.until("input_audio_buffer.committed")

    run(scenario)


def test_a_message_of_16_mib_closes_by_size_and_others_go_on():
    async def scenario():
        async with talk() as here, ga_client(here) as other, ga_client(here) as client:
            audio = base64.b64encode(bytes(12 * 2**20)).decode()
            with suppress(ConnectionClosed):
                await client.send("input_audio_buffer.append", audio=audio)
            code, reason = await closed(client)
            assert code == 1009
            assert "8388608" in reason
            await still_serves(other)

    run(scenario)


@pytest.mark.parametrize("case", list(TEXTS))
def test_text_of_every_kind_is_taken_or_refused_in_words(case):
    text = TEXTS[case]["input"]
    text = text if isinstance(text, str) else "".join(text)

    async def scenario():
        async with talk() as here, ga_client(here) as client:
            content = [{"type": "input_text", "text": text}]
            item = {"type": "message", "role": "user", "content": content}
            event_id = await client.send("conversation.item.create", item=item)
            while (event := await client.next())["type"] not in ("conversation.item.done", "error"):
                pass
            if event["type"] == "error":
                assert event["error"]["event_id"] == event_id
                assert event["error"]["code"] in ("text_too_long", "invalid_text")
            else:
                assert event["item"]["content"] == content
            await still_serves(client)

    run(scenario)


@pytest.mark.parametrize("case", ["empty", "spaces"])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_user_who_writes_nothing_is_answered_by_nothing(case, is_given):
    content = [{"type": "input_text", "text": TEXTS[case]["input"]}]
    item = {"type": "message", "role": "user", "content": content}

    async def scenario():
        async with talk() as here, ga_client(here) as client:
            if is_given:
                response = await client.answer(input=[item])
            else:
                await client.send("conversation.item.create", item=item)
                response = await client.answer()
            assert (response["status"], response["output"]) == ("completed", [])
            assert not client.audio
            assert not here.agent.replies
            await still_serves(client)

    run(scenario)


def test_an_agent_may_be_asked_for_the_first_word():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            for asked in ({}, {"instructions": "Greet the user."}, {"input": []}):
                assert (await client.answer(**asked))["status"] == "completed"
            assert here.agent.replies[1].request.instructions == "Greet the user."

    run(scenario)
