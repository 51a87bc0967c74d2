"""Limits of sessions, places, message rates and wrong tries. Pure values and a given clock."""

from __future__ import annotations

from collections import Counter, OrderedDict


class TokenBucket:
    """A rate with a burst. It counts into debt, so that a warning can come before the end.

    Args:
        rate_per_s: tokens that come back in a second.
        burst: tokens of a full bucket.
        now_s: monotonic.
    """

    def __init__(self, *, rate_per_s: float, burst: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._n_tokens = burst
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """Take one token. Returns what is left; negative means over the rate."""
        self._n_tokens = min(self._burst, self._n_tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        self._n_tokens = max(self._n_tokens - 1, -2 * self._burst)
        return self._n_tokens

    @property
    def burst(self) -> float:
        """Tokens of a full bucket."""
        return self._burst


class SessionCount:
    """Sockets that are being served."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._n_sessions = 0

    @property
    def n_sessions(self) -> int:
        """Sockets now."""
        return self._n_sessions

    def enter(self) -> bool:
        """Take a place; False when all are taken."""
        if self._n_sessions >= self._max_sessions:
            return False
        self._n_sessions += 1
        return True

    def leave(self) -> None:
        """Give the place back."""
        assert self._n_sessions > 0, "every leave follows its own enter"
        self._n_sessions -= 1


class PlaceCount:
    """Places by name (of a key, an address). Names that hold none take no memory.

    Args:
        max_each: places of one name; None: no bound.
    """

    def __init__(self, max_each: int | None) -> None:
        self._max_each = max_each
        self._taken: Counter[str] = Counter()

    def enter(self, name: str) -> bool:
        """Take a place; False when the name has all of its own."""
        if self._max_each is not None and self._taken[name] >= self._max_each:
            return False
        self._taken[name] += 1
        return True

    def leave(self, name: str) -> None:
        """Give the place back."""
        assert self._taken[name] > 0, "every leave follows its own enter"
        self._taken[name] -= 1
        if not self._taken[name]:
            del self._taken[name]


class WrongTries:
    """Wrong tries by name (an address), at a rate with a burst. Memory is bounded.

    Args:
        rate_per_s: tries that are forgiven in a second.
        burst: tries that may come at once.
        max_names: the name whose last try is longest ago is forgotten past this.
    """

    def __init__(self, *, rate_per_s: float, burst: int, max_names: int = 10_000) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._max_names = max_names
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def add(self, name: str, now_s: float) -> None:
        """A try was wrong."""
        self._tries[name] = (self._n_tries(name, now_s) + 1, now_s)
        self._tries.move_to_end(name)
        if len(self._tries) > self._max_names:
            self._tries.popitem(last=False)

    def wait_s(self, name: str, now_s: float) -> float:
        """Seconds until the name may try again; 0: now."""
        n_over = self._n_tries(name, now_s) + 1 - self._burst
        return max(0.0, n_over / self._rate_per_s)

    def _n_tries(self, name: str, now_s: float) -> float:
        n_tries, at_s = self._tries.get(name, (0.0, now_s))
        return max(0.0, n_tries - (now_s - at_s) * self._rate_per_s)
