"""Stages that do as the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import numpy as np

from engine.types import Pcm
from realtime.agent.base import HEARD_RATE_HZ, TranscriptEvent, Transcription
from realtime.agent.text_model import TextDone, TextEvent, TextFacts, TextRequest

SECOND = np.ones(HEARD_RATE_HZ, np.float32)


@dataclass
class FakeEar:
    """Hears what the test says, in windows of a second. `gate` holds it while it is cleared."""

    words: Callable[[int], str] = lambda n: f"Window {n}."
    languages: tuple[str, ...] = ("en", "de")
    name: str = "fake"
    licence: str = "none"
    gate: threading.Event = field(default_factory=threading.Event)
    has_begun: threading.Event = field(default_factory=threading.Event)
    heard: list[tuple[Pcm, str | None]] = field(default_factory=list)
    thread_names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.set()

    def windows(self, pcm: Pcm) -> list[Pcm]:
        return np.array_split(pcm, len(pcm) // HEARD_RATE_HZ) if pcm.any() else []

    def hear(self, pcm: Pcm, language: str | None) -> str:
        self.has_begun.set()
        self.gate.wait()
        self.thread_names.add(threading.current_thread().name)
        self.heard.append((pcm, language))
        return self.words(len(self.heard))


class FakeTextModel:
    """Writes what the test says; counts what is open.

    Args:
        events: to be given; an exception among them is raised, an `asyncio.Event` waited for.
        facts: of the model.
    """

    def __init__(self, *events: object, facts: TextFacts | None = None) -> None:
        self.events = events
        self._facts = facts or TextFacts(name="fake")
        self.requests: list[TextRequest] = []
        self.n_open = 0
        self.n_opened = 0
        self.is_closed = False
        self.brakes: list[bool] = []

    @property
    def facts(self) -> TextFacts:
        return self._facts

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextEvent]:
        self.requests.append(request)
        request.brake.listen(self.brakes.append)
        self.n_open += 1
        self.n_opened += 1
        try:
            has_ended = False
            for event in self.events:
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, asyncio.Event):
                    await event.wait()
                else:
                    has_ended = isinstance(event, TextDone)
                    yield event
                await asyncio.sleep(0)
            if not has_ended:
                yield TextDone(reason="stop", n_input_tokens=5, n_output_tokens=2)
        finally:
            self.n_open -= 1

    async def close(self) -> None:
        self.is_closed = True


async def all_of(transcription: Transcription) -> list[TranscriptEvent]:
    """Everything up to the end."""
    told = []
    while (event := await transcription.next_event()) is not None:
        told.append(event)
    return told
