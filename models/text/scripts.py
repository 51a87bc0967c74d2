"""Which scripts of a text an English model cannot speak. Pure, any thread."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

_SPEAKABLE: Final = frozenset(
    {"LATIN", "MATHEMATICAL", "FEMININE", "MASCULINE", "MODIFIER", "MICRO"}
)
_NAMES: Final = {"CJK": "Han", "IDEOGRAPHIC": "Han", "KATAKANA-HIRAGANA": "Katakana"}


def unspeakable_scripts(text: str) -> tuple[str, ...]:
    """Names of the scripts in `text` that are not Latin, in order of first appearance.

    Only letters count: punctuation, digits and emoji of any origin do not. A Greek letter that
    stands alone (`π`) has an English name and does not count either, unless it joins others.
    """
    if text.isascii():
        return ()
    found: dict[str, None] = {}
    folded = unicodedata.normalize("NFKC", text)
    for place, one in enumerate(folded):
        script = "" if one.isascii() else _script(one)
        if script == "Greek" and not _beside_letter(folded, place):
            continue
        if script:
            found.setdefault(script)
    return tuple(found)


def _beside_letter(text: str, place: int) -> bool:
    """Whether the character at `place` has a letter on either side."""
    return any(
        one.isalpha() for one in (text[max(place - 1, 0) : place], text[place + 1 : place + 2])
    )


@lru_cache(maxsize=4096)
def _script(one: str) -> str:
    """Script name of a letter, from its Unicode name; empty for Latin and for what is no letter."""
    if not unicodedata.category(one).startswith("L"):
        return ""
    first = unicodedata.name(one, "UNKNOWN").split()[0]
    if first in _SPEAKABLE:
        return ""
    return _NAMES.get(first, first.title())
