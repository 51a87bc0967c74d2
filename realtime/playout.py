"""What the listener has heard of a response. Sans-I/O, plain values; event loop thread.

The estimate assumes that the client plays at once, without a delay of its own; reports correct it.
"""

from __future__ import annotations


class PlayoutClock:
    """Time line of one response at the client.

    `anchor_s` is the moment at which the first sample was heard, moved on by every gap; `start_s`
    is the same without the gaps.
    """

    def __init__(self) -> None:
        self._first_sent_s = self._start_s = 0.0
        self._anchor_s: float | None = None
        self._sent_s = 0.0
        self._underrun_s = 0.0
        self._worst_late_s = 0.0

    @property
    def sent_s(self) -> float:
        """Seconds of audio handed to the socket."""
        return self._sent_s

    @property
    def underrun_s(self) -> float:
        """Seconds in which the client had nothing to play, by the estimate."""
        return self._underrun_s

    @property
    def worst_late_s(self) -> float:
        """How late any audio came for a client that plays at once and makes no pause, in seconds.

        One that waits so long before it plays hears no gap.
        """
        return self._worst_late_s

    def on_sent(self, duration_s: float, now_s: float) -> None:
        """Audio went out."""
        if self._anchor_s is None:
            self._anchor_s = self._first_sent_s = self._start_s = now_s
        else:
            self._worst_late_s = max(self._worst_late_s, now_s - (self._start_s + self._sent_s))
            gap_s = now_s - (self._anchor_s + self._sent_s)
            if gap_s > 0:
                self._anchor_s += gap_s
                self._underrun_s += gap_s
        self._sent_s += duration_s

    def report(self, heard_s: float, now_s: float) -> float:
        """The client says how much it has heard.

        Returns:
            `heard_s` within what was sent, and within the time since then: an off-by-some report
            is no error, and none may make this client more urgent than one that plays at once.
        """
        heard_s = max(0.0, min(heard_s, self._sent_s, now_s - self._first_sent_s))
        if self._anchor_s is None:
            return heard_s
        anchor_s = now_s - heard_s
        if heard_s >= self._sent_s:
            # It waits for us: since when, it does not say, and none of that is a delay of its own.
            anchor_s = min(anchor_s, self._anchor_s)
        self._start_s = max(self._first_sent_s, self._start_s + anchor_s - self._anchor_s)
        self._anchor_s = anchor_s
        return heard_s

    def heard_s(self, now_s: float) -> float:
        """Seconds heard by now."""
        if self._anchor_s is None:
            return 0.0
        return min(max(now_s - self._anchor_s, 0.0), self._sent_s)

    def ahead_s(self, now_s: float) -> float:
        """Seconds of audio that the client still has to play."""
        return self._sent_s - self.heard_s(now_s)
