"""The virtual clock: offers, reviews, plans, applies and publishes as `engine.loop` does."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from engine import chunks, deadlines
from engine.chunks import ChunkWork
from engine.scheduler import StepPlan
from engine.stream import Stream
from engine.types import StreamId
from loadtest.simulate.clients import Arrival, Listener
from loadtest.simulate.device import Device, Profile
from loadtest.simulate.policies import Policy, StepTimes

_LEAST_WAIT_S = 1e-4
_QUEUE_POLL_S = 0.05


class VirtualEngine:
    """One engine under one policy.

    Args:
        profile: the model's pace.
        policy: decides.
        device: takes time.

    Attributes:
        now_s: virtual clock.
        n_steps: steps that did something.
        streams: those that are being served.
    """

    def __init__(self, profile: Profile, policy: Policy, device: Device) -> None:
        self._frame = profile.frame_spec
        self._policy = policy
        self._device = device
        self._listeners: dict[StreamId, Listener] = {}
        self._waiting: dict[StreamId, Stream] = {}
        self._leaving: list[tuple[float, StreamId]] = []
        self.streams: dict[StreamId, Stream] = {}
        self.now_s = 0.0
        self.n_steps = 0

    def run(self, arrivals: Sequence[Arrival], until_s: float = math.inf) -> list[Listener]:
        """Serve until all have ended, or the clock says `until_s`. Listeners are in order."""
        coming = sorted(arrivals, key=lambda arrival: arrival.at_s)
        listeners = [Listener(arrival) for arrival in coming]
        n_come = 0
        while self.now_s < until_s and (n_come < len(coming) or self.streams or self._waiting):
            while n_come < len(coming) and coming[n_come].at_s <= self.now_s:
                self._offer(StreamId(n_come), listeners[n_come])
                n_come += 1
            self._leave()
            self._review()
            plan = self._policy.plan(list(self.streams.values()), self.now_s)
            if plan.is_empty:
                self._wait(plan, coming[n_come].at_s if n_come < len(coming) else math.inf)
            else:
                self._step(plan)
        return listeners

    def _wait(self, plan: StepPlan, next_s: float) -> None:
        idle_s = math.inf if plan.idle_s is None else plan.idle_s
        if self._waiting or self.streams:
            idle_s = min(idle_s, _QUEUE_POLL_S)
        self.now_s = max(self.now_s + _LEAST_WAIT_S, min(next_s, self.now_s + idle_s))

    def _offer(self, stream_id: StreamId, listener: Listener) -> None:
        arrival = listener.arrival
        stream = Stream(
            stream_id=stream_id,
            asked_s=arrival.at_s,
            max_frames=arrival.n_frames,
            n_prompt_rows=[arrival.n_prompt_rows],
            is_paced=arrival.is_paced,
        )
        self._listeners[stream_id] = listener
        self._waiting[stream_id] = stream
        n_rows = arrival.n_prompt_rows + arrival.n_frames * self._frame.rows_per_frame
        self._policy.offer(stream, n_rows, self.now_s)
        if arrival.leaves_after_s < math.inf:
            heapq.heappush(self._leaving, (arrival.at_s + arrival.leaves_after_s, stream_id))

    def _leave(self) -> None:
        while self._leaving and self._leaving[0][0] <= self.now_s:
            _, stream_id = heapq.heappop(self._leaving)
            if stream_id in self.streams:
                self._policy.close(self.streams.pop(stream_id))
            elif self._waiting.pop(stream_id, None) is not None:
                self._policy.cancel(stream_id)

    def _review(self) -> None:
        if not self._waiting:
            return
        review = self._policy.review(list(self.streams.values()), self.now_s)
        for refusal in review.refused:
            del self._waiting[refusal.stream_id]
            self._listeners[refusal.stream_id].is_refused = True
        for stream_id in review.admitted:
            self.streams[stream_id] = self._waiting.pop(stream_id)

    def _step(self, plan: StepPlan) -> None:
        n_decode = sum(self.streams[stream_id].n_step_rows for stream_id in plan.decode)
        n_prefill = sum(piece.n_rows for piece in plan.prefill)
        if self._policy.is_one_pass and n_prefill:
            lm_s = self._device.prefill_s(n_prefill + n_decode)
        else:
            lm_s = self._device.decode_s(n_decode) + self._device.prefill_s(n_prefill)
        size = plan.chunks[0].n_frames if plan.chunks else 0
        assert all(work.n_frames == size for work in plan.chunks), "a call has one size"
        n_computed = len(plan.chunks) * (size + self._policy.codec.left_context_frames)
        codec_s = self._device.chunk_s(n_computed)
        total_s = self._device.together_s(lm_s, codec_s)
        for work in plan.chunks:
            chunks.take(self.streams[work.stream_id], work)
        self._add_rows(plan)
        self._policy.observe(
            StepTimes(
                n_decode=n_decode,
                n_prefill=n_prefill,
                lm_s=lm_s,
                n_chunks=len(plan.chunks),
                chunk_frames=size,
                codec_s=codec_s,
                total_s=total_s,
            )
        )
        self.now_s += total_s
        self.n_steps += 1
        for work in plan.chunks:
            self._publish(self.streams[work.stream_id], work)
        for stream_id in {work.stream_id for work in plan.chunks}:
            self._end_if_delivered(self.streams[stream_id])

    def _add_rows(self, plan: StepPlan) -> None:
        for piece in plan.prefill:
            stream = self.streams[piece.stream_id]
            stream.n_prefilled[piece.sequence_idx] += piece.n_rows
            if stream.is_prefilled:  # A whole prompt gives the first row.
                self._add_row(stream)
        for stream_id in plan.decode:
            self._add_row(self.streams[stream_id])

    def _add_row(self, stream: Stream) -> None:
        stream.n_rows += 1
        stream.frames_ready = stream.n_rows // self._frame.rows_per_frame
        stream.is_generation_done = stream.frames_ready == stream.max_frames

    def _publish(self, stream: Stream, work: ChunkWork) -> None:
        codec, frame = self._policy.codec, self._frame
        # The codec holds the last frames back until it knows what follows.
        n_heard = work.n_valid
        n_heard -= codec.lookahead_frames if work.is_first else 0
        n_heard += codec.lookahead_frames if work.is_last else 0
        n_samples = n_heard * frame.samples_per_frame
        deadlines.record_sent(stream, n_samples, frame.sample_rate_hz, self.now_s)
        self._listeners[stream.stream_id].hear(n_heard, frame.frame_s, self.now_s)

    def _end_if_delivered(self, stream: Stream) -> None:
        if chunks.is_delivered(stream, self._policy.codec):
            self._listeners[stream.stream_id].ended_s = self.now_s
            self._policy.close(self.streams.pop(stream.stream_id))
