"""What one engine loop counts and measures: plain numbers that the gateway exports.

The engine thread writes them; others read them through the door (`engine.handle`) and may see one
that is a step older than another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine import deadlines
from engine.histogram import Histogram
from engine.scheduler import StepPlan
from engine.stream import Stream
from engine.types import EngineStats

SECONDS: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.008, 0.012, 0.02, 0.035, 0.06),
    *(0.1, 0.2, 0.5, 1.0, 2.0),
)
"""Of steps and calls: a graph replay on a large device to a long prompt on a busy CPU."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SLACK_S: Final = (-1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TTFA_S: Final = (
    *(0.02, 0.035, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5),
    *(0.8, 1.2, 2.0, 5.0, 10.0),
)


class LoopMetrics:
    """What happened since start.

    `ttfa_s` counts from when the caller began to wait to the first chunk leaving the engine, for
    paced streams that had no earlier audio to play. `slack_s` is what each later chunk had left
    until it was due; it is late when the client had run dry. `decode_s`, `prefill_s` and
    `detokenize_s` are single calls, `step_s` is a step with all that it does.
    """

    def __init__(self) -> None:
        self.n_refused = 0
        self.n_failed = 0
        self.n_finished = 0
        self.n_aborted = 0
        self.n_gave_way = 0
        self.n_late_chunks = 0
        self.n_frames = 0
        self.n_samples = 0
        self.step_s = Histogram(SECONDS)
        self.decode_s = Histogram(SECONDS)
        self.prefill_s = Histogram(SECONDS)
        self.detokenize_s = Histogram(SECONDS)
        self.decode_rows = Histogram(SIZES)
        self.prefill_rows = Histogram(SIZES)
        self.chunk_streams = Histogram(SIZES)
        self.slack_s = Histogram(SLACK_S)
        self.ttfa_s = Histogram(TTFA_S)

    @property
    def histograms(self) -> dict[str, Histogram]:
        """The distributions by name."""
        return {
            "step_s": self.step_s,
            "decode_s": self.decode_s,
            "prefill_s": self.prefill_s,
            "detokenize_s": self.detokenize_s,
            "decode_rows": self.decode_rows,
            "prefill_rows": self.prefill_rows,
            "chunk_streams": self.chunk_streams,
            "slack_s": self.slack_s,
            "ttfa_s": self.ttfa_s,
        }

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
            n_gave_way=self.n_gave_way,
            n_late_chunks=self.n_late_chunks,
            n_frames=self.n_frames,
            n_samples=self.n_samples,
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
        if not n_samples or not stream.is_paced:
            return
        if deadlines.is_startup(stream):
            self.ttfa_s.add(now_s - stream.asked_s)
            return
        slack_s = deadlines.slack_s(stream, now_s)
        self.slack_s.add(slack_s)
        # Due a little before the client runs dry; late only after that.
        self.n_late_chunks += slack_s + stream.held_s < 0
