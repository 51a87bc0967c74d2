"""What one step runs: prompt pieces, decode rows and chunks. A pure function; no torch, no clock.

Streams that have not made a sound go first, in small batches; streams that play are served by
earliest deadline; those far enough ahead are left out. Nothing here changes a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine import chunks, deadlines
from engine.chunks import ChunkWork
from engine.config import Limits
from engine.costs import StepCosts
from engine.stream import Stream
from engine.types import StreamId

STARTUP_SLOWDOWN = 1.25
"""Streams with time to spare join a startup batch while they make it at most this much slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPiece:
    """Prompt rows of one sequence to run in this step.

    The rows go on from where the sequence is. Pieces that complete a prompt complete all sequences
    of the stream in the same step, so that guidance finds both last rows at hand.
    """

    stream_id: StreamId
    sequence_idx: int
    first_row: int
    n_rows: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step.

    Args:
        prefill: prompt pieces, in the order of the streams.
        decode: streams that generate one row (two LM rows where guided).
        chunks: detokenizer work; works of one `n_frames` stand together and form one call.
        idle_s: for an empty plan: after how long a stream will want a row although no command
            came; None if never.
    """

    prefill: tuple[PrefillPiece, ...] = ()
    decode: tuple[StreamId, ...] = ()
    chunks: tuple[ChunkWork, ...] = ()
    idle_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        return not (self.prefill or self.decode or self.chunks)


def plan(streams: Iterable[Stream], now_s: float, limits: Limits, costs: StepCosts) -> StepPlan:
    """Choose the work of one step.

    Args:
        streams: all admitted streams; read, not changed.
        now_s: monotonic clock.
        limits: engine settings, frame duration, chunk sizes.
        costs: what steps take on this device.
    """
    streams = list(streams)
    decode, prefill = _choose_rows(streams, now_s, limits, costs)
    works = _choose_chunks(streams, now_s, limits, costs, lm_is_idle=not (decode or prefill))
    idle_s = None
    if not (decode or prefill or works):
        idle_s = _idle_s(streams, now_s, limits)
    return StepPlan(
        prefill=tuple(prefill),
        decode=tuple(stream.stream_id for stream in decode),
        chunks=tuple(works),
        idle_s=idle_s,
    )


def _choose_rows(
    streams: Sequence[Stream], now_s: float, limits: Limits, costs: StepCosts
) -> tuple[list[Stream], list[PrefillPiece]]:
    """Decode streams and prompt pieces, within the rows of a batch."""
    config = limits.config
    first, rest = _ranked(streams, now_s, limits)
    n_left = config.max_batch_rows
    decode: list[Stream] = []
    for stream in first:
        if stream.can_decode and stream.n_step_rows <= n_left:
            decode.append(stream)
            n_left -= stream.n_step_rows
    n_rows = config.max_batch_rows - n_left
    budget = min(n_left, config.prefill_rows_per_step)
    if config.policy == "latency":
        budget = _rows_in_time(streams, n_rows, budget, now_s, limits, costs)
    prefill = _prefill_pieces([s for s in (*first, *rest) if s.can_prefill], budget)
    n_prefill = sum(piece.n_rows for piece in prefill)
    n_left -= n_prefill
    must_s = costs.step_s(n_rows, n_prefill)
    is_waited_for = any(deadlines.is_startup(stream) for stream in first)
    for stream in rest:
        n_more = n_rows + stream.n_step_rows
        if not stream.can_decode or stream.n_step_rows > n_left:
            continue
        if is_waited_for and costs.step_s(n_more, n_prefill) > STARTUP_SLOWDOWN * must_s:
            break
        decode.append(stream)
        n_rows, n_left = n_more, n_left - stream.n_step_rows
    return decode, prefill


def _ranked(
    streams: Sequence[Stream], now_s: float, limits: Limits
) -> tuple[list[Stream], list[Stream]]:
    """Streams with LM work: those that must run, and those that may join; each by deadline."""
    config = limits.config
    ready = [s for s in streams if s.can_prefill or s.can_decode]
    if config.policy == "throughput":
        return sorted(ready, key=_by_age), []
    startup = sorted((s for s in ready if deadlines.is_startup(s)), key=_by_age)
    slacks = {
        s.stream_id: deadlines.generated_slack_s(s, now_s, limits.frame_s)
        for s in ready
        if not deadlines.is_startup(s)
    }
    steady = sorted(
        (s for s in ready if slacks.get(s.stream_id, config.lead_s) < config.lead_s),
        key=lambda s: (slacks[s.stream_id], s.stream_id),
    )
    # A playing stream that is a whole lead late goes before everything: nothing starves.
    starving = [s for s in steady if slacks[s.stream_id] < -config.lead_s]
    urgent = [s for s in steady if -config.lead_s <= slacks[s.stream_id] <= config.urgent_s]
    relaxed = [s for s in steady if slacks[s.stream_id] > config.urgent_s]
    return [*starving, *startup[: config.startup_batch], *urgent], relaxed


def _by_age(stream: Stream) -> tuple[float, int]:
    return (stream.asked_s, stream.stream_id)


def _rows_in_time(
    streams: Sequence[Stream],
    n_decode: int,
    n_most: int,
    now_s: float,
    limits: Limits,
    costs: StepCosts,
) -> int:
    """Prompt rows that fit a step without making the tightest playing stream late."""
    slacks = [
        deadlines.generated_slack_s(s, now_s, limits.frame_s)
        for s in streams
        if s.wants_pcm and s.can_decode and not deadlines.is_startup(s)
    ]
    n_least = min(n_most, limits.config.page_size)
    if not slacks:
        return n_most
    # Half the slack: the stream needs the other half for the rows of its own next frame.
    room_s = min(slacks) / 2 - costs.step_s(n_decode, 0)
    n_fitting = costs.prefill_rows_in(room_s)
    return max(n_least, min(n_most, n_fitting))


def _prefill_pieces(streams: Sequence[Stream], budget: int) -> list[PrefillPiece]:
    """Cut prompts to the budget, oldest first."""
    pieces: list[PrefillPiece] = []
    for stream in streams:
        counts = _prefill_counts(stream.prefill_left, budget)
        for idx, n_rows in enumerate(counts):
            if n_rows > 0:
                pieces.append(
                    PrefillPiece(
                        stream_id=stream.stream_id,
                        sequence_idx=idx,
                        first_row=stream.n_prefilled[idx],
                        n_rows=n_rows,
                        is_last=n_rows == stream.prefill_left[idx],
                    )
                )
        budget -= sum(counts)
        if budget <= 0:
            break
    return pieces


def _prefill_counts(left: Sequence[int], budget: int) -> list[int]:
    """Rows for each sequence of one stream: everything, or pieces that complete none of them."""
    if sum(left) <= budget:
        return list(left)
    counts = []
    for n_left in left:
        n_rows = min(max(n_left - 1, 0), budget)
        counts.append(n_rows)
        budget -= n_rows
    return counts


def _choose_chunks(
    streams: Sequence[Stream], now_s: float, limits: Limits, costs: StepCosts, *, lm_is_idle: bool
) -> list[ChunkWork]:
    """Detokenizer calls, one for each size that is due or worth it."""
    n_rows = sum(stream.n_step_rows for stream in streams if stream.can_decode)
    pace_s = limits.frame.rows_per_frame * max(limits.row_s, costs.step_s(n_rows, 0))
    by_size: dict[int, list[ChunkWork]] = {}
    for stream in streams:
        work = chunks.next_chunk(stream, now_s, limits, costs, pace_s)
        if work is not None:
            by_size.setdefault(work.n_frames, []).append(work)
    chosen: list[ChunkWork] = []
    for size in sorted(by_size):
        works = sorted(by_size[size], key=lambda w: (w.due_s, w.stream_id))
        works = works[: limits.codec.max_batch]
        if lm_is_idle or _is_worth_it(works, now_s, limits, costs):
            chosen += works
    return chosen


def _is_worth_it(
    works: Sequence[ChunkWork], now_s: float, limits: Limits, costs: StepCosts
) -> bool:
    """A call is made for a chunk that is due soon, or when enough chunks share its fixed cost."""
    n_full = min(costs.n_full_call(works[0].n_frames), limits.codec.max_batch)
    if len(works) >= n_full:
        return True
    return works[0].due_s - now_s <= limits.config.lead_s / 2


def _idle_s(streams: Sequence[Stream], now_s: float, limits: Limits) -> float | None:
    """Seconds until the first stream falls under the lead again."""
    waits = [
        deadlines.generated_slack_s(stream, now_s, limits.frame_s) - limits.config.lead_s
        for stream in streams
        if stream.can_decode or stream.can_prefill
    ]
    return max(0.0, min(waits)) if waits else None
