# ruff: noqa: RUF001 -- dashes of every length are input here
"""Written English to words as they are spoken: the stages, in order. Pure, any thread.

The result holds letters, apostrophes inside words, single spaces and `,.?!;:` right behind a
word; case is kept, since it tells names and acronyms. Spoken text comes back unchanged.
"""

from __future__ import annotations

import re
from typing import Final

from models.text.abbreviations import expand_abbreviations
from models.text.addresses import speak_addresses
from models.text.characters import plain_characters
from models.text.errors import check_text
from models.text.figures import speak_figures
from models.text.markup import strip_markup
from models.text.times import speak_times

MAX_PASSES: Final = 6
"""A pass may uncover another pattern (`e$.g.`); text that people write needs one."""

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
_ELLIPSIS: Final = re.compile(r"\.{2,}")
_DASH: Final = re.compile(r" ?— ?| ?–+ | –|(?<= )-{1,3}(?= )|-{2,3}")
_LOOSE: Final = re.compile(r"[^A-Za-z0-9' ,.?!;:&@%°$€£¥₹]")
_INNER_DOT: Final = re.compile(r"(?<=[a-z0-9])\.(?=[a-z])")
_APOSTROPHE: Final = re.compile(r"(?<![A-Za-z])'+|'+(?![A-Za-z])|(?<=')'+")
_LAST: Final = {
    "&": " and ",
    "@": " at ",
    "%": " percent ",
    "°": " degrees ",
    "$": " dollars ",
    "€": " euros ",
    "£": " pounds ",
    "¥": " yen ",
    "₹": " rupees ",
}
_LAST_RE: Final = re.compile("[&@%°$€£¥₹]")
_PIECE: Final = re.compile(r"[A-Za-z][A-Za-z']*|[,.?!;:]")
_RANK: Final = {",": 0, ";": 1, ":": 2, ".": 3, "!": 4, "?": 5}


def normalise(text: str) -> str:
    """Spoken words of `text` with their punctuation; empty when nothing can be said.

    Letters of other scripts are left out (see `models.text.scripts.unspeakable_scripts`).

    Raises:
        TextError: the text holds a NUL or a lone surrogate.
    """
    check_text(text)
    for _ in range(MAX_PASSES):
        spoken = _one_pass(text)
        if spoken == text:
            break
        text = spoken
    return text


def _one_pass(text: str) -> str:
    text = plain_characters(strip_markup(text))
    text = _ELLIPSIS.sub(". ", text)
    text = speak_addresses(text)
    text = expand_abbreviations(text)
    if any("0" <= one <= "9" for one in text):
        text = speak_times(text)
        text = _speak_signs(text)
        text = speak_figures(text)
    elif any(one in text for one in "+=<>~"):
        text = _speak_signs(text)
    text = _DASH.sub(", ", text)
    text = _INNER_DOT.sub(" dot ", _LOOSE.sub(" ", text))
    text = _LAST_RE.sub(lambda found: _LAST[found[0]], text)
    return _tidy(_APOSTROPHE.sub(" ", text))


def _speak_signs(text: str) -> str:
    """Signs of arithmetic as words, where figures or words stand around them."""
    for pattern, word in _SIGNS:
        text = pattern.sub(word, text)
    return _PLUSES.sub(lambda found: " plus" * len(found[0]) + " ", text)


def _tidy(text: str) -> str:
    """Words and marks with single spaces; of several marks in a row the strongest one stays."""
    spoken: list[str] = []
    mark = ""
    for piece in _PIECE.findall(text):
        if piece in _RANK:
            if not mark or _RANK[piece] > _RANK[mark]:
                mark = piece
            continue
        if spoken:
            spoken[-1] += mark
        spoken.append(piece)
        mark = ""
    if spoken:
        spoken[-1] += mark
    return " ".join(spoken)
