# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""Letter names, and which capitals are spelled out. Pure, any thread."""

from __future__ import annotations

import re
from typing import Final

from models.pico import units
from models.pico.inflect import add_s, weakened
from models.text.tables import word_set

_NAMES: Final = (
    "ˈeɪ bˈiː sˈiː dˈiː ˈiː ˈɛf dʒˈiː ˈeɪtʃ ˈaɪ dʒˈeɪ kˈeɪ ˈɛl ˈɛm ˈɛn ˈoʊ pˈiː kjˈuː ˈɑːɹ ˈɛs "
    "tˈiː jˈuː vˈiː dˈʌbəljˌuː ˈɛks wˈaɪ zˈiː"
)
LETTERS: Final = dict(
    zip("abcdefghijklmnopqrstuvwxyz", map(units.split_ipa, _NAMES.split()), strict=True)
)
MAX_SPELLED: Final = 20
"""More letters than this are nobody's acronym: the rest is left out."""
SHORT_WORDS: Final = word_set(
    """
    no not the and you all for are but yes now new one two out off can get try way why who how our
    let do go so to in on of or if is be me my we he up as at by an see say has had was did any
    big bad ask buy day end far few fix get got her him his its job key law low man men old own
    pay put red run she six ten too use via war yet add age ago air car cut due eat eye oh ok
    """
)
"""Words of two or three letters that stay words in capitals (`NOT`); `IT` and `US` are spelled."""
_INITIALS: Final = re.compile(r"[A-Z]{2,6}s|[A-Z]{2,}(?:'s)?")


def spell(word: str) -> tuple[int, ...]:
    """Letter names, the last one stressed; at most `MAX_SPELLED` of them."""
    letters = [one for one in word.lower() if one in LETTERS][:MAX_SPELLED]
    ids: list[int] = []
    for place, letter in enumerate(letters):
        is_last = place == len(letters) - 1
        ids.extend(LETTERS[letter] if is_last else weakened(LETTERS[letter]))
    return tuple(ids)


def spell_initials(token: str) -> tuple[int, ...]:
    """Spell `FBI`, `PCs` and `FBI's`."""
    core = token.removesuffix("'s")
    has_s = core != token or core.endswith("s")
    ids = spell(core.removesuffix("s"))
    return add_s(ids) if has_s else ids


def is_initials(token: str) -> bool:
    """Whether a token is written in capitals like an acronym, perhaps with an s behind."""
    return _INITIALS.fullmatch(token) is not None


def has_no_vowel(word: str) -> bool:
    """Whether a word has none of a, e, i, o, u: `html`, `pdf`, `xyz`."""
    return not any(letter in "aeiou" for letter in word)
