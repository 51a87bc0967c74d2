"""What one step runs: prompt pieces, decode rows and chunks. A pure function; no torch, no clock.

Streams that have not made a sound go first, in small batches; streams that play are served by
earliest deadline; those far enough ahead are left out. Streams that are not paced take the room
that these leave. No step is made so long that a playing stream which can be in time becomes late.
Nothing here changes a stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine import deadlines
from engine.calls import LmStep, choose_call
from engine.chunks import ChunkWork
from engine.config import Limits
from engine.costs import UNEVEN, StepCosts
from engine.stream import Stream
from engine.types import StreamId

COMFORT = 0.5
"""Part of the lead that a playing stream keeps in reserve: below it the stream runs in every step
and it counts as needing rows. At low load all are above it and startup batches stay small; at
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
    rows = _choose_rows(streams, now_s, limits, costs)
    works = choose_call(streams, now_s, limits, costs, rows.lm)
    decode = [*rows.decode, *_rows_beside(works, rows, limits, costs)]
    idle_s = None
    if not (decode or rows.prefill or works):
        idle_s = _idle_s(streams, now_s, limits)
    return StepPlan(
        prefill=tuple(rows.prefill),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """LM work of a step.

    Args:
        decode: streams that generate a row.
        prefill: prompt pieces.
        spare: streams that would take a row if it cost nobody anything.
        lm: what the work takes.
    """

    decode: list[Stream]
    prefill: list[PrefillPiece]
    spare: list[Stream]
    lm: LmStep

    @property
    def n_decode(self) -> int:
        """Decode rows."""
        return _n_rows(self.decode)

    @property
    def n_prefill(self) -> int:
        """Prompt rows."""
        return sum(piece.n_rows for piece in self.prefill)


def _choose_rows(
    streams: Sequence[Stream], now_s: float, limits: Limits, costs: StepCosts
) -> _Rows:
    """Decode streams and prompt pieces, within the rows of a batch."""
    config = limits.config
    ranks = _ranked(streams, now_s, limits)
    must = [*ranks.starving, *ranks.startup, *ranks.urgent]
    # Prompts keep up to half a batch, or urgent rows could hold new streams off for ever.
    n_wanted = sum(sum(stream.prefill_left) for stream in must if stream.can_prefill)
    n_kept = min(n_wanted, max(2, config.max_batch_rows // 2))
    decode = _fitting(must, config.max_batch_rows - n_kept)
    n_must = _n_rows(decode)
    must_s = costs.step_s(n_must, 0) + costs.overhead_s
    most_s = math.inf
    budget = min(config.max_batch_rows - n_must, config.prefill_rows_per_step)
    if config.policy == "latency":
        step_most_s = _most_step_s(streams, must_s, now_s, limits, costs)
        budget = _rows_in_time(streams, budget, step_most_s - must_s, now_s, limits, costs)
        most_s = step_most_s - costs.overhead_s
    prefill = _prefill_pieces(
        [s for s in (*must, *ranks.relaxed, *ranks.unpaced) if s.can_prefill], budget
    )
    n_prefill = sum(piece.n_rows for piece in prefill)
    spare: list[Stream] = []
    for joining, has_priority in ((ranks.relaxed, ranks.startup), (ranks.unpaced, must)):
        n_decode = _n_rows(decode)
        step_s = costs.step_s(n_decode, n_prefill)
        n_room = _rows_within(
            min(most_s, costs.cheap_s(step_s)) if has_priority else most_s,
            n_decode,
            n_prefill,
            config.max_batch_rows - n_prefill - n_decode,
            costs,
        )
        chosen = _fitting(joining, n_room)
        decode += chosen
        spare += joining[len(chosen) :]
    seconds = costs.step_s(_n_rows(decode), n_prefill)
    lm = LmStep(seconds=seconds, must_s=must_s, is_needed=bool(must))
    return _Rows(decode=decode, prefill=prefill, spare=spare, lm=lm)


def _rows_beside(
    works: Sequence[ChunkWork], rows: _Rows, limits: Limits, costs: StepCosts
) -> list[Stream]:
    """Streams that take a row for nothing, beside a detokenizer call that outlasts the others'."""
    if not works or not rows.spare:
        return []
    call_s = costs.chunk_s(len(works), works[0].n_frames)
    n_room = limits.config.max_batch_rows - rows.n_decode - rows.n_prefill
    return _fitting(rows.spare, _rows_within(call_s, rows.n_decode, rows.n_prefill, n_room, costs))


def _rows_within(
    seconds: float, n_decode: int, n_prefill: int, n_room: int, costs: StepCosts
) -> int:
    """As many of `n_room` more rows as a step of `seconds` holds: all, or half, or a quarter ..."""
    while n_room > 0 and costs.step_s(n_decode + n_room, n_prefill) > seconds:
        n_room //= 2
    return n_room


def _n_rows(streams: Sequence[Stream]) -> int:
    return sum(stream.n_step_rows for stream in streams)


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
    n_most: int,
    room_s: float,
    now_s: float,
    limits: Limits,
    costs: StepCosts,
) -> int:
    """Prompt rows that fit `room_s`: without making a playing stream late that could be in time."""
    waiting = [stream for stream in streams if stream.can_prefill]
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


def _most_step_s(
    streams: Sequence[Stream], step_s: float, now_s: float, limits: Limits, costs: StepCosts
) -> float:
    """Seconds that this step may take before a stream that is in time becomes late.

    Infinite if that cannot happen. `step_s` is what it takes with those rows only that must run;
    later steps are taken to be like that. A stream that can only just be in time allows no more.
    """
    rows_per_frame = limits.frame.rows_per_frame
    last_s = costs.both_s(step_s, costs.chunk_s(1, limits.codec.chunk_frames[0]))
    pace_s = min(last_s, costs.cheap_s(step_s))
    most_s = math.inf
    for stream in streams:
        if not stream.can_decode or not stream.wants_pcm or deadlines.is_startup(stream):
            continue
        slack_s = deadlines.slack_s(stream, now_s)
        frame_slack_s = slack_s + stream.frames_waiting * limits.frame_s
        n_missing = rows_per_frame - stream.n_rows % rows_per_frame
        # The chunk of a frame is made in the step after the one that completes the frame.
        left_s = (n_missing - 1) * pace_s + last_s
        if frame_slack_s <= left_s:
            continue
        own_s = frame_slack_s - UNEVEN * left_s
        if stream.frames_waiting and slack_s > last_s:
            own_s = min(own_s, slack_s)  # What waits goes first, in this very step.
        most_s = min(most_s, max(step_s, own_s / UNEVEN - (pace_s - step_s)))
    return most_s


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


def _idle_s(streams: Sequence[Stream], now_s: float, limits: Limits) -> float | None:
    """Seconds until the first stream falls under the lead again."""
    waits = [
        deadlines.generated_slack_s(stream, now_s, limits.frame_s) - limits.config.lead_s
        for stream in streams
        if stream.can_decode or stream.can_prefill
    ]
    return max(0.0, min(waits)) if waits else None
