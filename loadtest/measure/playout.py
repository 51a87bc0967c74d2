"""What a listener hears of frames that came at known times. No I/O, no clock.

The listener starts a fixed time after the first frame (the prebuffer) and plays without a pause. A
frame that has not come when it is due makes an underrun: silence until it comes, after which the
listener goes on at once, so that everything later is due later by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PREBUFFERS_MS: Final = (0, 100, 200)
ROUNDING_S: Final = 1e-6
"""Sums of frame durations are not exact."""
BURST_S: Final = 0.002
"""Frames that follow each other within this were sent together: one chunk of the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A frame: when it came, and how much sound it holds. Both in s."""

    received_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Underrun:
    """Silence where sound was due: from `at_s`, for `duration_s`."""

    at_s: float
    duration_s: float


def underruns(arrivals: Sequence[Arrival], prebuffer_s: float) -> list[Underrun]:
    """The silences that a listener hears who waits `prebuffer_s` after the first frame."""
    if not arrivals:
        return []
    found = []
    due_s = arrivals[0].received_s + prebuffer_s
    for arrival in arrivals:
        late_s = arrival.received_s - due_s
        if late_s > ROUNDING_S:
            found.append(Underrun(at_s=due_s, duration_s=late_s))
            due_s = arrival.received_s
        due_s += arrival.duration_s
    return found


def heard_s(arrivals: Sequence[Arrival], offset_s: float) -> float | None:
    """When the sound at `offset_s` is heard without a prebuffer; None if it never came."""
    due_s, played_s = 0.0, 0.0
    for arrival in arrivals:
        start_s = max(due_s, arrival.received_s)
        if offset_s < played_s + arrival.duration_s:
            return start_s + (offset_s - played_s)
        played_s += arrival.duration_s
        due_s = start_s + arrival.duration_s
    return None


def end_s(arrivals: Sequence[Arrival]) -> float | None:
    """When the last sound is over without a prebuffer; None without sound."""
    due_s: float | None = None
    for arrival in arrivals:
        start_s = arrival.received_s if due_s is None else max(due_s, arrival.received_s)
        due_s = start_s + arrival.duration_s
    return due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Viability:
    """Chunks after the first, and how many of them were on time."""

    n_chunks: int
    n_on_time: int


def viability(arrivals: Sequence[Arrival]) -> Viability:
    """Chunk i >= 1 is on time iff the audio before it lasts longer than it took to come.

    Time counts from the first chunk, and a late chunk moves no due time: unlike `underruns`, one
    stall makes every chunk late until the server has caught up. A chunk is what came in one burst.

    Source: the streaming viability of VoxServe's benchmark (goodput.py), where a chunk is a read of
        the HTTP stream.
    """
    chunks: list[Arrival] = []
    last_s = 0.0
    for arrival in arrivals:
        if chunks and arrival.received_s - last_s <= BURST_S:
            first = chunks[-1]
            chunks[-1] = Arrival(
                received_s=first.received_s, duration_s=first.duration_s + arrival.duration_s
            )
        else:
            chunks.append(arrival)
        last_s = arrival.received_s
    before_s, n_on_time = 0.0, 0
    for idx, chunk in enumerate(chunks):
        if idx:
            n_on_time += before_s > chunk.received_s - chunks[0].received_s
        before_s += chunk.duration_s
    return Viability(n_chunks=max(0, len(chunks) - 1), n_on_time=n_on_time)
