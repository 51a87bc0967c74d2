"""Transcripts of turns: begun in a pause on the chance that it is the end, kept or dropped.

Event loop only. The agent transcribes; this holds what it says back until the turn has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from realtime.agent.base import (
    StageFailed,
    TranscriptCompleted,
    TranscriptEvent,
    Transcription,
)

logger = logging.getLogger(__name__)

Listener = Callable[[TranscriptEvent], None]


class TurnTranscript:
    """One transcription, heard by nobody until somebody listens.

    Args:
        transcription: running already.
        name: of the session, for the log.
    """

    def __init__(self, transcription: Transcription, name: str) -> None:
        self._transcription = transcription
        self._name = name
        self._events: list[TranscriptEvent] = []
        self._listener: Listener | None = None
        self._text: str | None = None
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(self._read(), name=f"{name} transcript")

    def listen(self, listener: Listener) -> None:
        """Tell `listener` everything, what has come already included."""
        assert self._listener is None, "a transcript belongs to one item"
        self._listener = listener
        for event in self._events:
            listener(event)
        self._events.clear()

    async def text(self) -> str | None:
        """The whole of it, once it is there; None where it failed or was forgotten."""
        await self._is_over.wait()
        return self._text

    def cancel(self) -> None:
        """Forget it."""
        self._transcription.cancel()
        self._task.cancel()
        self._is_over.set()

    async def close(self) -> None:
        """Forget it, and wait until it has ended."""
        self.cancel()
        await asyncio.wait([self._task])

    async def _read(self) -> None:
        try:
            while (event := await self._transcription.next_event()) is not None:
                self._put(event)
        # An agent's bug costs this transcript and nothing else.
        except Exception as error:
            logger.exception("%s: transcription failed", self._name)
            message = f"transcription failed: {error}"
            self._put(StageFailed(stage="transcriber", code="model_error", message=message))
        finally:
            self._is_over.set()

    def _put(self, event: TranscriptEvent) -> None:
        if isinstance(event, TranscriptCompleted):
            self._text = event.text
        if self._listener is None:
            self._events.append(event)
        else:
            self._listener(event)


@dataclass(slots=True, kw_only=True)
class Speculation:
    """The transcript of a turn that may have ended with the pause `pause_number`."""

    pause_number: int
    transcript: TurnTranscript


class SilentTranscription:
    """What a turn without a voice says: nothing. Nobody is asked, so no words are invented.

    Args:
        seconds: of the silence.
    """

    def __init__(self, seconds: float) -> None:
        self._events: list[TranscriptEvent] = [TranscriptCompleted(text="", seconds=seconds)]

    async def next_event(self) -> TranscriptEvent | None:
        """Its end."""
        return self._events.pop() if self._events else None

    def cancel(self) -> None:
        """Nothing runs."""
        self._events.clear()
