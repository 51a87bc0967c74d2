"""What a response sounds like, in order: spoken units and pauses. Event loop only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from models.text.breaks import Pause
from realtime.bridge import StreamFeed
from realtime.speech.text_units import DIGIT_COST

if TYPE_CHECKING:
    from models.base import PromptPlan

LEAST_BUDGET_S: Final = 5.0
BUDGET_S_PER_LETTER: Final = 0.16
"""Read English takes 0.065 s a letter, slow voices with long pauses 0.1."""
CAPITAL_COST: Final = 4
"""Acronyms are spelled: a capital may be a word of its own, `W` has three syllables."""
WIDE_COST: Final = 5
"""A Han character or a kana is a syllable at least."""
_FIRST_WIDE: Final = 0x2E80


@dataclass(slots=True, kw_only=True)
class SpokenSegment:
    """A unit that the engine speaks, or a stretch of streamed text.

    Args:
        feed: of its stream.
        n_characters: of its text; 0 where that is streamed.
        n_before: characters of the units before it.
        is_paced: the engine holds it to the pace of a listener.
        budget_s: what it may last; infinite while more text may come.
        start_s: where it starts in the response, once known.
    """

    feed: StreamFeed
    n_characters: int
    n_before: int
    is_paced: bool
    budget_s: float = math.inf
    start_s: float | None = None


Segment = SpokenSegment | Pause


@dataclass(slots=True)
class WordStream:
    """A stream that is given words while it speaks, and what it has been given."""

    segment: SpokenSegment
    plan: PromptPlan
    text: str

    def has_room(self, piece: str | Pause, capacity: int) -> bool:
        """Whether it can be given `piece` too, in `capacity` bytes of UTF-8; never a pause."""
        if isinstance(piece, Pause):
            return False
        return len(self.text.encode()) + len(piece.encode()) <= capacity


def speech_budget_s(text: str, speed: float) -> float:
    """Seconds that `text` may last at most: a model that says more has lost its way.

    Args:
        text: of a unit, as the model is given it.
        speed: that was asked for; 1 is normal.
    """
    cost = sum(map(_cost, text))
    return (LEAST_BUDGET_S + BUDGET_S_PER_LETTER * cost) / min(speed, 1.0)


def _cost(one: str) -> int:
    if one.isdigit():
        return DIGIT_COST
    if one.isupper():
        return CAPITAL_COST
    return WIDE_COST if ord(one) >= _FIRST_WIDE else 1
