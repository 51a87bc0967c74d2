# ruff: noqa: RUF001, RUF002 -- phoneme letters look like Latin ones
"""The unit inventory of `pico`: what the text front emits and the speech model reads.

A unit is a consonant, or a vowel with its stress and length in one symbol (`ˈiː`), or a space or
punctuation mark. Every unit spells out in characters of the teacher voice's phoneme table
(espeak-style IPA), one table row a character, so the teacher can speak exactly these units and
the alignment of units with its speech is the identity. Pure values, no I/O, any thread.

The order is fixed for good: ids are baked into trained weights. It equals that of the first
trial weights, which is why a few symbols of loan words are here that the front never emits.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

PAD_ID: Final = 0
BOS_ID: Final = 1
BOA_ID: Final = 2

UNITS: Final[tuple[str, ...]] = (
    *("<pad>", "<bos>", "<boa>", " ", ",", ".", "?", "!", ";", ":", "-"),
    *("aɪ", "aʊ", "b", "d", "dʒ", "eɪ", "f", "h", "i", "iə", "iː", "j", "k", "l", "m", "n", "n̩"),
    *("oʊ", "p", "r", "s", "t", "tʃ", "uː", "v", "w", "x", "z", "æ", "ð", "ŋ", "ɐ", "ɑː", "ɔ"),
    *("ɔɪ", "ɔː", "ə", "ɚ", "ɛ", "ɜː", "ɡ", "ɪ", "ɹ", "ɾ", "ʃ", "ʊ", "ʌ", "ʒ", "ʔ", "ʲ"),
    *("ˈaɪ", "ˈaʊ", "ˈeɪ", "ˈiə", "ˈiː", "ˈoʊ", "ˈuː", "ˈæ", "ˈɑː", "ˈɑ̃", "ˈɔ", "ˈɔɪ", "ˈɔː"),
    *("ˈə", "ˈɚ", "ˈɛ", "ˈɜː", "ˈɪ", "ˈʊ", "ˈʌ"),
    *("ˌaɪ", "ˌaʊ", "ˌeɪ", "ˌiə", "ˌiː", "ˌn̩", "ˌoʊ", "ˌuː", "ˌæ", "ˌɑː", "ˌɔ", "ˌɔɪ", "ˌɔː"),
    *("ˌɛ", "ˌɜː", "ˌɪ", "ˌʊ", "ˌʌ", "θ", "ᵻ"),
)
"""Unit strings in id order: 3 control ids, space and punctuation, then phoneme units."""

N_UNITS: Final = len(UNITS)
SPACE_ID: Final = UNITS.index(" ")
PUNCTUATION: Final = ",.?!;:-"
SENTENCE_ENDS: Final = ".?!"
FIRST_PHONEME_ID: Final = UNITS.index("-") + 1

_IDS: Final = {unit: unit_id for unit_id, unit in enumerate(UNITS)}
_VOWELS: Final = frozenset("aeioɑɐæɔəɚɛɜɪuʊʌᵻ")
_LONGEST: Final = max(len(unit) for unit in UNITS)


class UnitError(ValueError):
    """A string is no unit, or an id is out of range; the message names it."""


def unit_id(unit: str) -> int:
    """Id of one unit string.

    Raises:
        UnitError: the inventory has no such unit.
    """
    try:
        return _IDS[unit]
    except KeyError:
        raise UnitError(f"no unit {unit!r}; the inventory has {N_UNITS} units") from None


def units_to_ids(units: Iterable[str]) -> tuple[int, ...]:
    """Ids of unit strings, in order."""
    return tuple(unit_id(unit) for unit in units)


def ids_to_units(ids: Iterable[int]) -> tuple[str, ...]:
    """Unit strings of ids, in order.

    Raises:
        UnitError: an id is outside `0 .. N_UNITS - 1`.
    """
    found: list[str] = []
    for one in ids:
        if not 0 <= one < N_UNITS:
            raise UnitError(f"no unit id {one}; ids are 0..{N_UNITS - 1}")
        found.append(UNITS[one])
    return tuple(found)


def split_ipa(ipa: str) -> tuple[int, ...]:
    """Cut a phoneme string (with spaces and punctuation) into unit ids, longest unit first.

    Raises:
        UnitError: a character starts no unit.
    """
    ids: list[int] = []
    start = 0
    while start < len(ipa):
        for size in range(min(_LONGEST, len(ipa) - start), 0, -1):
            found = _IDS.get(ipa[start : start + size])
            if found is not None:
                ids.append(found)
                start += size
                break
        else:
            raise UnitError(f"no unit starts at {ipa[start:]!r}")
    return tuple(ids)


def join_units(ids: Iterable[int]) -> str:
    """The phoneme string of unit ids; control ids are left out."""
    return "".join(UNITS[one] for one in ids if one > BOA_ID)


def voice_characters(one: int) -> tuple[str, ...]:
    """Characters of a unit in the teacher voice's phoneme table (NFD, one table row each)."""
    return () if one <= BOA_ID else tuple(unicodedata.normalize("NFD", UNITS[one]))


def is_vowel(one: int) -> bool:
    """Whether a unit is a vowel (stressed or not); syllabic n counts as a consonant."""
    unit = UNITS[one].lstrip("ˈˌ")
    return one >= FIRST_PHONEME_ID and unit[0] in _VOWELS


def has_primary_stress(ids: Sequence[int]) -> bool:
    """Whether one of the units carries primary stress."""
    return any(UNITS[one].startswith("ˈ") for one in ids)


def restress(one: int, mark: str) -> int:
    """The unit of the same vowel with another stress mark (`ˈ`, `ˌ` or none).

    Reduced vowels take the full vowel that sounds alike; where the inventory has no such unit,
    and for consonants, the unit itself.
    """
    plain = UNITS[one].lstrip("ˈˌ")
    if mark:
        plain = _FULL.get(plain, plain)
    return _IDS.get(mark + plain, one) if is_vowel(one) else one


_FULL: Final = {"ə": "ʌ", "ɐ": "ʌ", "ɚ": "ɜː", "ᵻ": "ɪ", "i": "iː"}
