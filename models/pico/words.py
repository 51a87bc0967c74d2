"""The sound of one word out of context: lexicon, then rules, then letters."""

from __future__ import annotations

from models.pico import units
from models.pico.lexicon import Lexicon

LETTER_NAMES = dict(zip("abcdefghijklmnopqrstuvwxyz", (
    "ˈeɪ bˈiː sˈiː dˈiː ˈiː ˈɛf dʒˈiː ˈeɪtʃ ˈaɪ dʒˈeɪ kˈeɪ ˈɛl ˈɛm ˈɛn ˈoʊ pˈiː kjˈuː ˈɑːɹ ˈɛs "
    "tˈiː jˈuː vˈiː dˈʌbəljˌuː ˈɛks wˈaɪ zˈiː").split(), strict=True))
MAX_LETTERS = 40


def pronounce(lexicon: Lexicon, word: str) -> tuple[int, ...]:
    """Unit ids of a word; never empty."""
    key = word.lower()
    known = lexicon.find(key)
    if known and len(key) > 1:
        return known
    for suffix, sound in (("'s", "z"), ("s", "z"), ("ed", "d"), ("ing", "ɪŋ")):
        stem = lexicon.find(key.removesuffix(suffix)) if key.endswith(suffix) else None
        if stem:
            return stem + units.split_ipa(sound)
    return spell(key)


def spell(word: str) -> tuple[int, ...]:
    """Letter names of a word, at most `MAX_LETTERS` of them."""
    letters = [one for one in word if one in LETTER_NAMES][:MAX_LETTERS]
    return units.split_ipa("".join(LETTER_NAMES[one] for one in letters) or LETTER_NAMES["a"])
