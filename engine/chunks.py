"""Which generated frames become the next chunk. Pure; no torch.

The smallest size first, so that the first sound comes early; then as large as the slack allows, so
that detokenizer calls are few and full. Each chunk follows from the codec state of the one before:
a stream has at most one in a call, frames go in order, none is left out and none goes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import deadlines
from engine.config import Limits
from engine.costs import UNEVEN, StepCosts
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
        n_frames: size of the call, one of `CodecSpec.sizes` (F).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """What the choice of chunk sizes rests on in one step; the same for all streams.

    Args:
        codec: allowed sizes, context, look-ahead.
        call_s: seconds of a detokenizer call of one stream, for each allowed size.
        frame_s: seconds of audio in a frame.
        pace_s: seconds that a further frame of a playing stream may take to come.
        first_size: size of a first chunk.
        margin_s: slack that must be left when a chunk was waited for.
        is_hurried: False (throughput policy): always the largest size.
    """

    codec: CodecSpec
    call_s: tuple[float, ...]
    frame_s: float
    pace_s: float
    first_size: int
    margin_s: float
    is_hurried: bool


def ramp(limits: Limits, costs: StepCosts, step_s: float, startup_step_s: float) -> Ramp:
    """The chunk sizes of one step.

    Args:
        limits: chunk sizes, frame duration, urgent mark.
        costs: what detokenizer calls take.
        step_s: expected seconds of the steps that give the next rows.
        startup_step_s: the same for a stream that has just sounded: others make room for it.
    """
    codec = limits.codec
    return Ramp(
        codec=codec,
        call_s=tuple(costs.chunk_s(1, size) for size in codec.chunk_frames),
        frame_s=limits.frame_s,
        pace_s=limits.frame.rows_per_frame * step_s,
        first_size=_first_size(limits, startup_step_s, costs),
        margin_s=limits.config.urgent_s,
        is_hurried=limits.config.policy == "latency",
    )


def next_chunk(stream: Stream, now_s: float, ramp: Ramp) -> ChunkWork | None:
    """The chunk that this stream should send now, or None to let frames gather."""
    if not stream.wants_pcm or stream.is_paused or is_delivered(stream, ramp.codec):
        return None
    if stream.is_generation_done:
        return _final_chunk(stream, ramp.codec)
    sizes = ramp.codec.sizes(stream.chunk_idx)
    if not ramp.is_hurried:
        size = sizes[-1]
    elif deadlines.is_startup(stream):
        size = ramp.first_size if ramp.first_size in sizes else sizes[0]
    elif stream.chunk_idx == 0 and ramp.codec.first_frames:
        size = sizes[-1]  # Nobody waits for it.
    else:
        size = _size_within(stream.frames_waiting, deadlines.slack_s(stream, now_s), ramp)
    if stream.frames_waiting < size:
        return None
    return _work(stream, ramp.codec, size, size, is_last=False)


def chunk_of_size(stream: Stream, size: int, ramp: Ramp) -> ChunkWork | None:
    """This stream's chunk in a call of `size` that is made anyway; None if it cannot fill one."""
    codec = ramp.codec
    if not stream.wants_pcm or stream.is_paused or is_delivered(stream, codec):
        return None
    if size not in codec.sizes(stream.chunk_idx):
        return None
    if stream.is_generation_done and stream.frames_waiting + codec.last_room_frames <= size:
        return _work(stream, codec, size, stream.frames_waiting, is_last=True)
    is_too_small = deadlines.is_startup(stream) and size < ramp.first_size
    if is_too_small or stream.frames_waiting < size:
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


def _first_size(limits: Limits, step_s: float, costs: StepCosts) -> int:
    """The smallest first chunk that plays until the chunk after it can be there."""
    codec = limits.codec
    sizes, following = codec.sizes(0), codec.sizes(1)
    n_rows = following[0] * limits.frame.rows_per_frame
    call_s = costs.chunk_s(1, following[0])
    last_s = costs.both_s(step_s, call_s)
    gap_s = UNEVEN * (n_rows * min(last_s, costs.cheap_s(step_s)) + last_s) + limits.config.held_s
    gap_s += call_s  # One of another size may go before it.
    if costs.is_dear(step_s, call_s, limits.config.jitter_s):
        gap_s += costs.chunk_s(1, following[-1])  # It may be of the largest, and hold the rows up.
    sounding = [size for size in sizes if size > codec.lookahead_frames]
    lasting = [
        size for size in sounding if (size - codec.lookahead_frames) * limits.frame_s >= gap_s
    ]
    return [*lasting[:1], *sounding[:1], sizes[-1]][0]


def _size_within(n_waiting: int, slack_s: float, ramp: Ramp) -> int:
    """The largest size that can be filled, decoded and sent in time."""
    best = ramp.codec.chunk_frames[0]
    for size, call_s in zip(ramp.codec.chunk_frames, ramp.call_s, strict=True):
        missing = size - n_waiting
        # A size that is there needs no margin for the frames to come, only time to be decoded.
        wait_s = missing * ramp.pace_s + ramp.margin_s if missing > 0 else 0.0
        if wait_s + call_s <= slack_s:
            best = size
    return best


def _final_chunk(stream: Stream, codec: CodecSpec) -> ChunkWork:
    """The next chunk once generation is done: full ones, then a last one that flushes."""
    n_waiting, sizes = stream.frames_waiting, codec.sizes(stream.chunk_idx)
    n_needed = n_waiting + codec.last_room_frames
    if n_needed > sizes[-1]:
        size = max(size for size in sizes if size <= n_waiting)
        return _work(stream, codec, size, size, is_last=False)
    size = next(size for size in sizes if size >= n_needed)
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
