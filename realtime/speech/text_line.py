"""Text that waits to be spoken: units and pauses, in order. Event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from models.text.breaks import Pause


class TextLine:
    """A queue that knows whether more will come."""

    def __init__(self) -> None:
        self._units: deque[str | Pause] = deque()
        self._is_ended = False
        self._changed = asyncio.Event()

    def put(self, units: Iterable[str | Pause]) -> None:
        """More of it."""
        self._units.extend(units)
        self._changed.set()

    def end(self) -> None:
        """No more of it."""
        self._is_ended = True
        self._changed.set()

    @property
    def is_waiting(self) -> bool:
        """Whether it is empty, and more may come."""
        return not (self._is_ended or self._units)

    async def next(self) -> str | Pause | None:
        """The next; None at the end."""
        while not self._units:
            if self._is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._units.popleft()
