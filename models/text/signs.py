# ruff: noqa: RUF001 -- signs of every kind are this file's matter
"""Signs that nobody reads out: emoji, ornaments, and characters that cannot be seen. Pure.

Ranges, not categories: `°`, `№` and `→` are symbols to Unicode too, and they are read.
Source: Unicode 15.1, emoji-data.txt and Blocks.txt.
"""

from __future__ import annotations

import re
from typing import Final

_EMOJI: Final = (
    "©®℠™"
    "←↑↓-⇿"  # arrows; the one to the right is read as "to"
    "⌀-⏿"
    "Ⓜ"
    "─-◿"  # boxes and shapes; some of them stand before list items, see `BULLETS`
    "☀-❵➔-➿"  # the gap holds digits in circles
    "⤀-⥿⬀-⯿〰〽㊗㊙"
    "\U0001f000-\U0001fbff"
)
BULLETS: Final = "•‣◦▪●"
"""Marks of list items; between words they part as a comma does."""

_INVISIBLE: Final = (
    "\u00ad\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u20e3\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff"
)
"""Soft hyphens, direction marks, variation selectors, the box of a keycap, tags of flags."""
_JOINERS: Final = "\u200c\u200d"
"""Arabic and the scripts of India shape their letters by them (U+0600 to U+1FFF)."""

SIGN: Final = re.compile(f"[{BULLETS}{_EMOJI}{_INVISIBLE}{_JOINERS}]")
EMOJI: Final = re.compile(f"[{_EMOJI}]")
_HIDDEN: Final = re.compile(f"[{_INVISIBLE}{_JOINERS}]")


def is_bullet(one: str) -> bool:
    """Whether a character marks list items."""
    return one in BULLETS


def is_hidden(one: str) -> bool:
    """Whether a character has no place of its own: letters on both sides stay one word."""
    return _HIDDEN.match(one) is not None


def joins_letters(joiner: str, before: str) -> bool:
    """Whether `joiner`, which follows `before`, shapes a script's letters; else it joins emoji."""
    return joiner in _JOINERS and "\u0600" <= before <= "\u1fff" and not is_hidden(before)
