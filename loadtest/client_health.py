"""Whether the load generator itself kept up. A figure of a client that lagged is the client's own.

Everything is held against one packet of audio (20 ms): what the client is late by less than that,
no listener would notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadtest.measure.spread import Figures, spread

TICK_S: Final = 0.01
MAX_LAG_P99_MS: Final = 20.0
MAX_BUSY_PCT: Final = 85.0
"""Of one core, by the event loop's thread: more leaves no room for a burst."""


@dataclass(slots=True)
class ClientHealth:
    """How late the client's own clockwork was, in s.

    Args:
        loop_lags_s: timers of the event loop.
        schedule_lags_s: arrivals of callers, against the schedule.
        microphone_lags_s: frames of microphones, against their clocks.
        busy_share: of one core, by the thread of the event loop.
    """

    loop_lags_s: list[float] = field(default_factory=list)
    schedule_lags_s: list[float] = field(default_factory=list)
    microphone_lags_s: list[float] = field(default_factory=list)
    busy_share: float = 0.0
    _begun: tuple[float, float] = (0.0, 0.0)

    def figures(self) -> Figures:
        """For the report."""
        return {
            **spread("loop_lag", self.loop_lags_s, "ms", 1000.0),
            "loop_lag_max_ms": 1000.0 * max(self.loop_lags_s, default=0.0),
            **spread("schedule_lag", self.schedule_lags_s, "ms", 1000.0),
            "schedule_lag_max_ms": 1000.0 * max(self.schedule_lags_s, default=0.0),
            **spread("microphone_lag", self.microphone_lags_s, "ms", 1000.0),
            "busy_pct": 100.0 * self.busy_share,
        }

    def begin(self) -> None:
        """Forget what was: the measured time begins."""
        for lags_s in (self.loop_lags_s, self.schedule_lags_s, self.microphone_lags_s):
            lags_s.clear()
        self._begun = (time.monotonic(), time.thread_time())

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Measure the running event loop meanwhile; from `begin` on, if that is called."""
        self.begin()
        task = asyncio.create_task(self._tick(), name="loop watch")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            begun_s, begun_cpu_s = self._begun
            wall_s = max(time.monotonic() - begun_s, 1e-9)
            self.busy_share = (time.thread_time() - begun_cpu_s) / wall_s

    async def _tick(self) -> None:
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.loop_lags_s.append(max(0.0, time.monotonic() - due_s))


def faults_of(figures: Figures) -> Sequence[str]:
    """Why the client's figures make a run worthless; none if it kept up."""
    faults = []
    for name in ("loop_lag", "schedule_lag", "microphone_lag"):
        lag_ms = figures[f"{name}_p99_ms"]
        if lag_ms is not None and lag_ms > MAX_LAG_P99_MS:
            what = name.replace("_", " ")
            faults.append(f"the client's {what} is {lag_ms:.0f} ms at p99 (> {MAX_LAG_P99_MS:.0f})")
    busy_pct = figures["busy_pct"]
    if busy_pct is not None and busy_pct > MAX_BUSY_PCT:
        faults.append(f"the client's event loop is busy {busy_pct:.0f} % (> {MAX_BUSY_PCT:.0f})")
    return faults
