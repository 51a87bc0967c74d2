"""Counters of one engine loop, plain numbers that the gateway exports. Engine thread writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine import deadlines
from engine.scheduler import StepPlan
from engine.stream import Stream
from engine.types import EngineStats


@dataclass(slots=True)
class Total:
    """Number, sum, largest and last of some quantity."""

    n: int = 0
    sum: float = 0.0
    largest: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.n += 1
        self.sum += value
        self.largest = max(self.largest, value)
        self.last = value


@dataclass(slots=True)
class LoopMetrics:
    """What happened since start.

    `ttfa_s` counts from when the caller began to wait to the first chunk leaving the engine, for
    paced streams that had no earlier audio to play. A chunk is late when the client had run dry.
    """

    n_refused: int = 0
    n_failed: int = 0
    n_finished: int = 0
    n_aborted: int = 0
    n_late_chunks: int = 0
    n_frames: int = 0
    n_samples: int = 0
    step_s: Total = field(default_factory=Total)
    decode_rows: Total = field(default_factory=Total)
    prefill_rows: Total = field(default_factory=Total)
    chunk_streams: Total = field(default_factory=Total)
    ttfa_s: Total = field(default_factory=Total)

    def shown_in(self, stats: EngineStats) -> EngineStats:
        """The snapshot with these counters in it."""
        return replace(
            stats,
            n_steps=self.step_s.n,
            last_step_ms=self.step_s.last * 1e3,
            n_refused=self.n_refused,
            n_failed=self.n_failed,
            n_finished=self.n_finished,
            n_aborted=self.n_aborted,
        )

    def count_step(self, plan: StepPlan, n_decode_rows: int, seconds: float) -> None:
        """Count one step that did something; guided streams have two decode rows."""
        self.step_s.add(seconds)
        if n_decode_rows:
            self.decode_rows.add(n_decode_rows)
        if plan.prefill:
            self.prefill_rows.add(sum(piece.n_rows for piece in plan.prefill))
        if plan.chunks:
            self.chunk_streams.add(len(plan.chunks))
            self.n_frames += sum(work.n_valid for work in plan.chunks)

    def count_chunk(self, stream: Stream, n_samples: int, now_s: float) -> None:
        """Count one chunk that is about to be published; before the stream notes it."""
        self.n_samples += n_samples
        has_played = n_samples and stream.first_sent_s is not None
        if has_played and deadlines.slack_s(stream, now_s) < 0:
            self.n_late_chunks += 1
        if n_samples and deadlines.is_startup(stream):
            self.ttfa_s.add(now_s - stream.asked_s)
