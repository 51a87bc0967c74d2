"""What English readers say for what is written short: the stages, in order. Pure, any thread."""

from __future__ import annotations

import re
from typing import Final

from models.text.abbreviations import expand_abbreviations
from models.text.addresses import speak_addresses
from models.text.figures import speak_figures
from models.text.times import speak_times

_SIGNS: Final = (
    (re.compile(r"(?<=\d) ?\+ ?(?=\d)|(?<=[\w)]) \+ (?=[\w(])"), " plus "),
    (re.compile(r"(?<!\w)\+(?=\d)"), " plus "),
    (re.compile(r"(?<=\w) ?={1,3} ?(?=[\w-])"), " equals "),
    (re.compile(r"(?<=\d) ?< ?(?=\d)"), " less than "),
    (re.compile(r"(?<=\d) ?> ?(?=\d)"), " greater than "),
    (re.compile(r"(?<=\d) [*] (?=\d)"), " times "),
    (re.compile(r"(?<!\w)~ ?(?=\d)"), " about "),
)
_PLUSES: Final = re.compile(r"(?<=[A-Za-z])\+{1,2}(?![A-Za-z])")


def speak_english(text: str) -> str:
    """`text` with figures, dates, money, times, measures, addresses and abbreviations in words.

    Words may have more than one blank between them; other characters stay as they are.
    """
    text = speak_addresses(text)
    text = expand_abbreviations(text)
    if any("0" <= one <= "9" for one in text):
        return speak_figures(_speak_signs(speak_times(text)))
    return _speak_signs(text) if any(one in text for one in "+=<>~") else text


def _speak_signs(text: str) -> str:
    """Signs of arithmetic as words, where figures or words stand around them."""
    for pattern, word in _SIGNS:
        text = pattern.sub(word, text)
    return _PLUSES.sub(lambda found: " plus" * len(found[0]) + " ", text)
