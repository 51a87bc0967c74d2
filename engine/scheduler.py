"""What one step runs: prompt pieces, decode rows and chunks. A pure function; no torch, no clock.

Streams that have not made a sound go first, in small batches; streams that play are served by
earliest deadline; those far enough ahead are left out. Streams that are not paced take the room
that these leave. Nothing here changes a stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine import chunks, deadlines
from engine.chunks import ChunkWork
from engine.config import Limits
from engine.costs import StepCosts
from engine.stream import Stream
from engine.types import StreamId

CHEAP_SLOWDOWN = 1.25
"""Streams with time to spare join others' batch while they make it at most this much slower."""

COMFORT = 0.5
"""Part of the lead that a playing stream keeps in reserve: below it the stream runs in every step
and its chunks wait for no company. At low load all are above it and startup batches stay small; at
high load few are, and batches grow by themselves."""


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
        chunks: detokenizer work; all of one `n_frames`: one call.
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
    streams = _served_now(list(streams), now_s, limits)
    decode, prefill = _choose_rows(streams, now_s, limits, costs)
    n_decode = sum(stream.n_step_rows for stream in decode)
    lm_s = costs.step_s(n_decode, sum(piece.n_rows for piece in prefill))
    works = _choose_chunks(streams, now_s, limits, costs, lm_s)
    idle_s = None
    if not (decode or prefill or works):
        idle_s = _idle_s(streams, now_s, limits)
    return StepPlan(
        prefill=tuple(prefill),
        decode=tuple(stream.stream_id for stream in decode),
        chunks=tuple(works),
        idle_s=idle_s,
    )


def _served_now(streams: list[Stream], now_s: float, limits: Limits) -> list[Stream]:
    """All streams, or only the paced ones while one of them has not made a sound or runs low."""
    config = limits.config
    paced = [stream for stream in streams if stream.is_paced]
    if len(paced) == len(streams) or config.policy == "throughput":
        return streams
    is_in_need = any(
        deadlines.generated_slack_s(stream, now_s, limits.frame_s) < config.urgent_s
        for stream in paced
        if not (stream.is_paused or stream.is_starved)
    )
    return paced if is_in_need else streams


def _choose_rows(
    streams: Sequence[Stream], now_s: float, limits: Limits, costs: StepCosts
) -> tuple[list[Stream], list[PrefillPiece]]:
    """Decode streams and prompt pieces, within the rows of a batch."""
    config = limits.config
    ranks = _ranked(streams, now_s, limits)
    must = [*ranks.starving, *ranks.startup, *ranks.urgent]
    # Prompts keep up to half a batch, or urgent rows could hold new streams off for ever.
    n_wanted = sum(sum(stream.prefill_left) for stream in must if stream.can_prefill)
    n_kept = min(n_wanted, max(2, config.max_batch_rows // 2))
    decode = _fitting(must, config.max_batch_rows - n_kept)
    n_decode = sum(stream.n_step_rows for stream in decode)
    budget = min(config.max_batch_rows - n_decode, config.prefill_rows_per_step)
    if config.policy == "latency":
        budget = _rows_in_time(streams, n_decode, budget, now_s, limits, costs)
    prefill = _prefill_pieces(
        [s for s in (*must, *ranks.relaxed, *ranks.unpaced) if s.can_prefill], budget
    )
    n_prefill = sum(piece.n_rows for piece in prefill)
    for joining, has_priority in ((ranks.relaxed, ranks.startup), (ranks.unpaced, must)):
        n_decode = sum(stream.n_step_rows for stream in decode)
        n_room = config.max_batch_rows - n_prefill - n_decode
        if has_priority:
            n_room = _cheap_rows(n_decode, n_prefill, n_room, costs)
        decode += _fitting(joining, n_room)
    return decode, prefill


def _cheap_rows(n_decode: int, n_prefill: int, n_room: int, costs: StepCosts) -> int:
    """As many of `n_room` more rows as do not make a step much slower."""
    most_s = CHEAP_SLOWDOWN * costs.step_s(n_decode, n_prefill)
    while n_room > 0 and costs.step_s(n_decode + n_room, n_prefill) > most_s:
        n_room //= 2
    return n_room


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Streams with LM work, each rank in the order of service."""

    starving: list[Stream]
    startup: list[Stream]
    urgent: list[Stream]
    relaxed: list[Stream]
    unpaced: list[Stream]


def _ranked(streams: Sequence[Stream], now_s: float, limits: Limits) -> _Ranks:
    config = limits.config
    ready = [s for s in streams if s.can_prefill or s.can_decode]
    if config.policy == "throughput":
        return _Ranks([], [], sorted(ready, key=_by_age), [], [])
    startup = sorted((s for s in ready if deadlines.is_startup(s)), key=_by_age)
    playing = sorted(
        (deadlines.generated_slack_s(s, now_s, limits.frame_s), *_by_age(s), s)
        for s in ready
        if s.is_paced and not deadlines.is_startup(s)
    )
    comfort_s = COMFORT * config.lead_s
    return _Ranks(
        # A playing stream that is a whole lead late goes before everything: nothing starves.
        starving=[s for slack_s, *_, s in playing if slack_s < -config.lead_s],
        startup=startup[: config.startup_batch],
        urgent=[s for slack_s, *_, s in playing if -config.lead_s <= slack_s <= comfort_s],
        relaxed=[s for slack_s, *_, s in playing if comfort_s < slack_s < config.lead_s],
        unpaced=sorted((s for s in ready if not s.is_paced), key=_by_age),
    )


def _fitting(streams: Sequence[Stream], n_rows: int) -> list[Stream]:
    """Streams that can decode, in order, as many as `n_rows` hold."""
    chosen = []
    for stream in streams:
        if stream.can_decode and stream.n_step_rows <= n_rows:
            chosen.append(stream)
            n_rows -= stream.n_step_rows
    return chosen


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
    """Prompt rows that fit a step without making a playing stream late that could be in time."""
    waiting = [stream for stream in streams if stream.can_prefill]
    room_s = _room_s(streams, costs.step_s(n_decode, 0), now_s, limits, costs)
    if not waiting or room_s == math.inf:
        return n_most
    # A smaller piece than this takes as long as this one, nearly: cutting finer helps nobody.
    n_least = max(limits.config.page_size, costs.prefill.n_even)
    n_fitting = costs.prefill.n_within(room_s)
    n_wanted = sum(sum(stream.prefill_left) for stream in waiting)
    has_waited = now_s - min(stream.asked_s for stream in waiting) >= limits.config.urgent_s
    if n_fitting < min(n_least, n_wanted) and not has_waited:
        return 0
    return min(n_most, max(n_least, n_fitting))


def _room_s(
    streams: Sequence[Stream], step_s: float, now_s: float, limits: Limits, costs: StepCosts
) -> float:
    """How much longer the step may be before a playing stream that is in time becomes late."""
    rows_per_frame = limits.frame.rows_per_frame
    call_s = costs.chunk_s(1, limits.codec.chunk_frames[0])
    room_s = math.inf
    for stream in streams:
        if not stream.can_decode or not stream.wants_pcm or deadlines.is_startup(stream):
            continue
        n_missing = rows_per_frame - stream.n_rows % rows_per_frame
        slack_s = deadlines.generated_slack_s(stream, now_s, limits.frame_s)
        spare_s = slack_s - n_missing * step_s - call_s
        if spare_s > 0:
            room_s = min(room_s, spare_s)
    return room_s


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
    streams: Sequence[Stream], now_s: float, limits: Limits, costs: StepCosts, lm_s: float
) -> list[ChunkWork]:
    """The most pressing detokenizer call that is due or worth it: works of one size, or none.

    One call a step: it hides beside the LM rows, and the others have more company a step later.
    """
    n_rows = sum(stream.n_step_rows for stream in streams if stream.can_decode)
    step_s = max(costs.recent_step_s, costs.step_s(n_rows, 0))
    ramp = chunks.ramp(limits, costs, step_s)
    by_size: dict[int, list[ChunkWork]] = {}
    for stream in streams:
        work = chunks.next_chunk(stream, now_s, ramp)
        if work is not None:
            by_size.setdefault(work.n_frames, []).append(work)
    calls = [
        sorted(works, key=lambda w: (w.due_s, w.stream_id))[: limits.codec.max_batch]
        for works in by_size.values()
    ]
    worth = [w for w in calls if lm_s == 0 or _is_worth_it(w, now_s, limits, costs)]
    return min(worth, key=lambda works: _pressure(works, now_s, lm_s, costs), default=[])


def _pressure(
    works: Sequence[ChunkWork], now_s: float, lm_s: float, costs: StepCosts
) -> tuple[bool, float]:
    """What goes first: a call that still saves a playing stream from a gap, then the oldest due.

    First sounds are due since they were asked for, so they would always win; but a gap is heard and
    a first sound one step later is not. `lm_s` is what the rows of a step take.
    """
    due_s = min((w.due_s for w in works if w.due_s >= now_s), default=math.inf)
    call_s = costs.chunk_s(len(works), works[0].n_frames)
    # Were another call made now, this one would come at the end of the step after this.
    is_last_chance = due_s - now_s < 2 * (lm_s + call_s)
    return not is_last_chance, works[0].due_s


def _is_worth_it(
    works: Sequence[ChunkWork], now_s: float, limits: Limits, costs: StepCosts
) -> bool:
    """A call is made for a chunk that is due soon or sets its stream's slot free, or for many.

    Also for one of a stream that is not paced: it is as large as it can be.
    """
    n_full = min(costs.n_full_call(works[0].n_frames), limits.codec.max_batch)
    if len(works) >= n_full or any(work.is_last or work.due_s == math.inf for work in works):
        return True
    return works[0].due_s - now_s <= COMFORT * limits.config.lead_s


def _idle_s(streams: Sequence[Stream], now_s: float, limits: Limits) -> float | None:
    """Seconds until the first stream falls under the lead again."""
    waits = [
        deadlines.generated_slack_s(stream, now_s, limits.frame_s) - limits.config.lead_s
        for stream in streams
        if stream.can_decode or stream.can_prefill
    ]
    return max(0.0, min(waits)) if waits else None
