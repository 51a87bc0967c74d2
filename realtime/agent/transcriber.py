"""Speech to text for all sessions: the protocol, and Whisper in a thread of its own.

Event loop only, but for the ear's own work. One thread hears for everybody, window by window, so
that a long recording does not keep the others waiting and a cancelled one ends with its window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from engine.types import Pcm
from realtime.agent.base import (
    HEARD_RATE_HZ,
    StageFailed,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptEvent,
    Transcription,
    main_language,
    why_unheard,
)
from realtime.agent.errors import StageError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_WAITING: Final = 16
"""Transcriptions at once; one takes some 0.1 s, so the last of them waits a second or two."""
PATIENCE_S: Final = 30.0
"""For one window; more means that the thread hangs."""


class Ear(Protocol):
    """Recognition of one window. Blocking, one call at a time."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def licence(self) -> str:
        """Of its weights."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """That it understands."""
        ...

    def windows(self, pcm: Pcm) -> list[Pcm]:
        """What of a recording holds speech, in pieces that `hear` takes."""
        ...

    def hear(self, pcm: Pcm, language: str | None) -> str:
        """The words of one window; empty where there are none. None guesses the language."""
        ...


class Transcriber(Protocol):
    """Speech to text; shared by all sessions."""

    @property
    def name(self) -> str:
        """Of the model or endpoint."""
        ...

    @property
    def licence(self) -> str:
        """Of the weights; empty where unknown."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """Main parts of the language tags that it takes; empty: any."""
        ...

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """See `realtime.agent.base.Agent.transcribe`."""
        ...

    async def close(self) -> None:
        """Give everything back. No transcription goes on."""
        ...


class RunningTranscription:
    """Implements `Transcription` over a generator that does the work.

    Args:
        work: gives deltas, then `TranscriptCompleted`; raises `StageError`.
    """

    def __init__(self, work: AsyncGenerator[TranscriptEvent]) -> None:
        self._work = work
        self._events: asyncio.Queue[TranscriptEvent | None] = asyncio.Queue()
        self._is_over = False
        self._task = asyncio.create_task(self._run(), name="transcription")

    async def next_event(self) -> TranscriptEvent | None:
        """See `Transcription.next_event`."""
        if self._is_over and self._events.empty():
            return None
        event = await self._events.get()
        if event is None:
            self._is_over = True
        return event

    def cancel(self) -> None:
        """See `Transcription.cancel`."""
        self._task.cancel()
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(None)

    async def _run(self) -> None:
        try:
            async for event in self._work:
                self._events.put_nowait(event)
        except StageError as fault:
            self._events.put_nowait(_failed(fault.code, fault.message, fault.retry_after_s))
        # Whatever a model or a library raises must end this transcription and nothing else.
        except Exception as error:
            logger.exception("a transcription failed")
            self._events.put_nowait(_failed("model_error", f"transcription failed: {error}"))
        finally:
            await self._work.aclose()
            self._events.put_nowait(None)


class LocalTranscriber:
    """Implements `Transcriber` by an `Ear` in one thread.

    Args:
        ear: that hears.
        max_waiting: transcriptions at once; more are refused.
    """

    def __init__(self, ear: Ear, *, max_waiting: int = MAX_WAITING) -> None:
        self._ear = ear
        self._max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transcriber")
        self._n_open = 0

    @property
    def name(self) -> str:
        """Of the model."""
        return self._ear.name

    @property
    def licence(self) -> str:
        """Of its weights."""
        return self._ear.licence

    @property
    def languages(self) -> tuple[str, ...]:
        """Those of its model."""
        return self._ear.languages

    @property
    def n_open(self) -> int:
        """Transcriptions that go on."""
        return self._n_open

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """See `Transcriber.transcribe`."""
        return RunningTranscription(self._events(pcm, language))

    async def close(self) -> None:
        """Start nothing any more, and wait for the window at hand."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    async def _events(self, pcm: Pcm, language: str | None) -> AsyncGenerator[TranscriptEvent]:
        spoken = check_spoken(language, self._ear.languages)
        if self._n_open >= self._max_waiting:
            raise StageError("overloaded", "too much speech waits to be transcribed", 1.0)
        self._n_open += 1
        try:
            texts: list[str] = []
            for window in await self._in_thread(partial(self._ear.windows, pcm)):
                text = await self._in_thread(partial(self._ear.hear, window, spoken))
                if text:
                    yield TranscriptDelta(text=f" {text}" if texts else text)
                    texts.append(text)
            yield TranscriptCompleted(text=" ".join(texts), seconds=len(pcm) / HEARD_RATE_HZ)
        finally:
            self._n_open -= 1

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Run `work`. A cancelled caller takes it back, unless it has begun: then it soon ends."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.wrap_future(self._pool.submit(work))
        except TimeoutError:
            message = f"no transcript within {PATIENCE_S:g} s"
            raise StageError("transcriber_timeout", message, 1.0) from None


def check_spoken(language: str | None, languages: tuple[str, ...]) -> str | None:
    """`language` by its main part: `en-GB` is heard by `en`. None where it is to be guessed.

    Raises:
        StageError: none of `languages` (empty: all are taken).
    """
    if language is None:
        return languages[0] if len(languages) == 1 else None
    if fault := why_unheard(language, languages):
        raise StageError("unsupported_language", fault)
    return main_language(language)


def _failed(code: str, message: str, retry_after_s: float | None = None) -> StageFailed:
    return StageFailed(stage="transcriber", code=code, message=message, retry_after_s=retry_after_s)
