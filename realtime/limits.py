"""Limits of sessions and message rates. Pure values and a given clock; event loop thread."""

from __future__ import annotations


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
