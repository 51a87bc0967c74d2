# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""Endings, prefixes and compounds of known words, with the sound changes they bring.

Pure functions over a `find` function (word -> unit ids or None), any thread. The lexicon builder
uses the same rules to leave out what they already say right, so a change here needs a rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from models.pico import units

Find = Callable[[str], tuple[int, ...] | None]
Ids = tuple[int, ...]

MAX_WORD: Final = 40
"""Longer words are not taken apart: the letter model bounds them."""

_HISSING: Final = frozenset(("s", "z", "ʃ", "ʒ", "tʃ", "dʒ"))
_VOICELESS: Final = frozenset(("p", "t", "k", "f", "θ"))
_CLITICS: Final = {"'ll": "əl", "'re": "ɚ", "'ve": "əv", "'m": "m", "n't": "ənt"}
_VOWEL_ENDINGS: Final = {
    "ings": "ɪŋz",
    "ing": "ɪŋ",
    "in'": "ɪn",
    "ers": "ɚz",
    "er": "ɚ",
    "est": "ᵻst",
    "able": "əbəl",
    "ish": "ɪʃ",
}
_FULL_ENDINGS: Final = {
    "ness": "nəs",
    "less": "ləs",
    "ful": "fəl",
    "ment": "mənt",
    "ments": "mənts",
    "like": "lˌaɪk",
    "ship": "ʃˌɪp",
    "hood": "hˌʊd",
    "wise": "wˌaɪz",
    "proof": "pɹˌuːf",
    "ward": "wɚd",
    "wards": "wɚdz",
    "some": "səm",
}
_PREFIXES: Final = {
    "un": "ˌʌn",
    "non": "nˌɑːn",
    "re": "ɹiː",
    "pre": "pɹiː",
    "mis": "mɪs",
    "dis": "dˌɪs",
    "over": "ˌoʊvɚ",
    "under": "ˌʌndɚ",
    "out": "ˌaʊt",
    "super": "sˌuːpɚ",
    "inter": "ˌɪntɚ",
    "anti": "ˌæntaɪ",
    "multi": "mˌʌlti",
    "micro": "mˌaɪkɹoʊ",
    "mini": "mˌɪni",
    "mega": "mˌɛɡə",
    "hyper": "hˌaɪpɚ",
    "semi": "sˌɛmi",
    "co": "kˌoʊ",
    "de": "diː",
    "sub": "sˌʌb",
    "counter": "kˌaʊntɚ",
    "auto": "ˌɔːɾoʊ",
    "tele": "tˌɛlə",
    "cyber": "sˌaɪbɚ",
}
_VOWEL_SOUNDS: Final = {ending: units.split_ipa(ipa) for ending, ipa in _VOWEL_ENDINGS.items()}
_FULL_SOUNDS: Final = {ending: units.split_ipa(ipa) for ending, ipa in _FULL_ENDINGS.items()}
_PREFIX_SOUNDS: Final = {prefix: units.split_ipa(ipa) for prefix, ipa in _PREFIXES.items()}
_CLITIC_SOUNDS: Final = {ending: units.split_ipa(ipa) for ending, ipa in _CLITICS.items()}
_T: Final = units.unit_id("t")
_FLAP: Final = units.unit_id("ɾ")
_R: Final = units.unit_id("ɹ")
_ER: Final = units.unit_id("ɚ")
_SCHWA: Final = units.unit_id("ə")
_FIRST_A: Final = units.unit_id("ɐ")
_IY: Final = units.unit_id("i")
_LI: Final = units.split_ipa("li")
_ALI: Final = units.split_ipa("əli")


def inflected(word: str, find: Find) -> Ids | None:
    """Units of an inflected or derived form of a known word, or None."""
    if len(word) > MAX_WORD:
        return None
    return _clitic(word, find) or _plural(word, find) or _past(word, find) or _derived(word, find)


def add_s(stem: Ids) -> Ids:
    """Plural, third person or possessive: s, z or ᵻz by the last sound."""
    last = units.UNITS[stem[-1]]
    if last in _HISSING:
        return stem + units.split_ipa("ᵻz")
    return stem + units.split_ipa("s" if last in _VOICELESS else "z")


def add_ed(stem: Ids) -> Ids:
    """Past form: t, d or ᵻd by the last sound; a t between vowels becomes a flap."""
    last = units.UNITS[stem[-1]]
    if last in ("t", "d"):
        return flapped(stem) + units.split_ipa("ᵻd")
    return stem + units.split_ipa(
        "t" if last in (_VOICELESS | _HISSING) - {"z", "ʒ", "dʒ"} else "d"
    )


def flapped(stem: Ids) -> Ids:
    """`stem` before an unstressed vowel: `t` after a vowel flaps, `ɚ` gives up its r."""
    if stem[-1] == _ER:
        return (*stem[:-1], _SCHWA, _R)
    is_flap = len(stem) > 1 and stem[-1] == _T and (units.is_vowel(stem[-2]) or stem[-2] == _R)
    return (*stem[:-1], _FLAP) if is_flap else stem


def compound(word: str, find: Find) -> Ids | None:
    """Units of two known words written as one; the second keeps a weaker stress."""
    if len(word) > MAX_WORD:
        return None
    for cut in sorted(range(3, len(word) - 2), key=lambda place: abs(2 * place - len(word))):
        first, second = find(word[:cut]), find(word[cut:])
        if first and second and units.has_primary_stress(first):
            return first + tuple(weakened(second))
    return None


def weakened(ids: Ids) -> Iterator[int]:
    """The same units with secondary where primary stress was."""
    for one in ids:
        yield units.restress(one, "ˌ") if units.UNITS[one].startswith("ˈ") else one


def _clitic(word: str, find: Find) -> Ids | None:
    """`'s`, `'d` and the contractions."""
    if word.endswith(("'s", "s'")):
        stem = find(word[:-2]) or (find(word[:-1]) if word.endswith("s'") else None)
        return add_s(stem) if stem else None
    if word.endswith("'d"):
        stem = find(word[:-2])
        return add_ed(stem) if stem else None
    for ending, sound in _CLITIC_SOUNDS.items():
        stem = find(word.removesuffix(ending)) if word.endswith(ending) else None
        if stem:
            return stem + sound
    return None


def _plural(word: str, find: Find) -> Ids | None:
    if not word.endswith("s") or word.endswith("ss") or len(word) < 4:
        return None
    if word.endswith("ies"):
        stem = find(word[:-3] + "y")
        if stem:
            return add_s(stem)
    stem = find(word[:-1])
    if not stem and word.endswith("es"):
        stem = find(word[:-2])
    return add_s(stem) if stem else None


def _past(word: str, find: Find) -> Ids | None:
    if not word.endswith("ed") or len(word) < 5:
        return None
    if word.endswith("ied"):
        stem = find(word[:-3] + "y")
        return add_ed(stem) if stem else None
    stem = _stem(word[:-2], find)
    return add_ed(stem) if stem else None


def _stem(base: str, find: Find) -> Ids | None:
    """The word behind a vowel ending: `mak` -> make, `runn` -> run, `walk` -> walk."""
    if len(base) < 2:
        return None
    if base[-1] == base[-2] and base[-1] not in "aeiou":
        spellings = (base, base[:-1]) if base[-1] in "ls" else (base[:-1], base)
    elif len(base) > 2 and base[-1] not in "aeiouy" and base[-2] not in "aeiouy":
        spellings = (base, base + "e")
    else:
        spellings = (base + "e", base)
    found = (find(spelling) for spelling in spellings if len(spelling) > 1)
    return next((stem for stem in found if stem), None)


def _derived(word: str, find: Find) -> Ids | None:
    """Endings and prefixes that leave the stem as it is."""
    for ending, sound in _VOWEL_SOUNDS.items():
        if word.endswith(ending) and len(word) > len(ending) + 2:
            base = word.removesuffix(ending)
            stem = find(base[:-1] + "y") if base.endswith("i") else _stem(base, find)
            if stem:
                return flapped(stem) + sound
    if word.endswith("ly") and len(word) > 4:
        adverb = _adverb(word, find)
        if adverb:
            return adverb
    for ending, sound in _FULL_SOUNDS.items():
        stem = find(word.removesuffix(ending)) if word.endswith(ending) else None
        if stem and len(word) > len(ending) + 2:
            return stem + sound
    for prefix, sound in _PREFIX_SOUNDS.items():
        if word.startswith(prefix) and len(word) > len(prefix) + 3:
            stem = find(word.removeprefix(prefix))
            if stem:
                return sound + ((_SCHWA, *stem[1:]) if stem[0] == _FIRST_A else stem)
    return None


def _adverb(word: str, find: Find) -> Ids | None:
    """`quickly`, `happily`, `terribly`, `basically`."""
    base = word[:-2]
    if base.endswith("i"):
        stem = find(base[:-1] + "y")
        return stem[:-1] + _ALI if stem and stem[-1] == _IY else None
    if base.endswith("b"):
        stem = find(base + "le")
        return stem[:-2] + _LI if stem else None
    stem = find(base[:-2]) if base.endswith("ical") else None
    if stem:
        return stem + _LI
    stem = find(base)
    if not stem:
        return None
    return stem[:-1] + _LI if stem[-1] == _LI[0] and word.endswith("lly") else stem + _LI
