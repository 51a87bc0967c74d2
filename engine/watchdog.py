"""Tells whether the engine thread still moves. One thread writes, any may read; no torch.

A call into a model or a device that never returns leaves the thread alive and the streams silent.
Only the clock can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STUCK_AFTER_S: Final = 10.0
"""A turn is a few milliseconds of work; even a prompt on a busy CPU stays far under this."""


class Watchdog:
    """When the turn of work that is under way began.

    Args:
        clock: monotonic seconds.
        patience_s: a turn that takes longer is stuck.
    """

    def __init__(self, clock: Callable[[], float], patience_s: float = STUCK_AFTER_S) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._began_s: float | None = None

    def begin(self) -> None:
        """A turn begins. Engine thread."""
        self._began_s = self._clock()

    def end(self) -> None:
        """The turn is over; sleep is not counted. Engine thread."""
        self._began_s = None

    @property
    def fault(self) -> str:
        """Why the thread is taken for stuck; empty while it is not. Any thread."""
        began_s = self._began_s
        if began_s is None:
            return ""
        for_s = self._clock() - began_s
        if for_s <= self._patience_s:
            return ""
        return f"the engine has been in one step for {for_s:.0f} s"
