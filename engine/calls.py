"""Which detokenizer call a step makes, and whose chunks go with it. Pure; no torch, no clock.

A call runs beside the LM rows of its step, and the next step begins when both are done. So a call
shorter than the rows costs them little; a longer one holds everybody's rows up. The first kind is
made whenever it is worth it, the second as late as playing streams allow, with as much company as
can be had; a first sound waits for neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine import chunks, deadlines
from engine.chunks import ChunkWork, Ramp
from engine.config import Limits
from engine.costs import UNEVEN, StepCosts
from engine.stream import Stream

MANY = 2
"""A call of so many times `StepCosts.n_full_call` streams waits for no more: its fixed cost is a
third of it."""
MOST = 3
"""One of so many times that takes no more: longer calls hold others up and save little."""
COMPANY_CALLS = 10
"""Whoever is due within the time of so many calls goes with one that is made anyway, in its size:
a call of its own would come soon, and its fixed cost with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LmStep:
    """The LM work that a call would run beside.

    Args:
        seconds: what its rows take.
        must_s: what a step takes without the rows of streams that have time, the host's work in it.
        is_needed: somebody waits for these rows: for a first sound, or because it runs low.
    """

    seconds: float
    must_s: float
    is_needed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Chunks of one size that could be made now, the earliest due first.

    `n_ripe` of them need not wait any longer: as much audio waits as is left to play, or that is
    short, or they are the last of their stream.
    """

    size: int
    works: list[ChunkWork]
    n_ripe: int

    @property
    def due_s(self) -> float:
        """When the first is due; in the past for first sounds and late chunks."""
        return self.works[0].due_s


def choose_call(
    streams: Sequence[Stream], now_s: float, limits: Limits, costs: StepCosts, lm: LmStep
) -> list[ChunkWork]:
    """The chunks of the step's detokenizer call, all of one size; none if it makes none.

    Args:
        streams: those that may be served; read, not changed.
        now_s: monotonic clock.
        limits: chunk sizes, pace, settings.
        costs: what steps and calls take.
        lm: the rows of the step.
    """
    n_rows = sum(stream.n_step_rows for stream in streams if stream.can_decode)
    step_s = max(costs.recent_step_s, costs.step_s(n_rows, 0))
    ramp = chunks.ramp(limits, costs, step_s, lm.must_s)
    calls = _possible_calls(streams, now_s, limits, ramp)
    if limits.config.policy == "throughput":
        return _fullest_call(calls, n_rows, limits, lm)
    call = _pressing_call(calls, now_s, costs, lm)
    if call is None:
        worth = [c for c in calls if _is_worth_it(c, now_s, limits, costs, lm)]
        call = min(worth, key=lambda c: c.due_s, default=None)
    if call is None:
        return []
    works = _with_company(call, streams, now_s, limits, costs, ramp)
    return _cut(call.size, works, streams, now_s, limits, costs, lm)


def _possible_calls(
    streams: Sequence[Stream], now_s: float, limits: Limits, ramp: Ramp
) -> list[_Call]:
    by_size: dict[int, list[ChunkWork]] = {}
    n_ripe: dict[int, int] = {}
    for stream in streams:
        work = chunks.next_chunk(stream, now_s, ramp)
        if work is None:
            continue
        by_size.setdefault(work.n_frames, []).append(work)
        waiting_s = stream.frames_waiting * limits.frame_s
        left_s = work.due_s - now_s
        is_ripe = work.is_last or left_s <= max(waiting_s, limits.config.jitter_s)
        n_ripe[work.n_frames] = n_ripe.get(work.n_frames, 0) + is_ripe
    return [
        _Call(size=size, works=_in_order(works)[: limits.codec.max_batch], n_ripe=n_ripe[size])
        for size, works in by_size.items()
    ]


def _fullest_call(
    calls: Sequence[_Call], n_rows: int, limits: Limits, lm: LmStep
) -> list[ChunkWork]:
    """Without deadlines: a call for half of the streams that run, or what there is at the end."""
    call = max(calls, key=lambda c: len(c.works), default=None)
    n_enough = min(limits.codec.max_batch, max(1, n_rows // 2))
    if call is None or (lm.seconds > 0 and len(call.works) < n_enough):
        return []
    return call.works


def _in_order(works: Sequence[ChunkWork]) -> list[ChunkWork]:
    return sorted(works, key=lambda work: (work.due_s, work.stream_id))


def _pressing_call(
    calls: Sequence[_Call], now_s: float, costs: StepCosts, lm: LmStep
) -> _Call | None:
    """The first call to make if all are to save a playing stream from a gap; None if none presses.

    First sounds are due since they were asked for, so they would always win; but a gap is heard and
    a first sound one step later is not. Late chunks cannot be saved and do not press.
    """
    timely = []
    for call in calls:
        due_s = min((w.due_s for w in call.works if w.due_s >= now_s), default=math.inf)
        if due_s < math.inf:
            timely.append((due_s, call.size, call))
    # Were another call made now, the first of these would come at the end of the step after this.
    ends_s = now_s + 2 * (lm.seconds + costs.overhead_s)
    for due_s, size, call in sorted(timely, key=lambda entry: entry[:2]):
        n_streams = min(len(call.works), MOST * costs.n_full_call(size))
        ends_s += UNEVEN * costs.chunk_s(n_streams, size)
        if due_s < ends_s + costs.chunk_s(1, size):
            return min(timely, key=lambda entry: entry[:2])[2]
    return None


def _is_worth_it(call: _Call, now_s: float, limits: Limits, costs: StepCosts, lm: LmStep) -> bool:
    """A call that does not press is made for a first sound, for ripe chunks, or for many.

    One that holds up rows that somebody needs is made for a first sound, else not before it is due.
    """
    if call.due_s < now_s or lm.seconds == 0:
        return True
    call_s = costs.chunk_s(len(call.works), call.size)
    jitter_s = limits.config.jitter_s
    if lm.is_needed and costs.is_dear(lm.seconds, call_s, jitter_s):
        return call.due_s - now_s <= call_s + jitter_s
    if call.works[-1].due_s == math.inf:
        return True  # Nobody waits for it, so it is as large as it can be.
    n_many = min(MANY * costs.n_full_call(call.size), limits.codec.max_batch)
    return 2 * call.n_ripe >= len(call.works) or len(call.works) >= n_many


def _with_company(
    call: _Call,
    streams: Sequence[Stream],
    now_s: float,
    limits: Limits,
    costs: StepCosts,
    ramp: Ramp,
) -> list[ChunkWork]:
    """The call's chunks, and such of others that are due soon and can fill its size."""
    chosen = {work.stream_id for work in call.works}
    soon_s = now_s + COMPANY_CALLS * costs.chunk_s(1, call.size)
    works = list(call.works)
    for stream in streams:
        is_soon = deadlines.next_chunk_deadline(stream) <= soon_s
        if is_soon and stream.stream_id not in chosen:
            work = chunks.chunk_of_size(stream, call.size, ramp)
            works += [] if work is None else [work]
    n_most = min(MOST * costs.n_full_call(call.size), limits.codec.max_batch)
    return _in_order(works)[:n_most]


def _cut(
    size: int,
    works: list[ChunkWork],
    streams: Sequence[Stream],
    now_s: float,
    limits: Limits,
    costs: StepCosts,
    lm: LmStep,
) -> list[ChunkWork]:
    """As many of the works, the first at least, as leave nobody late who can be in time."""
    first_s = costs.chunk_s(1, size)
    dues_s = [work.due_s for work in works if work.due_s > now_s + first_s]
    left_out = _latest_end_s(streams, works, now_s, limits, costs, lm)
    # A call that ends with the rows beside it holds nobody up, however late somebody is.
    room_s = max(min([left_out, *dues_s]) - now_s, costs.cheap_s(lm.seconds))
    n = len(works)
    while n > 1 and UNEVEN * costs.both_s(lm.seconds, costs.chunk_s(n, size)) > room_s:
        n -= 1
    if first_s < lm.seconds / 2:
        while n > 1 and costs.chunk_s(n, size) > lm.seconds and _has_time(works[n - 1], now_s, lm):
            n -= 1
    return works[:n]


def _has_time(work: ChunkWork, now_s: float, lm: LmStep) -> bool:
    return work.due_s - now_s > 4 * lm.seconds


def _latest_end_s(
    streams: Sequence[Stream],
    works: Sequence[ChunkWork],
    now_s: float,
    limits: Limits,
    costs: StepCosts,
    lm: LmStep,
) -> float:
    """Until when a call may last so that streams outside it still get their next chunk in time."""
    inside = {work.stream_id for work in works}
    least = limits.codec.chunk_frames[0]
    call_s = costs.chunk_s(1, least)
    frame_pace_s = UNEVEN * limits.frame.rows_per_frame * lm.seconds
    latest_s = math.inf
    for stream in streams:
        due_s = deadlines.next_chunk_deadline(stream)
        is_waited_for = due_s < math.inf and not (deadlines.is_startup(stream) or stream.is_paused)
        if is_waited_for and stream.stream_id not in inside:
            n_missing = max(0, least - stream.frames_waiting)
            end_s = due_s - n_missing * frame_pace_s - call_s
            if end_s > now_s + call_s:
                latest_s = min(latest_s, end_s)
    return latest_s
