"""Which generated frames become the next chunk. Pure; no torch.

The smallest size first, so that the first sound comes early; then as large as the slack allows, so
that detokenizer calls are few and full. Each chunk follows from the codec state of the one before:
a stream has at most one in a call, frames go in order, none is left out and none goes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import deadlines
from engine.config import Limits
from engine.costs import StepCosts
from engine.stream import Stream
from engine.types import StreamId
from models.spec import CodecSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """One stream's part of a detokenizer call.

    Args:
        stream_id: whose frames.
        chunk_idx: counts from 0.
        first_frame: index of the first new frame in the stream.
        n_frames: size of the call, one of `CodecSpec.chunk_frames` (F).
        n_valid: new frames; fewer than `n_frames` only in the last chunk, which may have none.
        n_context: frames before `first_frame` that are passed again.
        is_first: the codec starts from its zero state.
        is_last: the codec gives everything that it holds back.
        due_s: clock time at which the audio is due.
    """

    stream_id: StreamId
    chunk_idx: int
    first_frame: int
    n_frames: int
    n_valid: int
    n_context: int
    is_first: bool
    is_last: bool
    due_s: float


def next_chunk(
    stream: Stream, now_s: float, limits: Limits, costs: StepCosts, frame_pace_s: float
) -> ChunkWork | None:
    """The chunk that this stream should send now, or None to let frames gather.

    Args:
        stream: read, not changed.
        now_s: monotonic clock.
        limits: chunk sizes, frame duration, urgent mark.
        costs: what a detokenizer call takes.
        frame_pace_s: seconds that a further frame of this stream may take to come.
    """
    codec = limits.codec
    if not stream.wants_pcm or stream.is_paused or is_delivered(stream, codec):
        return None
    n_waiting = stream.frames_waiting
    if stream.is_generation_done:
        return _final_chunk(stream, codec)
    if limits.config.policy == "throughput":
        size = codec.chunk_frames[-1]
    elif deadlines.is_startup(stream):
        size = smallest_sounding(codec)
    else:
        slack_s = deadlines.slack_s(stream, now_s)
        size = _size_within(stream, slack_s, limits, costs, frame_pace_s)
    if n_waiting < size:
        return None
    return _work(stream, codec, size, size, is_last=False)


def take(stream: Stream, work: ChunkWork) -> None:
    """Note that a chunk was launched; its frames will not be planned again."""
    assert work.first_frame == stream.frames_decoded, "chunks of a stream go in order"
    assert work.chunk_idx == stream.chunk_idx, "a chunk is launched once"
    stream.frames_decoded += work.n_valid
    stream.chunk_idx += 1
    stream.is_flushed = work.is_last


def is_delivered(stream: Stream, codec: CodecSpec) -> bool:
    """Everything was handed to the detokenizer: nothing follows but the end of the stream."""
    if not stream.is_generation_done:
        return False
    if stream.is_flushed or not stream.wants_pcm:
        return True
    # Without look-ahead the codec holds nothing back, so whole chunks need no flush after them.
    holds_back = codec.lookahead_frames > 0 and stream.frames_decoded > 0
    return stream.frames_waiting == 0 and not holds_back


def smallest_sounding(codec: CodecSpec) -> int:
    """The smallest first chunk that gives audio despite the look-ahead."""
    sounding = [size for size in codec.chunk_frames if size > codec.lookahead_frames]
    return sounding[0] if sounding else codec.chunk_frames[-1]


def _size_within(
    stream: Stream, slack_s: float, limits: Limits, costs: StepCosts, frame_pace_s: float
) -> int:
    """The largest size that can be filled, decoded and sent with the urgent mark to spare."""
    sizes = limits.codec.chunk_frames
    best = sizes[0]
    for size in sizes:
        wait_s = max(0, size - stream.frames_waiting) * frame_pace_s
        ready_s = wait_s + costs.chunk_s(1, size)
        # A size that is ready costs no waiting: then only its own decoding must fit.
        mark_s = limits.config.urgent_s if wait_s > 0 else 0.0
        if ready_s + mark_s <= slack_s:
            best = size
    return best


def _final_chunk(stream: Stream, codec: CodecSpec) -> ChunkWork:
    """The next chunk once generation is done: full ones, then a last one that flushes."""
    n_waiting = stream.frames_waiting
    largest = codec.chunk_frames[-1]
    if n_waiting > largest:
        return _work(stream, codec, largest, largest, is_last=False)
    size = next(size for size in codec.chunk_frames if size >= n_waiting)
    return _work(stream, codec, size, n_waiting, is_last=True)


def _work(stream: Stream, codec: CodecSpec, size: int, n_valid: int, *, is_last: bool) -> ChunkWork:
    return ChunkWork(
        stream_id=stream.stream_id,
        chunk_idx=stream.chunk_idx,
        first_frame=stream.frames_decoded,
        n_frames=size,
        n_valid=n_valid,
        n_context=min(codec.left_context_frames, stream.frames_decoded),
        is_first=stream.chunk_idx == 0,
        is_last=is_last,
        due_s=deadlines.next_chunk_deadline(stream),
    )
