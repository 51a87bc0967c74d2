# ruff: noqa: RUF001 -- stress marks look like quotes
"""Text to units: what `pico` is asked to say, and where each word lies in it.

Normalised text is cut into words and punctuation; each word gets its pronunciation from the
lexicon, by inflection rules, or from its letters, then its form in context. Pure and
deterministic after the weights are loaded (once a process), any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from models.pico import units
from models.pico.context import in_context
from models.pico.spelling import is_initials
from models.pico.words import Pronouncer, shipped_pronouncer
from models.text.normalise import normalise

_TOKEN: Final = re.compile(r"[A-Za-z][A-Za-z']*|[,.?!;:]")
_STOP: Final = units.unit_id(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSpan:
    """One spoken word: its normalised text, lower case, and its units, `ids[start:end]`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSequence:
    """Unit ids without bos and boa, and the words in them. Empty for unspeakable text."""

    ids: tuple[int, ...]
    words: tuple[WordSpan, ...]


def text_to_units(text: str) -> UnitSequence:
    """Units of a text, ending with `.`, `?` or `!`; no ids where nothing can be spoken.

    A word longer than 40 letters is cut there, so the sequence is bounded by the text's length.

    Raises:
        TextError: the text holds a NUL or a lone surrogate.
    """
    tokens = _TOKEN.findall(normalise(text))
    pronouncer = shipped_pronouncer()
    sounds = word_sounds(pronouncer, tokens)
    ids: list[int] = []
    words: list[WordSpan] = []
    for token, sound in zip(tokens, sounds, strict=True):
        if token in units.PUNCTUATION:
            ids.append(units.unit_id(token))
            continue
        if ids:
            ids.append(units.SPACE_ID)
        words.append(WordSpan(text=token.lower(), start=len(ids), end=len(ids) + len(sound)))
        ids.extend(sound)
    return UnitSequence(ids=tuple(_with_end(ids)), words=tuple(words))


def word_sounds(pronouncer: Pronouncer, tokens: Sequence[str]) -> list[tuple[int, ...]]:
    """Units of each token in its context; of punctuation marks: none."""
    say = pronouncer.say_shouted if _is_shouted(pronouncer, tokens) else pronouncer.say
    alone = [() if token in units.PUNCTUATION else say(token) for token in tokens]
    sounds = [
        in_context(pronouncer.lexicon, tokens, alone, place) if sound else ()
        for place, sound in enumerate(alone)
    ]
    _stress_clauses(sounds)
    return sounds


def _is_shouted(pronouncer: Pronouncer, tokens: Sequence[str]) -> bool:
    """Whether a text is all in capitals and mostly made of words: then none are acronyms."""
    words = [token for token in tokens if len(token) > 1]
    if len(words) < 2 or not all(is_initials(word.replace("'", "")) for word in words):
        return False
    return 2 * sum(pronouncer.known(word.lower()) for word in words) > len(words)


def _stress_clauses(sounds: list[tuple[int, ...]]) -> None:
    """Stress the last word of each clause that has no stress (`It is.`), in place."""
    start = 0
    for place in range(len(sounds) + 1):
        if place < len(sounds) and sounds[place]:
            continue
        clause = sounds[start:place]
        if clause and not any(map(units.has_primary_stress, clause)):
            sounds[place - 1] = _stressed(sounds[place - 1])
        start = place + 1


def _stressed(ids: tuple[int, ...]) -> tuple[int, ...]:
    """The same units with primary stress on the first vowel."""
    for place, one in enumerate(ids):
        if units.is_vowel(one):
            return (*ids[:place], units.restress(one, "ˈ"), *ids[place + 1 :])
    return ids


def _with_end(ids: list[int]) -> list[int]:
    """`ids` closed by a sentence mark; another last mark gives way to a full stop."""
    if not ids or units.UNITS[ids[-1]] in units.SENTENCE_ENDS:
        return ids
    return [*(ids[:-1] if units.UNITS[ids[-1]] in units.PUNCTUATION else ids), _STOP]
