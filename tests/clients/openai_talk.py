"""A conversation through the `openai` package; every event is held against the package's types."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import (
    RealtimeErrorEvent,
    RealtimeServerEvent,
    ResponseAudioDeltaEvent,
    ResponseDoneEvent,
)
from pydantic import BaseModel, TypeAdapter

from tests.clients.keys import KEY
from tests.clients.microphone import open_microphone
from tests.clients.voice import RATE_HZ, say

TIMEOUT_S = 90.0
"""Of one wait: an answer takes seconds, and the machine may be busy."""
EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
SESSION_EVENTS = ("session.created", "session.updated")
"""The package types a session as clients send it: without the id and the time the API tells."""


class OpenAiTalk:
    """Sends what a user does and waits for what that leads to.

    Args:
        connection: of the package.
    """

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []
        self.may_err = False

    async def until(self, kind: str, *, timeout_s: float = TIMEOUT_S) -> Any:
        """The next event of a type."""
        async with asyncio.timeout(timeout_s):
            while (event := await self._next()).type != kind:
                pass
        return event

    async def configure(self, **fields: Any) -> Any:
        """Change the session; what it is then."""
        await self.connection.session.update(session={"type": "realtime", **fields})
        return (await self.until("session.updated")).session

    async def push_to_talk(self) -> None:
        """The user says when a turn is over."""
        asked = {"turn_detection": None, "transcription": {"model": "whisper-1"}}
        await self.configure(audio={"input": asked})

    async def write(self, text: str) -> None:
        """Type something."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.connection.conversation.item.create(item=item)

    async def append(self, sound: bytes) -> None:
        """Let some sound be heard."""
        await self.connection.input_audio_buffer.append(audio=base64.b64encode(sound).decode())

    async def say(self, text: str) -> None:
        """Say something, all at once, and release the button."""
        await self.append(say(text))
        await self.connection.input_audio_buffer.commit()

    async def answer(self) -> ResponseDoneEvent:
        """Ask for an answer and wait for its end."""
        await self.connection.response.create()
        return await self.until("response.done")

    async def answers(self, n_answers: int) -> list[ResponseDoneEvent]:
        """Wait until so many answers are over."""
        while len(done := list(self.of(ResponseDoneEvent))) < n_answers:
            await self.until("response.done")
        return done

    def microphone(self) -> Any:
        """An open microphone."""
        return open_microphone(self.append)

    def of(self, kind: type[Any]) -> Iterator[Any]:
        """The events of a type so far."""
        return (event for event in self.events if isinstance(event, kind))

    def audio(self, response_id: str) -> bytes:
        """What was spoken in a response: PCM16."""
        deltas = self.of(ResponseAudioDeltaEvent)
        return b"".join(
            base64.b64decode(one.delta) for one in deltas if one.response_id == response_id
        )

    async def _next(self) -> Any:
        event = EVENT.validate_json(await self.connection.recv_bytes())
        if event.type not in SESSION_EVENTS:
            assert not list(unknown_fields(event)), event
        if isinstance(event, RealtimeErrorEvent):
            assert self.may_err, event
        self.events.append(event)
        return event


def seconds(sound: bytes) -> float:
    """How long PCM16 of 24 kHz lasts."""
    return len(sound) / 2 / RATE_HZ


def words(response: Any) -> str:
    """What was said in a response, as it was written."""
    parts = [part for item in response.output for part in item.content]
    return " ".join(part.transcript or part.text for part in parts)


def unknown_fields(value: Any, path: str = "") -> Iterator[str]:
    """Fields of an event that its type does not have."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from unknown_fields(one, f"{path}.{place}")


@asynccontextmanager
async def talking(url: str, key: str = KEY) -> AsyncIterator[OpenAiTalk]:
    """A connection of the package, as the package makes it."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
    async with client, client.realtime.connect(model="pico") as connection:
        talk = OpenAiTalk(connection)
        await talk.until("session.created")
        yield talk


def converse(url: str, scenario: Callable[[OpenAiTalk], Any], key: str = KEY) -> None:
    """Run a scenario in a connection of its own."""

    async def run() -> None:
        async with talking(url, key) as talk:
            await scenario(talk)

    asyncio.run(run())
