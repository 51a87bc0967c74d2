"""A virtual clock that runs the engine's own policy modules against a device profile.

It does what `engine.loop` does, without tensors: offer, review, plan, apply, publish. The policy
never sees the profile: it learns costs from the (noisy) step times, as it does on a device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine import chunks, deadlines, scheduler
from engine.admission import Admission, Demand
from engine.chunks import ChunkWork
from engine.config import EngineConfig, Limits
from engine.costs import StepCosts
from engine.kv_pages import PageAllocator, n_pages_for
from engine.scheduler import StepPlan
from engine.slots import SlotTable
from engine.stream import Stream
from engine.types import StreamId
from models.spec import CodecSpec, FrameSpec


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What work costs on a device, in ms; `chunk_frame_ms` is for a frame, context included."""

    frame: FrameSpec
    codec: CodecSpec
    decode_ms: float
    decode_row_ms: float
    prefill_ms: float
    prefill_row_ms: float
    chunk_ms: float
    chunk_frame_ms: float
    overlap: float = 0.25
    noise: float = 0.05

    def step_ms(self, n_decode: int, n_prefill: int) -> float:
        """The LM's part of a step."""
        decode = self.decode_ms + self.decode_row_ms * n_decode if n_decode else 0.0
        prefill = self.prefill_ms + self.prefill_row_ms * n_prefill if n_prefill else 0.0
        return decode + prefill

    def call_ms(self, n_streams: int, n_frames: int) -> float:
        """One detokenizer call."""
        n_units = n_streams * (n_frames + self.codec.left_context_frames)
        return self.chunk_ms + self.chunk_frame_ms * n_units if n_streams else 0.0


def orpheus_like(codec: CodecSpec | None = None) -> Profile:
    """82 rows/s, 7 rows a frame; the detokenizer's 3 + 0.15 n ms are for a window of 4 frames."""
    return Profile(
        frame=FrameSpec(
            n_codebooks=7,
            rows_per_frame=7,
            frame_rate_hz=11.71875,
            sample_rate_hz=24000,
            samples_per_frame=2048,
        ),
        codec=codec
        or CodecSpec(chunk_frames=(1, 2, 4, 8, 16), left_context_frames=3, max_batch=64),
        decode_ms=5.5,
        decode_row_ms=0.055,
        prefill_ms=7.0,
        prefill_row_ms=0.02,
        chunk_ms=3.0,
        chunk_frame_ms=0.15 / 4,
    )


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request: when, how long its prompt and its speech."""

    at_s: float
    n_prompt_rows: int
    n_frames: int
    leaves_after_s: float = math.inf
    is_paced: bool = True


def poisson(
    rate_hz: float,
    duration_s: float,
    frame_s: float,
    *,
    seed: int,
    mean_s: float = 8.0,
    n_prompt_rows: int = 60,
) -> list[Arrival]:
    """Open-loop arrivals; speech lognormal with sigma 0.6 around a mean of `mean_s`."""
    draw = random.Random(seed)
    arrivals = []
    now_s = draw.expovariate(rate_hz)
    while now_s < duration_s:
        speech_s = draw.lognormvariate(math.log(mean_s) - 0.6**2 / 2, 0.6)
        n_frames = max(1, round(speech_s / frame_s))
        arrivals.append(Arrival(at_s=now_s, n_prompt_rows=n_prompt_rows, n_frames=n_frames))
        now_s += draw.expovariate(rate_hz)
    return arrivals


@dataclass(kw_only=True)
class Outcome:
    """What became of one arrival; `frames` are the audio frames of its chunks."""

    arrival: Arrival
    is_refused: bool = False
    is_finished: bool = False
    ttfa_s: float = math.inf
    n_late: int = 0
    frames: list[int] = field(default_factory=list)
    ended_s: float = math.inf

    def is_good(self, bound_s: float) -> bool:
        """Heard soon, and without a gap."""
        return self.is_finished and self.ttfa_s <= bound_s and self.n_late == 0


class Simulator:
    """One engine on a virtual clock."""

    def __init__(self, profile: Profile, config: EngineConfig, *, seed: int = 0) -> None:
        self.profile = profile
        self.limits = Limits(config=config, frame=profile.frame, codec=profile.codec)
        self.costs = StepCosts(profile.codec.left_context_frames)
        self.pages = PageAllocator(config.n_pages, config.page_size)
        self.slots = SlotTable(config.max_streams)
        self.admission = Admission(self.limits, config.n_pages - 1)
        self.streams: dict[StreamId, Stream] = {}
        self.outcomes: dict[StreamId, Outcome] = {}
        self.now_s = 0.0
        self.n_steps = 0
        self.busy_s = 0.0
        self._draw = random.Random(seed)
        self._measure_costs()

    def _measure_costs(self) -> None:
        """The start-up measurement: a few sizes of each kind, three times."""
        sizes = (1, 2, 4, 8, 16, 32) * 3
        codec = self.profile.codec
        self.costs.decode.calibrate([(n, self._noisy(self.profile.step_ms(n, 0))) for n in sizes])
        self.costs.prefill.calibrate(
            [(16 * n, self._noisy(self.profile.step_ms(0, 16 * n))) for n in sizes]
        )
        self.costs.chunk.calibrate(
            [
                (self.costs.chunk_units(n, size), self._noisy(self.profile.call_ms(n, size)))
                for n in sizes
                for size in (codec.chunk_frames[0], codec.chunk_frames[-1])
            ]
        )

    def _noisy(self, ms: float) -> float:
        return ms * 1e-3 * self._draw.lognormvariate(0.0, self.profile.noise)

    def run(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Run until everything has ended."""
        waiting = sorted(arrivals, key=lambda arrival: arrival.at_s)
        self.outcomes = {StreamId(i): Outcome(arrival=a) for i, a in enumerate(waiting)}
        n_come = 0
        while n_come < len(waiting) or self.streams or self.admission.n_queued:
            while n_come < len(waiting) and waiting[n_come].at_s <= self.now_s:
                self._offer(StreamId(n_come), waiting[n_come])
                n_come += 1
            self._leave()
            self._review()
            plan = scheduler.plan(self.streams.values(), self.now_s, self.limits, self.costs)
            if plan.is_empty:
                next_s = waiting[n_come].at_s if n_come < len(waiting) else math.inf
                idle_s = math.inf if plan.idle_s is None else plan.idle_s
                self.now_s = max(self.now_s + 1e-4, min(next_s, self.now_s + idle_s))
            else:
                self._step(plan)
            assert self.n_steps < 2_000_000, "the engine makes no progress"
        return list(self.outcomes.values())

    def _n_pages(self, arrival: Arrival) -> int:
        n_rows = arrival.n_prompt_rows + arrival.n_frames * self.profile.frame.rows_per_frame
        return n_pages_for(n_rows, self.pages.page_size)

    def _offer(self, stream_id: StreamId, arrival: Arrival) -> None:
        self.admission.offer(
            Demand(
                stream_id=stream_id,
                asked_s=arrival.at_s,
                n_prompt_rows=arrival.n_prompt_rows,
                n_pages=self._n_pages(arrival),
            ),
            self.now_s,
        )

    def _leave(self) -> None:
        for stream_id, outcome in self.outcomes.items():
            leaves_s = outcome.arrival.at_s + outcome.arrival.leaves_after_s
            if leaves_s <= self.now_s and stream_id in self.streams:
                self._free(self.streams[stream_id])
            elif leaves_s <= self.now_s:
                self.admission.cancel(stream_id)

    def _review(self) -> None:
        active = list(self.streams.values())
        review = self.admission.review(
            self.now_s, active, self.costs, self.slots.n_free, self.pages.n_free
        )
        for refusal in review.refused:
            self.outcomes[refusal.stream_id].is_refused = True
        for stream_id in review.admitted:
            arrival = self.outcomes[stream_id].arrival
            stream = Stream(
                stream_id=stream_id,
                asked_s=arrival.at_s,
                max_frames=arrival.n_frames,
                n_prompt_rows=[arrival.n_prompt_rows],
                is_paced=arrival.is_paced,
            )
            slot = self.slots.allocate()
            assert slot is not None
            stream.slot = slot
            n_rows = self._n_pages(arrival) * self.pages.page_size
            assert stream.sequences[0].reserve(n_rows, self.pages)
            self.streams[stream_id] = stream

    def _step(self, plan: StepPlan) -> None:
        n_prefill = sum(piece.n_rows for piece in plan.prefill)
        decoding = [self.streams[stream_id] for stream_id in plan.decode]
        n_decode = sum(stream.n_step_rows for stream in decoding)
        lm_s = self._noisy(self.profile.step_ms(n_decode, n_prefill))
        calls: dict[int, list[ChunkWork]] = {}
        for work in plan.chunks:
            calls.setdefault(work.n_frames, []).append(work)
            chunks.take(self.streams[work.stream_id], work)
        codec_s = 0.0
        for size, works in calls.items():
            call_s = self._noisy(self.profile.call_ms(len(works), size))
            self.costs.observe_chunk(len(works), size, call_s)
            codec_s += call_s
        for piece in plan.prefill:
            stream = self.streams[piece.stream_id]
            stream.n_prefilled[piece.sequence_idx] += piece.n_rows
            if stream.is_prefilled and stream.n_rows == 0:
                self._add_row(stream)
        for stream in decoding:
            self._add_row(stream)
        total_s = max(lm_s, codec_s) + self.profile.overlap * min(lm_s, codec_s)
        self.costs.observe_step(n_decode, n_prefill, lm_s)
        self.costs.observe_total(lm_s, codec_s, total_s)
        self.now_s += total_s
        self.busy_s += total_s
        self.n_steps += 1
        for work in plan.chunks:
            self._publish(self.streams[work.stream_id], work)

    def _add_row(self, stream: Stream) -> None:
        stream.n_rows += 1
        stream.frames_ready = stream.n_rows // self.profile.frame.rows_per_frame
        stream.is_generation_done = stream.frames_ready == stream.max_frames

    def _publish(self, stream: Stream, work: ChunkWork) -> None:
        codec, frame = self.profile.codec, self.profile.frame
        n_audio = work.n_valid - (codec.lookahead_frames if work.is_first else 0)
        n_audio += codec.lookahead_frames if work.is_last else 0
        outcome = self.outcomes[stream.stream_id]
        outcome.frames.append(n_audio)
        deadlines.record_sent(
            stream, n_audio * frame.samples_per_frame, frame.sample_rate_hz, self.now_s
        )
        if stream.first_sent_s is not None:
            outcome.ttfa_s = stream.first_sent_s - stream.asked_s
        outcome.n_late = stream.n_late_chunks
        if chunks.is_delivered(stream, codec):
            outcome.is_finished = True
            outcome.ended_s = self.now_s
            self._free(stream)

    def _free(self, stream: Stream) -> None:
        del self.streams[stream.stream_id]
        self.slots.free(stream.slot)
        for sequence in stream.sequences:
            sequence.release(self.pages)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.ceil(share * len(ranked)) - 1)]
