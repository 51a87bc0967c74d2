"""Two policies to compare with: first come first served, and the reference system's.

Both know one chunk size, run prompts and rows in one pass, and admit everybody.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from engine import deadlines
from engine.chunks import ChunkWork
from engine.scheduler import PrefillPiece, StepPlan
from engine.stream import Stream
from loadtest.simulate.device import FixedChunk
from loadtest.simulate.policies import Policy, StepTimes
from models.spec import CodecSpec

PRESSING_S = 1.0
"""The reference: a stream presses once its last chunk will be playing within this."""
DECODES_BESIDE_PREFILL = 7
"""The reference: rows of other streams in a step that runs a prompt."""


class _FixedChunks(Policy):
    """Chunks of one size: a whole window at first, then a step of new frames in each window."""

    is_one_pass = True

    def __init__(self, chunk: FixedChunk, frame_s: float) -> None:
        super().__init__(CodecSpec(chunk_frames=(chunk.window_frames,), max_batch=chunk.max_batch))
        self._chunk = chunk
        self._frame_s = frame_s

    def plan(self, streams: Sequence[Stream], now_s: float) -> StepPlan:
        """Some prompts and rows, some chunks."""
        prompts, decode = self._choose_rows(streams, now_s)
        return StepPlan(
            prefill=tuple(_whole_prompt(stream) for stream in prompts),
            decode=tuple(stream.stream_id for stream in decode),
            chunks=tuple(self._choose_chunks(streams, now_s)),
        )

    def observe(self, times: StepTimes) -> None:
        """Costs play no part."""

    def close(self, stream: Stream) -> None:
        """Nothing is held."""

    @abstractmethod
    def _choose_rows(
        self, streams: Sequence[Stream], now_s: float
    ) -> tuple[list[Stream], list[Stream]]:
        """Streams whose prompt is run, and streams that generate a row."""

    @abstractmethod
    def _choose_chunks(self, streams: Sequence[Stream], now_s: float) -> list[ChunkWork]:
        """Detokenizer work of one call."""

    def _n_ready(self, stream: Stream) -> int:
        """Chunks that could be made of the frames that wait."""
        n_left = stream.frames_waiting
        n_chunks = 0
        while n_left > 0 and (
            n_left >= self._n_new(stream.chunk_idx + n_chunks) or stream.is_generation_done
        ):
            n_left -= self._n_new(stream.chunk_idx + n_chunks)
            n_chunks += 1
        return n_chunks

    def _works(self, stream: Stream, n_chunks: int) -> list[ChunkWork]:
        """The next `n_chunks` of a stream, in order."""
        works = []
        first_frame = stream.frames_decoded
        for idx in range(stream.chunk_idx, stream.chunk_idx + n_chunks):
            n_left = stream.frames_ready - first_frame
            n_valid = min(n_left, self._n_new(idx))
            works.append(
                ChunkWork(
                    stream_id=stream.stream_id,
                    chunk_idx=idx,
                    first_frame=first_frame,
                    n_frames=self._chunk.window_frames,
                    n_valid=n_valid,
                    n_context=0,
                    is_first=idx == 0,
                    is_last=stream.is_generation_done and n_valid == n_left,
                    due_s=deadlines.next_chunk_deadline(stream),
                )
            )
            first_frame += n_valid
        return works

    def _n_new(self, chunk_idx: int) -> int:
        return self._chunk.step_frames if chunk_idx else self._chunk.window_frames


class Fcfs(_FixedChunks):
    """In order of arrival: all prompts that wait, a row of each stream, a chunk of each stream."""

    def _choose_rows(
        self, streams: Sequence[Stream], now_s: float
    ) -> tuple[list[Stream], list[Stream]]:
        n_most = self._chunk.max_batch
        prompts = [stream for stream in streams if stream.can_prefill][:n_most]
        decode = [stream for stream in streams if stream.can_decode]
        return prompts, decode[: n_most - len(prompts)]

    def _choose_chunks(self, streams: Sequence[Stream], now_s: float) -> list[ChunkWork]:
        ready = [stream for stream in streams if self._n_ready(stream)][: self._chunk.max_batch]
        return [work for stream in ready for work in self._works(stream, 1)]


class Reference(_FixedChunks):
    """The rules of VoxServe's online scheduler.

    One prompt a step, with few rows beside it; streams that press go first, in order of arrival;
    no chunk is made while nobody presses.

    Source: vox-serve at 6f6b469, `vox_serve/scheduler/online.py`.
    """

    def _choose_rows(
        self, streams: Sequence[Stream], now_s: float
    ) -> tuple[list[Stream], list[Stream]]:
        prompts = [stream for stream in streams if stream.can_prefill][:1]
        n_most = DECODES_BESIDE_PREFILL if prompts else self._chunk.max_batch
        pressing, others = self._split([s for s in streams if s.can_decode], now_s)
        return prompts, [*pressing, *others][:n_most]

    def _choose_chunks(self, streams: Sequence[Stream], now_s: float) -> list[ChunkWork]:
        n_most = self._chunk.max_batch
        ready = [stream for stream in streams if self._n_ready(stream)]
        pressing, others = self._split(ready, now_s)
        if not pressing:
            return []
        counts = _scaled([self._n_ready(stream) for stream in pressing], n_most)
        works = []
        for stream, n_chunks in zip(pressing, counts, strict=True):
            works += self._works(stream, n_chunks)
        for stream in others:
            works += self._works(stream, min(self._n_ready(stream), n_most - len(works)))
        return works

    def _split(self, streams: Sequence[Stream], now_s: float) -> tuple[list[Stream], list[Stream]]:
        """Those that press, and the others."""
        presses = [self._is_pressing(stream, now_s) for stream in streams]
        return (
            [stream for stream, is_pressing in zip(streams, presses, strict=True) if is_pressing],
            [
                stream
                for stream, is_pressing in zip(streams, presses, strict=True)
                if not is_pressing
            ],
        )

    def _is_pressing(self, stream: Stream, now_s: float) -> bool:
        if stream.first_sent_s is None:
            return True
        last_s = self._chunk.step_frames * self._frame_s
        return now_s >= stream.first_sent_s + stream.sent_s - last_s - PRESSING_S


def _scaled(counts: Sequence[int], n_most: int) -> list[int]:
    """Counts in proportion, none under 1, together at most `n_most`: later ones may get 0."""
    share = min(1.0, n_most / max(1, sum(counts)))
    scaled = []
    for count in counts:
        scaled.append(min(max(1, math.floor(count * share)), n_most))
        n_most -= scaled[-1]
    return scaled


def _whole_prompt(stream: Stream) -> PrefillPiece:
    return PrefillPiece(
        stream_id=stream.stream_id,
        sequence_idx=0,
        first_row=0,
        n_rows=stream.n_prompt_rows[0],
        is_last=True,
    )
