# ruff: noqa: RUF001 -- dashes of every length are input here
"""Written English to words as they are spoken: the stages, in order. Pure, any thread.

The result holds letters, apostrophes inside words, single spaces and `,.?!;:` right behind a
word; case is kept, since it tells names and acronyms. Spoken text comes back unchanged.
"""

from __future__ import annotations

import re
from typing import Final

from models.text.characters import plain_characters
from models.text.english import speak_english
from models.text.errors import check_text
from models.text.markup import strip_markup

MAX_PASSES: Final = 6
"""A pass may uncover another pattern (`e$.g.`); text that people write needs one."""

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
    text = speak_english(text)
    text = _DASH.sub(", ", text)
    text = _INNER_DOT.sub(" dot ", _LOOSE.sub(" ", text))
    text = _LAST_RE.sub(lambda found: _LAST[found[0]], text)
    return _tidy(_APOSTROPHE.sub(" ", text))


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
