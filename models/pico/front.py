"""Text to units: what `pico` is asked to say, and where each word lies in it.

Normalised text is cut into words and punctuation; each word gets its pronunciation from the
lexicon, by inflection rules, or from its letters. Pure and deterministic after the lexicon is
loaded (once a process), any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from models.pico import units
from models.pico.lexicon import Lexicon, shipped_lexicon
from models.pico.words import pronounce
from models.text.normalise import normalise

_TOKEN: Final = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|'[A-Za-z]+|[,.?!;:]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSpan:
    """One spoken word: its normalised text and its units, `ids[start:end]`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSequence:
    """Unit ids without bos and boa, and the words in them. Empty for unspeakable text."""

    ids: tuple[int, ...]
    words: tuple[WordSpan, ...]


def text_to_units(text: str) -> UnitSequence:
    """Units of a text, ending with a sentence mark; no ids where nothing can be spoken.

    Raises:
        TextError: the text holds a NUL or a lone surrogate.
    """
    tokens = _TOKEN.findall(normalise(text))
    lexicon = shipped_lexicon()
    ids: list[int] = []
    words: list[WordSpan] = []
    for place, token in enumerate(tokens):
        if token in units.PUNCTUATION:
            if words and not _is_mark(ids[-1]):
                ids.append(units.unit_id(token))
            continue
        if ids:
            ids.append(units.SPACE_ID)
        start = len(ids)
        ids.extend(pronounce_in_context(lexicon, tokens, place))
        words.append(WordSpan(text=token.lower(), start=start, end=len(ids)))
    if words and units.UNITS[ids[-1]] not in units.SENTENCE_ENDS:
        if _is_mark(ids[-1]):
            ids.pop()
        ids.append(units.unit_id("."))
    return UnitSequence(ids=tuple(ids), words=tuple(words))


def pronounce_in_context(lexicon: Lexicon, tokens: list[str], place: int) -> tuple[int, ...]:
    """Units of the word at `place`."""
    word = tokens[place].lower()
    following = tokens[place + 1] if place + 1 < len(tokens) else "."
    before_vowel = following[0].isalpha() and units.is_vowel(pronounce(lexicon, following)[0])
    if word == "the":
        return units.split_ipa("ðɪ" if before_vowel else "ðə")
    if word == "to" and following[0].isalpha():
        return units.split_ipa("tʊ" if before_vowel else "tə")
    if word == "a":
        return units.split_ipa("ɐ")
    return pronounce(lexicon, tokens[place])


def _is_mark(one: int) -> bool:
    """Whether a unit is punctuation."""
    return units.UNITS[one] in units.PUNCTUATION
