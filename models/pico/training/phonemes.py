# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""From the dictionaries' compressed phoneme alphabet to the units of `models.pico.units`.

The source alphabet (misaki, US) writes one letter a diphthong or affricate and no length marks;
the units follow the habits of espeak-style en-us, which the teacher voice was trained on. Build
time only, pure values.
"""

from __future__ import annotations

from typing import Final

from models.pico import units

VOWELS: Final = frozenset("AIOWYæɑɔəɛɜɪiuʊʌᵻᵊ")
STRESSES: Final = "ˈˌ"
_SIMPLE: Final = dict(
    zip("AIOWYʤʧɑɔɜuᵊTgr", "eɪ aɪ oʊ aʊ ɔɪ dʒ tʃ ɑː ɔː ɜː uː ə ɾ ɡ ɹ".split(), strict=True)  # noqa: SIM905
)
_STRESSED: Final = {"ə": "ʌ", "ɚ": "ɜː", "ᵻ": "ɪ", "i": "iː", "iə": "iə", "ɐ": "ʌ"}
"""Vowels that have no stressed unit, or another one, and what stands for them."""


def convert(source: str, spelling: str = "") -> tuple[int, ...]:
    """Unit ids of one dictionary pronunciation.

    Args:
        source: the pronunciation in the source alphabet, stress marks before vowels.
        spelling: the word, for rules that look at letters (initial `a` as in `about`).

    Raises:
        UnitError: a symbol that has no unit.
    """
    marks = list(source)
    found: list[str] = []
    at = 0
    while at < len(marks):
        at = _convert_one(marks, at, found)
    if found and found[0] == "ə" and spelling[:1].lower() == "a":
        found[0] = "ɐ"
    return units.units_to_ids(found)


def _convert_one(marks: list[str], at: int, found: list[str]) -> int:
    """Append the unit that starts at `at`; return where the next one starts."""
    stress = ""
    while marks[at] in STRESSES:
        stress, at = marks[at], at + 1
        if at == len(marks):
            return at
    mark = marks[at]
    after = at + 1
    if mark not in VOWELS:
        if mark == "n" and found and found[-1] == "ʔ" and not _vowel_at(marks, after):
            mark = "n̩"
        found.append(_SIMPLE.get(mark, mark))
        return after
    vowel, after = _vowel(marks, at, stress)
    if stress:
        vowel = _STRESSED.get(vowel, vowel)
        if vowel == "ə" or stress + vowel not in units.UNITS:
            stress = ""
    found.append(stress + vowel)
    return after


def _vowel(marks: list[str], at: int, stress: str) -> tuple[str, int]:
    """The unstressed form of the vowel at `at`, and where the next symbol starts."""
    mark, after = marks[at], at + 1
    follows_r = after < len(marks) and marks[after] == "ɹ"
    if mark in "əɜ" and follows_r and not _vowel_at(marks, after + 1):
        return ("ɚ" if mark == "ə" else "ɜː"), after + 1
    if mark == "i":
        schwa = after < len(marks) and marks[after] == "ə"
        if schwa and not (
            marks[after + 1 : after + 2] == ["ɹ"] and not _vowel_at(marks, after + 2)
        ):
            return "iə", after + 1
        return ("iː" if _is_long_i(marks, at, stress) else "i"), after
    return _SIMPLE.get(mark, mark), after


def _vowel_at(marks: list[str], at: int) -> bool:
    """Whether a vowel (perhaps behind its stress mark) starts at `at`."""
    while at < len(marks) and marks[at] in STRESSES:
        at += 1
    return at < len(marks) and marks[at] in VOWELS


def _is_long_i(marks: list[str], at: int, stress: str) -> bool:
    """Whether an `i` is long: stressed, before the stress of its word, or its only vowel."""
    if stress or any(mark in STRESSES for mark in marks[at + 1 :]):
        return True
    others = [one for one, mark in enumerate(marks) if mark in VOWELS and one != at]
    return not others
