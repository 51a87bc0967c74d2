"""A wrong type at every field of `session.update`, on every lane that has one.

The fields are read from the lanes' own types, so that a new one is here by itself.
"""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from realtime.conversation.protocol import ConversationPatch
from realtime.events import SessionPatch
from realtime.lanes.openai.client_events import Session
from tests.realtime.harness import gateway, run
from tests.realtime.lanes.ga_client import ga_client
from tests.realtime.talk_harness import talk

WRONG: tuple[Any, ...] = ({"wrong": 1}, [[]])
"""No field takes either, but for objects that are the client's own."""
NEEDED = {"name": "x", "id": "x", "retention_ratio": 0.5}


def parts_of(annotation: Any) -> Iterator[Any]:
    """A type, and all that it is made of."""
    yield get_origin(annotation) or annotation
    for inner in get_args(annotation):
        yield from parts_of(inner)


def needed(model: type[BaseModel]) -> dict[str, Any]:
    """What an object of this type cannot be without."""
    return {
        name: NEEDED[name] if name in NEEDED else get_args(field.annotation)[0]
        for name, field in model.model_fields.items()
        if field.is_required()
    }


def with_a_wrong_field(model: type[BaseModel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, object that is wrong there) for every field of a type and of those within."""
    for name, field in model.model_fields.items():
        parts = list(parts_of(field.annotation))
        for wrong in WRONG:
            if dict not in parts or not isinstance(wrong, dict):
                yield name, needed(model) | {name: wrong}
        for part in parts:
            if isinstance(part, type) and issubclass(part, BaseModel):
                for path, value in with_a_wrong_field(part):
                    is_list = list in parts
                    inner = [value] if is_list else value
                    yield f"{name}.{'0.' * is_list}{path}", needed(model) | {name: inner}


def test_every_field_is_there():
    paths = {path for path, _ in with_a_wrong_field(Session)}
    assert paths >= {
        "instructions",
        "tools.0.parameters",
        "truncation.token_limits.post_instructions",
        "audio.input.transcription.keywords",
        "audio.input.turn_detection.eagerness",
        "audio.output.voice.id",
    }
    assert "audio.input.turn_detection.idle_timeout_ms" in dict(
        with_a_wrong_field(ConversationPatch)
    )
    assert "output.pace" in dict(with_a_wrong_field(SessionPatch))


def check_named(error: dict[str, Any], path: str) -> None:
    """The error is about the field, or about the choice that it is a part of."""
    assert error["code"] in ("invalid_value", "unknown_field", "missing_field"), (path, error)
    wanted, said = f"session.{path}".split("."), error["param"].split(".")
    n_common = min(len(wanted), len(said))
    assert wanted[:n_common] == said[:n_common], (path, error)
    assert len(said) >= 2, (path, error)


async def refuse_all(client: Any, model: type[BaseModel], next_error: Any) -> None:
    for number, (path, session) in enumerate(with_a_wrong_field(model)):
        good = {} if path.startswith(("instructions", "language")) else GOOD[model]
        message = {"type": "session.update", "event_id": f"e{number}", "session": good | session}
        await client.socket.send(json.dumps(message))
        error = await next_error()
        assert error["event_id"] == f"e{number}"
        check_named(error, path)


GOOD: dict[type[BaseModel], dict[str, Any]] = {
    Session: {"instructions": "Never this."},
    ConversationPatch: {"instructions": "Never this."},
    SessionPatch: {"language": "de"},
}
"""What would have been changed beside it."""


def test_openai_clients():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            before = client.session
            await refuse_all(client, Session, client.error)
            assert await client.update() == before
            await client.write("Still there?")
            assert (await client.answer())["status"] == "completed"

    run(scenario)


def test_conversations_of_parley_clients():
    async def scenario():
        async with talk() as here, here.client() as client:
            before = client.session
            await refuse_all(client, ConversationPatch, client.until_error)
            assert await client.update() == before
            await client.write("Still there?")
            await client.send("response.create")
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_the_speech_lane():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await refuse_all(client, SessionPatch, client.error)
            await client.send("session.update", session={})
            assert (await client.event("session.updated"))["session"] == client.session
            assert (await client.say("Still there.")).status == "completed"

    run(scenario)


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, 2**63, -1])
def test_no_number_is_too_large_to_be_refused(value):
    """An integer that no float holds ended the session."""
    fields = {"item_id": "x", "content_index": 0, "audio_end_ms": 0}

    async def scenario():
        async with talk() as here, ga_client(here) as openai, here.client() as parley:
            for name in ("content_index", "audio_end_ms"):
                for client, error in ((openai, openai.error), (parley, parley.until_error)):
                    await client.send("conversation.item.truncate", **fields | {name: value})
                    assert (await error())["param"] in (name, "item_id")
            await parley.send("output_audio.playout", response_id="x", heard_ms=value)
            assert (await parley.until_error())["param"] in ("heard_ms", "response_id")
            await openai.settle()
            await parley.settle()

    run(scenario)
