"""A client of the OpenAI Realtime API that takes nothing but what the published types know."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import numpy as np
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import BaseModel
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from realtime.audio.coder import pcm16_bytes
from realtime.protocol import REALTIME_PATH
from tests.realtime.talk_harness import LOUD, Talk

SERVER_EVENTS: dict[str, type[BaseModel]] = {
    get_args(event.model_fields["type"].annotation)[0]: event
    for event in get_args(get_args(RealtimeServerEvent)[0])
}
SESSION_EXTRAS = {"id", "object", "expires_at"}
"""Of a session: in the published description, but not in the package's type of these events."""
MAX_DELTA_MS = 200


def checked(message: str) -> dict[str, Any]:
    """The event in a message, if a strict client could read all of it."""
    event = json.loads(message)
    assert event["type"] in SERVER_EVENTS, event["type"]
    model = SERVER_EVENTS[event["type"]].model_validate_json(message, strict=True)
    assert event["event_id"]
    extras = dict(_extras(model, event["type"]))
    session = f"{event['type']}.session"
    assert extras.pop(session, SESSION_EXTRAS) == SESSION_EXTRAS
    assert not extras, extras
    return event


def _extras(value: Any, path: str) -> Any:
    """(path, names) of all objects that hold a field that their type does not have."""
    if isinstance(value, BaseModel):
        if value.model_extra:
            yield path, set(value.model_extra)
        for name in type(value).model_fields:
            # Free objects: a tool's schema, the client's own strings.
            if name not in ("parameters", "metadata"):
                yield from _extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from _extras(one, path)


class GaClient:
    """One socket. `log` holds every event in order; `audio` the bytes of each response."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.log: list[dict[str, Any]] = []
        self.audio: dict[str, bytearray] = {}
        self._numbers = itertools.count(1)
        self.session: dict[str, Any] = {}

    async def send(self, kind: str, **fields: Any) -> str:
        """Send an event; returns its id."""
        event_id = fields.setdefault("event_id", f"client_{next(self._numbers)}")
        await self.socket.send(json.dumps({"type": kind, **fields}))
        return event_id

    async def next(self) -> dict[str, Any]:
        """The next event."""
        message = await self.socket.recv()
        assert isinstance(message, str), "these clients know no binary messages"
        event = checked(message)
        self.log.append(event)
        if event["type"] == "response.output_audio.delta":
            heard = self.audio.setdefault(event["response_id"], bytearray())
            heard += base64.b64decode(event["delta"], validate=True)
        return event

    async def until(self, kind: str, *, may_fail: bool = False) -> dict[str, Any]:
        """Read up to an event of this type."""
        while True:
            event = await self.next()
            if event["type"] == kind:
                return event
            assert may_fail or event["type"] != "error", event

    async def error(self) -> dict[str, Any]:
        """Read up to an error."""
        return (await self.until("error"))["error"]

    async def refused(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send what must be refused; the error names the event."""
        event_id = await self.send(kind, **fields)
        error = await self.error()
        assert error["event_id"] == event_id
        assert error["type"] == "invalid_request_error"
        return error

    async def update(self, **session: Any) -> dict[str, Any]:
        """Change the session."""
        await self.send("session.update", session={"type": "realtime", **session})
        self.session = (await self.until("session.updated"))["session"]
        return self.session

    async def write(self, text: str, previous_item_id: str | None = None, **item: Any) -> Any:
        """Put a written message into the conversation; returns the item."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content, **item}
        more = {} if previous_item_id is None else {"previous_item_id": previous_item_id}
        await self.send("conversation.item.create", item=item, **more)
        return (await self.until("conversation.item.done"))["item"]

    async def done(self) -> dict[str, Any]:
        """Read up to the end of a response."""
        return (await self.until("response.done"))["response"]

    async def answer(self, **response: Any) -> dict[str, Any]:
        """Ask for a response, and read to its end."""
        await self.send("response.create", **({"response": response} if response else {}))
        return await self.done()

    async def append(self, payload: bytes) -> None:
        """Send audio, coded already."""
        audio = base64.b64encode(payload).decode()
        await self.send("input_audio_buffer.append", audio=audio)

    async def speak(self, *parts: tuple[float, float]) -> None:
        """Send parts of (loudness, ms) as PCM16 at 24 kHz, 100 ms at a time."""
        samples = np.concatenate([np.full(round(24 * ms), level) for level, ms in parts])
        for start in range(0, len(samples), 2400):
            await self.append(pcm16_bytes(samples[start : start + 2400].astype(np.float32)))

    async def turn(self) -> None:
        """A whole turn: speech, then silence enough."""
        await self.speak((LOUD, 640), (0.0, 640))

    async def settle(self) -> None:
        """Wait until the server has looked at everything sent so far."""
        event_id = await self.send("conversation.item.retrieve", item_id="nobody")
        while (await self.until("error"))["error"]["event_id"] != event_id:
            pass

    def types(self, *leave_out: str) -> list[str]:
        """Types of the events so far; runs of one type once, those named and transcripts not."""
        types = [event["type"] for event in self.log if event["type"] not in leave_out]
        types = [one for one in types if "input_audio_transcription" not in one]
        return [kind for kind, _ in itertools.groupby(types)]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """All events of a type."""
        return [event for event in self.log if event["type"] == kind]


async def closed(client: GaClient) -> tuple[int, str]:
    """How the server closes the socket, whatever comes before."""

    async def read_on() -> None:
        while True:
            await client.next()

    with pytest.raises(ConnectionClosed) as caught:
        await read_on()
    assert caught.value.rcvd is not None, "the connection broke without a close"
    return caught.value.rcvd.code, caught.value.rcvd.reason


@asynccontextmanager
async def ga_client(here: Talk, query: str = "", **options: Any) -> AsyncIterator[GaClient]:
    """A conversation that has begun."""
    url = f"ws://127.0.0.1:{here.port}{REALTIME_PATH}{query}"
    async with connect(url, compression=None, proxy=None, **options) as socket:
        client = GaClient(socket)
        client.session = (await client.until("session.created"))["session"]
        client.log.clear()
        yield client
