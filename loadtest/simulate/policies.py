"""Who is served: what every policy answers, and Parley's own as the engine runs it.

A policy sees streams, the clock and the times that steps took; never the costs of the profile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from engine import scheduler
from engine.admission import Admission, Demand, Review
from engine.config import Limits
from engine.costs import StepCosts
from engine.kv_pages import PageAllocator, n_pages_for
from engine.scheduler import StepPlan
from engine.slots import SlotTable
from engine.stream import Stream
from engine.types import StreamId
from loadtest.simulate.device import Device
from models.spec import CodecSpec

MEASURED_SIZES = (1, 2, 4, 8, 16, 32)
"""Streams of the calls that are measured at start, as `engine.warmup` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What one step ran and how long that took: all that a policy may learn from."""

    n_decode: int
    n_prefill: int
    lm_s: float
    n_chunks: int
    chunk_frames: int
    codec_s: float
    total_s: float


class Policy(ABC):
    """Decides; the virtual clock does.

    Args:
        codec: chunk sizes that its plans use.

    Attributes:
        is_one_pass: prompt rows and decode rows of a step go through the model together.
    """

    is_one_pass = False

    def __init__(self, codec: CodecSpec) -> None:
        self.codec = codec
        self._offered: list[StreamId] = []

    def offer(self, stream: Stream, n_most_rows: int, now_s: float) -> None:
        """A stream asks; `n_most_rows` are its prompt and all that it may generate."""
        self._offered.append(stream.stream_id)

    def cancel(self, stream_id: StreamId) -> None:
        """A stream left before it was admitted."""
        self._offered = [waiting for waiting in self._offered if waiting != stream_id]

    def review(self, streams: Sequence[Stream], now_s: float) -> Review:
        """Who starts and who is refused, besides the `streams` that are served. Here: all start."""
        admitted, self._offered = tuple(self._offered), []
        return Review(admitted=admitted)

    @abstractmethod
    def plan(self, streams: Sequence[Stream], now_s: float) -> StepPlan:
        """The next step's work."""

    @abstractmethod
    def observe(self, times: StepTimes) -> None:
        """Learn from a step."""

    @abstractmethod
    def close(self, stream: Stream) -> None:
        """An admitted stream has ended."""


class Ours(Policy):
    """The engine's modules, wired as `engine.loop` wires them.

    Args:
        limits: the engine's settings and the model's pace.
        device: only to be measured, at start.
    """

    def __init__(self, limits: Limits, device: Device) -> None:
        super().__init__(limits.codec)
        config = limits.config
        self.costs = StepCosts(limits.codec.left_context_frames)
        self.pages = PageAllocator(config.n_pages, config.page_size)
        self.slots = SlotTable(config.max_streams)
        self._limits = limits
        self._admission = Admission(limits, config.n_pages - 1)
        self._demands: dict[StreamId, tuple[Stream, int]] = {}
        self._measure(device)

    def _measure(self, device: Device) -> None:
        costs, sizes = self.costs, MEASURED_SIZES
        costs.decode.calibrate([(n, device.decode_s(n)) for n in sizes])
        costs.prefill.calibrate([(16 * n, device.prefill_s(16 * n)) for n in sizes])
        units = [costs.chunk_units(n, size) for n in sizes for size in self.codec.chunk_frames]
        costs.chunk.calibrate([(n, device.chunk_s(n)) for n in units])

    def offer(self, stream: Stream, n_most_rows: int, now_s: float) -> None:
        """Put it in the queue of the engine's admission."""
        self._demands[stream.stream_id] = (stream, n_most_rows)
        demand = Demand(
            stream_id=stream.stream_id,
            asked_s=stream.asked_s,
            n_prompt_rows=sum(stream.n_prompt_rows),
            n_pages=n_pages_for(n_most_rows, self.pages.page_size),
            is_awaited=stream.is_paced,
        )
        self._admission.offer(demand, now_s)

    def cancel(self, stream_id: StreamId) -> None:
        """Take it out of the queue."""
        if self._admission.cancel(stream_id):
            del self._demands[stream_id]

    def review(self, streams: Sequence[Stream], now_s: float) -> Review:
        """As the engine's admission decides; slots and pages change hands."""
        review = self._admission.review(
            now_s, streams, self.costs, self.slots.n_free, self.pages.n_free
        )
        for refusal in review.refused:
            del self._demands[refusal.stream_id]
        for stream_id in review.admitted:
            stream, n_most_rows = self._demands.pop(stream_id)
            slot = self.slots.allocate()
            assert slot is not None, "admission counts the free slots"
            stream.slot = slot
            has_pages = stream.sequences[0].reserve(n_most_rows, self.pages)
            assert has_pages, "admission counts the free pages"
        return review

    def plan(self, streams: Sequence[Stream], now_s: float) -> StepPlan:
        """As the engine's scheduler decides."""
        return scheduler.plan(streams, now_s, self._limits, self.costs)

    def observe(self, times: StepTimes) -> None:
        """Learn as the engine's loop does."""
        self.costs.observe_step(times.n_decode, times.n_prefill, times.lm_s)
        if times.n_chunks:
            self.costs.observe_chunk(times.n_chunks, times.chunk_frames, times.codec_s)
        self.costs.observe_total(times.lm_s, times.codec_s, times.total_s)

    def close(self, stream: Stream) -> None:
        """Give slot and pages back."""
        self.slots.free(stream.slot)
        for sequence in stream.sequences:
            sequence.release(self.pages)
