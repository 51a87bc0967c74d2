"""Which loops of one engine thread step in a turn. Pure; no torch, no clock.

Loops share one device, so a step of one makes the others wait. Where somebody waits for a first
sound, or is about to hear a gap, loops that could wait stand back, but never for long: a text model
behind a voice has to keep up with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from engine import deadlines
from engine.config import Limits
from engine.stream import Stream

MOST_SKIPS: Final = 3
"""Turns in a row that a loop stands back. A text model then still gets a quarter of the turns: 20
tokens per second with the embedded one on two cores, four times what a voice speaks."""
FIRST_TEXT_ROWS: Final = 24
"""Text rows that are waited for like a first sound: a voice needs a clause before it can begin."""


def is_pressing(streams: Iterable[Stream], now_s: float, limits: Limits) -> bool:
    """Whether a loop has a stream that somebody waits for now.

    Args:
        streams: of the loop, admitted.
        now_s: monotonic clock.
        limits: of the loop.
    """
    return any(_is_awaited(stream, now_s, limits) for stream in streams)


def _is_awaited(stream: Stream, now_s: float, limits: Limits) -> bool:
    if not stream.is_paced or stream.is_paused or stream.is_starved:
        return False
    if not stream.wants_pcm:
        return stream.n_rows < FIRST_TEXT_ROWS and not stream.is_generation_done
    if deadlines.is_startup(stream):
        return True
    # What was generated and not sent helps nobody yet: unlike a plan, this counts what was sent.
    return deadlines.slack_s(stream, now_s) < limits.config.urgent_s


class Turns:
    """Says turn by turn which loops step.

    Args:
        n_loops: of the thread.
    """

    def __init__(self, n_loops: int) -> None:
        self._n_skips = [0] * n_loops

    def next(self, pressing: Sequence[bool]) -> list[bool]:
        """The loops that step now: those that press, those that stood back long enough, or all.

        Args:
            pressing: of each loop, whether it is.
        """
        nobody_waits = not any(pressing)
        steps = [
            nobody_waits or presses or n_skips >= MOST_SKIPS
            for presses, n_skips in zip(pressing, self._n_skips, strict=True)
        ]
        self._n_skips = [0 if s else n + 1 for s, n in zip(steps, self._n_skips, strict=True)]
        return steps
