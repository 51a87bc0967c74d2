"""Launches the work of a plan and keeps its failures apart. Engine thread.

A model may raise anything. An exception of a batched call is pinned on a stream by running the
members of the batch alone, each once; the culprit fails and the others lose nothing, because no
call changes state before its computation is through. Errors of the device itself are not a
stream's: they pass and end the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from engine import chunks
from engine.batch import build_decode, build_prefill, rows_of
from engine.chunks import ChunkWork
from engine.codec_runner import ChunkTensors, CodecRunner
from engine.costs import StepCosts
from engine.device_streams import DeviceStreams
from engine.errors import StreamError
from engine.groups import StreamGroup
from engine.metrics import LoopMetrics
from engine.runner import Runner
from engine.scheduler import PrefillPiece, StepPlan
from engine.spans import Span
from engine.stream import Stream
from engine.types import StreamId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLaunch:
    """Streams whose rows were launched, and the results `(B, 6)` on the device."""

    groups: tuple[StreamGroup, ...]
    results: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLaunch:
    """Streams whose chunks were launched, and their audio on the device."""

    groups: tuple[StreamGroup, ...]
    works: tuple[ChunkWork, ...]
    audio: ChunkTensors


@dataclass(slots=True, kw_only=True)
class PendingStep:
    """A launched step: what `_collect` reads, and what failed at launch."""

    rows: list[RowLaunch] = field(default_factory=list)
    chunks: list[ChunkLaunch] = field(default_factory=list)
    failures: list[tuple[StreamGroup, StreamError]] = field(default_factory=list)
    lm_spans: list[tuple[int, int, Span]] = field(default_factory=list)
    chunk_spans: list[tuple[int, int, Span]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Nothing was launched, and nothing failed."""
        return not (self.lm_spans or self.rows or self.chunks or self.failures)

    def served(self) -> Iterator[Stream]:
        """The streams that results will come for."""
        for groups in (*(one.groups for one in self.rows), *(one.groups for one in self.chunks)):
            yield from (group.stream for group in groups)

    @property
    def n_decode_rows(self) -> int:
        """LM rows of the step's decode calls."""
        return sum(n_decode for n_decode, _, _ in self.lm_spans)

    @property
    def spans(self) -> list[Span]:
        """All work that was launched."""
        return [span for _, _, span in (*self.lm_spans, *self.chunk_spans)]

    def observe(self, costs: StepCosts, metrics: LoopMetrics) -> None:
        """Teach the cost model and count what calls took, once their results were collected."""
        for n_decode, n_prefill, span in self.lm_spans:
            seconds = span.seconds()
            costs.observe_step(n_decode, n_prefill, seconds)
            (metrics.decode_s if n_decode else metrics.prefill_s).add(seconds)
        for n_streams, n_frames, span in self.chunk_spans:
            seconds = span.seconds()
            costs.observe_chunk(n_streams, n_frames, seconds)
            metrics.detokenize_s.add(seconds)

    def observe_total(self, costs: StepCosts, total_s: float) -> None:
        """Teach the cost model what a step took in which this one was the last to be collected."""
        lm_s = sum(span.seconds() for _, _, span in self.lm_spans)
        codec_s = sum(span.seconds() for _, _, span in self.chunk_spans)
        costs.observe_total(lm_s, codec_s, total_s)


class Launcher:
    """Turns plans into calls of the runners."""

    def __init__(
        self, runner: Runner, codec: CodecRunner, n_slots: int, streams: DeviceStreams
    ) -> None:
        self._runner = runner
        self._codec = codec
        self._n_slots = n_slots
        self._streams = streams

    def launch(
        self,
        plan: StepPlan,
        resumed: Sequence[StreamGroup],
        groups: Mapping[StreamId, StreamGroup],
    ) -> PendingStep:
        """Run the step's prompt pieces, rows and chunks; nothing is read back."""
        pending = PendingStep()
        if resumed:
            self._attempt(resumed, self._resume, pending)
        if plan.prefill:
            self._launch_prefill(plan.prefill, groups, pending)
        if plan.decode:
            members = [groups[stream_id] for stream_id in plan.decode]
            self._attempt(members, self._decode, pending)
        for _, works in groupby(plan.chunks, key=lambda work: work.n_frames):
            self._launch_chunks(list(works), groups, pending)
        return pending

    def _attempt(
        self,
        members: Sequence[StreamGroup],
        call: Callable[[Sequence[StreamGroup], PendingStep], None],
        pending: PendingStep,
    ) -> None:
        """Call with all members; if that raises, with each alone, and fail those that raise."""
        try:
            call(members, pending)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            if len(members) > 1:
                for member in members:
                    self._attempt([member], call, pending)
                return
            stream_id = members[0].stream.stream_id
            logger.warning("stream %s failed in the model", stream_id, exc_info=error)
            failure = StreamError("model_error", f"{type(error).__name__}: {error}")
            pending.failures.append((members[0], failure))

    def _resume(self, members: Sequence[StreamGroup], pending: PendingStep) -> None:
        results = self._runner.resume(rows_of([group.stream for group in members]))
        for group in members:
            group.stream.n_rows_in_flight += 1
        pending.rows.append(RowLaunch(groups=tuple(members), results=results))

    def _decode(self, members: Sequence[StreamGroup], pending: PendingStep) -> None:
        streams = [group.stream for group in members]
        span = Span("decode", self._streams.lm)
        batch = build_decode(streams, self._n_slots)
        results = self._runner.decode(batch)
        span.end()
        for stream in streams:
            stream.n_rows += 1
            stream.n_rows_in_flight += 1
            for table in stream.sequences[: stream.n_step_rows]:
                table.n_rows += 1
        pending.rows.append(RowLaunch(groups=tuple(members), results=results))
        pending.lm_spans.append((len(batch.sequences), 0, span))

    def _launch_prefill(
        self,
        pieces: Sequence[PrefillPiece],
        groups: Mapping[StreamId, StreamGroup],
        pending: PendingStep,
    ) -> None:
        by_stream: dict[StreamId, list[PrefillPiece]] = {}
        for piece in pieces:
            by_stream.setdefault(piece.stream_id, []).append(piece)

        def prefill(members: Sequence[StreamGroup], pending: PendingStep) -> None:
            self._prefill(members, by_stream, pending)

        self._attempt([groups[stream_id] for stream_id in by_stream], prefill, pending)

    def _prefill(
        self,
        members: Sequence[StreamGroup],
        by_stream: Mapping[StreamId, Sequence[PrefillPiece]],
        pending: PendingStep,
    ) -> None:
        cut = [(group, p) for group in members for p in by_stream[group.stream.stream_id]]
        parts = [(group.stream, piece.sequence_idx, piece.n_rows) for group, piece in cut]
        prompts = [group.prompts[piece.sequence_idx] for group, piece in cut]
        span = Span("prefill", self._streams.lm)
        results = self._runner.prefill(build_prefill(parts, prompts, self._n_slots))
        span.end()
        for stream, idx, n_rows in parts:
            stream.n_prefilled[idx] += n_rows
            stream.sequences[idx].n_rows += n_rows
        pending.lm_spans.append((0, sum(n_rows for _, _, n_rows in parts), span))
        if results is not None:
            begun = [g for g in members if g.stream.is_prefilled and g.stream.n_rows == 0]
            for group in begun:
                group.stream.n_rows = group.stream.n_rows_in_flight = 1
            pending.rows.append(RowLaunch(groups=tuple(begun), results=results))

    def _launch_chunks(
        self,
        works: Sequence[ChunkWork],
        groups: Mapping[StreamId, StreamGroup],
        pending: PendingStep,
    ) -> None:
        by_stream = {work.stream_id: work for work in works}
        assert len(by_stream) == len(works), "a stream has one chunk in a call"

        def detokenize(members: Sequence[StreamGroup], pending: PendingStep) -> None:
            mine = [by_stream[group.stream.stream_id] for group in members]
            with self._streams.codec.queue():
                span = Span("detokenize", self._streams.codec)
                audio = self._codec.decode([group.stream.slot for group in members], mine)
                span.end()
            for group, work in zip(members, mine, strict=True):
                chunks.take(group.stream, work)
                group.stream.n_chunks_in_flight += 1
            pending.chunks.append(
                ChunkLaunch(groups=tuple(members), works=tuple(mine), audio=audio)
            )
            pending.chunk_spans.append((len(mine), mine[0].n_frames, span))

        self._attempt([groups[work.stream_id] for work in works], detokenize, pending)
