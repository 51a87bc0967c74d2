"""Whether a server under a steady load stays as it is: what must be flat, and by how much. No I/O.

What a server holds while it is loaded goes up and down with the callers, so it is held against
itself: the last quarter of the time against the second (the first warms caches). Of memory, which
hardly follows the callers, the medians; of descriptors, tasks and threads, which do, the lowest
values while as many sessions were open: a leak lifts that floor, a busier quarter does not. What
belongs to callers must be gone with them: sessions, streams,
slots and queued streams are 0 when the server rests, descriptors and tasks are where they were.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Sample = Mapping[str, float]
"""Numbers of a server at `at_s` by name, see `loadtest.server_state`."""
MB: Final = 1e6
NAMES: Final = ("rss_bytes", "n_descriptors", "n_tasks", "n_threads")
EMPTY: Final = ("n_sessions", "n_streams", "n_active", "n_queued", "n_slots_used")
"""What callers hold; pages are not among them, for the cache of prompts keeps some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """Growth that counts as none.

    Args:
        rss_pct: of resident memory, in percent of what it was.
        rss_mb: the same in megabytes; the larger of both holds.
        count: of descriptors, tasks and threads.
    """

    rss_pct: float = 3.0
    rss_mb: float = 16.0
    count: float = 4.0

    def of(self, name: str, before: float) -> float:
        """How much `name` may grow from `before`."""
        if name == "rss_bytes":
            return max(before * self.rss_pct / 100.0, self.rss_mb * MB)
        return max(self.count, 0.2 * before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A number under load in the second and in the last quarter, and how much it may grow."""

    name: str
    early: float
    late: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        """Whether it has grown no more than it may. Less is no fault."""
        return self.late - self.early <= self.allowed


def drifts(samples: Sequence[Sample], slack: Slack) -> list[Drift]:
    """How the numbers of `NAMES` moved under load; those that no sample has are left out."""
    if not samples:
        return []
    begin_s, end_s = samples[0]["at_s"], samples[-1]["at_s"]
    quarter_s = (end_s - begin_s) / 4
    second = [s for s in samples if begin_s + quarter_s <= s["at_s"] < begin_s + 2 * quarter_s]
    last = [s for s in samples if s["at_s"] >= end_s - quarter_s]
    n_sessions = _usual_sessions(second, last)
    found = []
    for name in NAMES:
        is_memory = name == "rss_bytes"
        early = _values(name, second, None if is_memory else n_sessions)
        late = _values(name, last, None if is_memory else n_sessions)
        if early and late:
            typical = statistics.median if is_memory else min
            before = typical(early)
            allowed = slack.of(name, before)
            found.append(Drift(name=name, early=before, late=typical(late), allowed=allowed))
    return found


def _usual_sessions(second: Sequence[Sample], last: Sequence[Sample]) -> float | None:
    """How many sessions were open most often in both; None if no number was seen in both."""
    early, late = (Counter(one.get("n_sessions") for one in part) for part in (second, last))
    both = {n: min(early[n], late[n]) for n in early.keys() & late.keys() if n is not None}
    return max(both, key=lambda n: (both[n], -n), default=None)


def _values(name: str, samples: Sequence[Sample], n_sessions: float | None) -> list[float]:
    """Of the samples with so many sessions, or of all for None."""
    return [
        one[name]
        for one in samples
        if name in one and (n_sessions is None or one.get("n_sessions") == n_sessions)
    ]


def faults_of_soak(
    samples: Sequence[Sample], before: Sample, after: Sample, slack: Slack
) -> list[str]:
    """What did not stay as it was; empty: all of it did.

    Args:
        samples: under load, in order.
        before: of the resting server that had spoken already.
        after: of the resting server, the callers gone.
        slack: what counts as flat.
    """
    faults = []
    found = drifts(samples, slack)
    missing = [name for name in NAMES if name not in {one.name for one in found}]
    faults += [f"{name}: the server's /metrics does not tell it" for name in missing]
    for one in found:
        if not one.is_flat:
            faults.append(f"{one.name} grew from {one.early:.0f} to {one.late:.0f} under load")
    faults += [f"{name} is {after[name]:.0f} at rest" for name in EMPTY if after.get(name)]
    for name in ("n_descriptors", "n_tasks"):
        if after.get(name, 0.0) > before.get(name, 0.0) + slack.count:
            faults.append(f"{name}: {before[name]:.0f} before, {after[name]:.0f} at rest after")
    return faults


def is_at_rest(sample: Sample) -> bool:
    """Whether nobody is served."""
    return not any(sample.get(name) for name in EMPTY)
