"""Events of one reply on their way to its reader. Event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from realtime.agent.base import AudioDelta, ReplyEvent

MAX_WAITING_S: Final = 2.0
"""Of audio; then its maker waits for the reader."""


class Outbox:
    """A queue that is bounded by its seconds of audio.

    Args:
        sample_rate_hz: of the audio.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._n_most = round(MAX_WAITING_S * sample_rate_hz)
        self._events: deque[ReplyEvent] = deque()
        self._n_samples = 0
        self._is_closed = False
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, event: ReplyEvent) -> None:
        """Add an event. Falls where the box is closed."""
        if self._is_closed:
            return
        self._events.append(event)
        if isinstance(event, AudioDelta):
            self._count(len(event.pcm))
        self._changed.set()

    async def wait_room(self) -> None:
        """Wait until more audio may be put."""
        await self._has_room.wait()

    async def get(self) -> ReplyEvent | None:
        """The next event; None once the box is closed and empty."""
        while not self._events:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if isinstance(event, AudioDelta):
            self._count(-len(event.pcm))
        return event

    def close(self) -> None:
        """Take nothing any more."""
        self._is_closed = True
        self._changed.set()

    def discard(self) -> None:
        """Forget what waits, and take nothing any more."""
        self._events.clear()
        self._count(-self._n_samples)
        self.close()

    def _count(self, n_samples: int) -> None:
        self._n_samples += n_samples
        if self._n_samples < self._n_most:
            self._has_room.set()
        else:
            self._has_room.clear()
