"""The sound of one word out of context: lexicon, then rules, then letters.

Deterministic; a `Pronouncer` may be used from any thread.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from models.pico import units
from models.pico.inflect import MAX_WORD, add_s, compound, inflected
from models.pico.letters import LetterModel, shipped_letter_model
from models.pico.lexicon import Lexicon, shipped_lexicon
from models.pico.spelling import (
    LETTERS,
    SHORT_WORDS,
    has_no_vowel,
    is_initials,
    spell,
    spell_initials,
)

Ids = tuple[int, ...]

MAX_RULES: Final = 2
"""Endings that may be taken off one after the other (`walkers'`)."""
CACHE_SIZE: Final = 32768
_HUMPS: Final = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]")


class Pronouncer:
    """Words to unit ids, remembered; never silent for a word with a letter a to z.

    A word of more than `MAX_WORD` letters is cut there, so 2000 times `a` stays bounded.

    Args:
        lexicon: pronunciations of known words.
        letters: the model for all others.
    """

    def __init__(self, lexicon: Lexicon, letters: LetterModel) -> None:
        self._lexicon = lexicon
        self._letters = letters
        self.say = lru_cache(maxsize=CACHE_SIZE)(self._say)
        self.say_shouted = lru_cache(maxsize=CACHE_SIZE)(self._say_plain)

    @property
    def lexicon(self) -> Lexicon:
        """The dictionary behind it."""
        return self._lexicon

    def known(self, word: str) -> bool:
        """Whether the lexicon or its inflections cover a lower-case word."""
        return self._find(word, MAX_RULES) is not None

    def _say(self, token: str) -> Ids:
        """Units of a word as written: capitals tell acronyms, humps tell parts."""
        if len(token) == 1:
            return LETTERS[token.lower()]
        if token[0].islower() and token.islower():
            return self._say_plain(token)
        if is_initials(token):
            return self._say_initials(token)
        if self.known(token.lower()) or token[1:].islower():
            return self._say_plain(token)
        parts = _HUMPS.findall(token[:MAX_WORD])
        return tuple(one for part in parts for one in self.say(part)) or self._say_plain(token)

    def _say_initials(self, token: str) -> Ids:
        """An acronym: as a word where it is known as one or is a common word in capitals."""
        core = token.removesuffix("'s").removesuffix("s")
        word = core.lower()
        is_word = core in self._lexicon.acronyms or word in SHORT_WORDS
        is_word = is_word or (len(word) > 3 and self.known(word))
        if is_word or (len(word) > 5 and not has_no_vowel(word)):
            ids = self._say_plain(word)
            return ids if core == token else add_s(ids)
        return spell_initials(token)

    def _say_plain(self, token: str) -> Ids:
        word = token.lower()
        known = self._find(word, MAX_RULES) or compound(word, self._find_whole)
        if known:
            return known
        bare = word.replace("'", "")[:MAX_WORD]
        is_short = len(bare) < (4 if "y" in bare else 6)
        if has_no_vowel(bare) and is_short:
            return spell(bare)
        ids = self._letters.sound(bare)
        return ids if any(map(units.is_vowel, ids)) else spell(bare)

    def _find(self, word: str, n_rules: int) -> Ids | None:
        """A word of the lexicon, or an inflection of one."""
        known = self._find_whole(word)
        if known or n_rules == 0:
            return known
        return inflected(word, lambda stem: self._find(stem, n_rules - 1))

    def _find_whole(self, word: str) -> Ids | None:
        return self._lexicon.find(word) if len(word) > 1 else None


@lru_cache(maxsize=1)
def shipped_pronouncer() -> Pronouncer:
    """The pronouncer over the shipped weights, loaded once a process."""
    return Pronouncer(shipped_lexicon(), shipped_letter_model())
