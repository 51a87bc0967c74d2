"""The pronunciation dictionary of `pico`: words to unit ids, at run time.

`weights/lexicon.json.gz` holds four fields: `words` and `says` (newline-joined, in step; one
character a unit, `CODE_BASE` + id), `variants` (word -> word class -> units, for words whose
sound depends on their role) and `acronyms` (capitals that are read as words). Built by
`models.pico.training.lexicon` from freely licensed dictionaries. Read-only after load, any thread.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from models.errors import WeightError
from models.pico import units

LEXICON_PATH: Final = Path(__file__).parent / "weights" / "lexicon.json.gz"
CODE_BASE: Final = 0x23
"""First character of the unit code: above the double quote, so that JSON needs few escapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    """Pronunciations by lower-case word; values are coded unit strings (see `decode_units`)."""

    words: dict[str, str]
    variants: dict[str, dict[str, str]]
    acronyms: frozenset[str]

    def find(self, word: str) -> tuple[int, ...] | None:
        """Unit ids of a lower-case word, or None when it is not listed."""
        coded = self.words.get(word)
        return None if coded is None else decode_units(coded)

    def find_variant(self, word: str, word_class: str) -> tuple[int, ...] | None:
        """Unit ids of a word as `VERB`, `NOUN`, `ADJ` or `PAST`, if it has such a form."""
        coded = self.variants.get(word, {}).get(word_class)
        return None if coded is None else decode_units(coded)


def encode_units(ids: Iterable[int]) -> str:
    """Unit ids as a string of one character each."""
    return "".join(chr(CODE_BASE + one) for one in ids)


def decode_units(coded: str) -> tuple[int, ...]:
    """The ids behind `encode_units`."""
    return tuple(ord(character) - CODE_BASE for character in coded)


def read_lexicon(path: Path) -> Lexicon:
    """Load and check a lexicon file.

    Raises:
        WeightError: missing, damaged, or holding characters that are no units.
    """
    try:
        fields = json.loads(gzip.decompress(path.read_bytes()))
        words, says = fields["words"].split("\n"), fields["says"].split("\n")
        variants, acronyms = fields["variants"], frozenset(fields["acronyms"])
    except (OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise WeightError(f"cannot read the lexicon {path.name}: {error}") from error
    alphabet = set(fields["says"]) - {"\n"}
    known = {chr(CODE_BASE + one) for one in range(units.N_UNITS)}
    if len(words) != len(says) or not alphabet <= known:
        raise WeightError(f"the lexicon {path.name} does not fit the unit inventory: rebuild it")
    return Lexicon(words=dict(zip(words, says, strict=True)), variants=variants, acronyms=acronyms)


@lru_cache(maxsize=1)
def shipped_lexicon() -> Lexicon:
    """The lexicon in `weights/`, loaded once a process."""
    return read_lexicon(LEXICON_PATH)
