"""How long device work took, without waiting for it. Engine thread."""

from __future__ import annotations

from collections.abc import Callable

import torch

Clock = Callable[[], float]


class Span:
    """The time between its making and `end`, on the device that does the work.

    On a CPU the work is done when the call returns, so the clock tells. On CUDA the call only
    queues it: events in the same stream tell, and may be read once the results were collected.
    """

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self._clock = clock
        self._start_s = clock()
        self._end_s = self._start_s
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = (_event(), _event())
            self._events[0].record()

    def end(self) -> None:
        """The work has been launched."""
        self._end_s = self._clock()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """Seconds of work. On CUDA only after its results were read."""
        if self._events is not None:
            return float(self._events[0].elapsed_time(self._events[1])) / 1e3
        return self._end_s - self._start_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none
