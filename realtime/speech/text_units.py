"""Streamed text to units that a model can speak. Sans-I/O; any thread.

A unit is a sentence, a few short ones, or a part of a long one. Where units end depends on the
whole text alone, never on the borders of the pieces it came in: a place is decided once all
that could change it has come. Markup is not spoken (`models.text.markup`); each unit knows where
in the written text its characters come from.
"""

# ruff: noqa: RUF001 - the look-alike characters in this file are meant

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from models.text.breaks import Pause
from models.text.markup import MarkupReader
from models.text.plain import CLOSERS, Part, Piece
from realtime.config import TextLimits

DIGIT_COST: Final = 6
"""A digit is spoken as a word of about so many letters."""

LONGEST_WORD: Final = 240
"""A longer one is not held until it ends, for a model that takes text as it comes."""

_WORD: Final = re.compile(r"[^\s。！？]*[。！？]+[」』）”’\"')\]]*|\S+")
_BLANK: Final = re.compile(r"\s*")
_LOOK_AHEAD: Final = 32
"""What is looked at behind a full unit: a gap, and a few openers before what it begins with."""
_OPENERS: Final = "\"'([{«“‘「『（"
_OPENING: Final = re.compile(f"[{re.escape(_OPENERS)}]{{0,8}}")
_STRONG: Final = "!?‽！？。"
_CLAUSE: Final = ",;:—–、，；："
"""All of these are `ENDS` too: a full stop put in behind one would change where a unit ends."""
_INNER: Final = frozenset(
    (
        *("mr", "mrs", "ms", "mx", "dr", "prof", "st", "mt", "vs", "e.g", "i.e", "cf", "fig"),
        *("figs", "vol", "pp", "ch", "sec", "gen", "col", "lt", "capt", "sgt", "rev", "hon"),
        *("gov", "sen", "rep", "pres", "messrs", "approx", "est", "al", "dept"),
    )
)
"""Before a full stop these never end a sentence."""
_EITHER: Final = frozenset(
    (
        *("etc", "inc", "ltd", "co", "corp", "bros", "jr", "sr", "no", "nos", "ed", "eds"),
        *("min", "max", "ave", "blvd", "rd", "jan", "feb", "mar", "apr", "jun", "jul", "aug"),
        *("sep", "sept", "oct", "nov", "dec", "mon", "tue", "wed", "thu", "fri", "sat", "sun"),
    )
)
"""Before a full stop these end a sentence if what follows looks like the start of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextUnit:
    """Text that is spoken at once.

    Args:
        text: without markup, words parted by single blanks.
        pieces: the same with the places at which they were written.
    """

    text: str
    pieces: tuple[Piece, ...]

    @property
    def start(self) -> int:
        """Where its first character was written."""
        return self.pieces[0].start

    @property
    def end(self) -> int:
        """Behind where its last character was written."""
        return self.pieces[-1].end

    def place_of(self, n_characters: int) -> int:
        """Where what follows its first `n_characters` was written."""
        for piece in self.pieces:
            if n_characters < len(piece.text):
                return piece.place_of(n_characters)
            n_characters -= len(piece.text)
        return self.end


Unit = TextUnit | Pause


class TextSegmenter:
    """Incremental cutter of one response's text.

    Args:
        limits: lengths; see `TextLimits`.
        sounds: tags that the model makes sounds of; see `ModelSpec.sound_tags`.
    """

    def __init__(self, limits: TextLimits, sounds: Iterable[str] = ()) -> None:
        self._limits = limits
        self._reader = MarkupReader(sounds)
        self._text = PlainText()
        self._is_parted = False
        self._n_units = 0

    def push(self, text: str) -> list[Unit]:
        """More text. Returns the units that are sure now."""
        parts = self._reader.push(text)
        # A blank alone is no part, yet it may end a sentence.
        was_parted, self._is_parted = self._is_parted, self._reader.is_parted
        if not parts and was_parted == self._is_parted:
            return []
        return self._take(parts) + self._cut(is_parted=self._is_parted)

    def flush(self) -> list[Unit]:
        """Everything that has come, cut as if the text ended here."""
        return self._take(self._reader.flush()) + self._cut(is_final=True)

    def _take(self, parts: list[Part]) -> list[Unit]:
        units: list[Unit] = []
        for part in parts:
            if isinstance(part, Pause):
                units += self._cut(is_final=True)
                units.append(part)
            else:
                self._text.append(part)
        return units

    def _cut(self, *, is_parted: bool = False, is_final: bool = False) -> list[Unit]:
        units: list[Unit] = []
        n_window = self._limits.max_unit + _LOOK_AHEAD
        while text := self._text.head(n_window):
            is_whole = len(self._text) == len(text)
            place = next_cut(
                text,
                self._limits,
                is_first=self._n_units == 0,
                is_final=is_final and is_whole,
                is_parted=is_parted and is_whole,
            )
            if place is None:
                break
            unit = self._text.take(place)
            if is_speakable(unit.text):
                self._n_units += 1
                units.append(unit)
        return units


class PlainText:
    """Plain text that waits to be cut, with the way back to where it was written."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._n_characters = 0

    def __len__(self) -> int:
        """Characters that wait."""
        return self._n_characters

    def append(self, piece: Piece) -> None:
        """More text; a gap before all other text is left out."""
        if self._pieces or not piece.text.isspace():
            self._pieces.append(piece)
            self._n_characters += len(piece.text)

    def head(self, n_characters: int) -> str:
        """The first characters, or all there are."""
        texts: list[str] = []
        n_left = n_characters
        for piece in self._pieces:
            if n_left <= 0:
                break
            texts.append(piece.text[:n_left])
            n_left -= len(piece.text)
        return "".join(texts)

    def take(self, n_characters: int) -> TextUnit:
        """Give the first characters, and forget the gap behind them."""
        taken: list[Piece] = []
        while n_characters > 0:
            piece = self._pieces.popleft()
            if len(piece.text) > n_characters:
                middle = piece.place_of(n_characters)
                rest = Piece(piece.text[n_characters:], middle, piece.end)
                self._pieces.appendleft(rest)
                piece = Piece(piece.text[:n_characters], piece.start, middle)
            n_characters -= len(piece.text)
            self._n_characters -= len(piece.text)
            taken.append(piece)
        while self._pieces and self._pieces[0].text.isspace():
            self._n_characters -= len(self._pieces.popleft().text)
        pieces = tuple(one._replace(text=" ") if one.text.isspace() else one for one in taken)
        return TextUnit(text="".join(one.text for one in pieces), pieces=pieces)


class WordHolder:
    """Text for a model that takes it as it comes: whole words and pauses.

    Whole, so that the model's tokens do not depend on the pieces in which the text came.

    Args:
        sounds: tags that the model makes sounds of; see `ModelSpec.sound_tags`.
    """

    def __init__(self, sounds: Iterable[str] = ()) -> None:
        self._reader = MarkupReader(sounds)
        self._held = ""

    def push(self, text: str) -> list[str | Pause]:
        """More text. Returns the words behind which white space has come, and pauses."""
        return self._take(self._reader.push(text), is_whole=self._reader.is_parted)

    def flush(self) -> list[str | Pause]:
        """Everything that has come."""
        return self._take(self._reader.flush(), is_whole=True)

    def _take(self, parts: list[Part], *, is_whole: bool) -> list[str | Pause]:
        words: list[str | Pause] = []
        texts = [self._held]
        for part in parts:
            if isinstance(part, Piece):
                texts.append(" " if part.text.isspace() else part.text)
                continue
            words += [*filter(str.strip, ["".join(texts)]), part]
            texts = []
        text = "".join(texts)
        place = len(text) if is_whole else _last_word(text)
        self._held = text[place:]
        return [*words, *filter(str.strip, [text[:place]])]


class WholeText:
    """Text that is answered: one unit, which may be empty.

    Args:
        sounds: tags that stay in it; see `ModelSpec.sound_tags`.
    """

    def __init__(self, sounds: Iterable[str] = ()) -> None:
        self._reader = MarkupReader(sounds)
        self._parts: list[Part] = []

    def push(self, text: str) -> list[str]:
        """More text. Returns nothing yet."""
        self._parts += self._reader.push(text)
        return []

    def flush(self) -> list[str]:
        """All of it, words parted by single blanks."""
        parts = [*self._parts, *self._reader.flush()]
        self._parts = []
        text = "".join(part.text if isinstance(part, Piece) else " " for part in parts)
        return [" ".join(text.split())]


def next_cut(
    text: str, limits: TextLimits, *, is_first: bool, is_final: bool, is_parted: bool = False
) -> int | None:
    """Where the first unit of `text` ends; None when that cannot be said yet.

    Args:
        text: without leading white space.
        limits: lengths.
        is_first: nothing has been spoken yet, so a clause will do.
        is_final: nothing follows `text`.
        is_parted: what follows `text` is white space.
    """
    cost = 0
    last_word: int | None = None
    last_clause: int | None = None
    for word in _WORD.finditer(text):
        word_cost = _cost(word.group())
        if cost + word_cost > limits.max_unit:
            return last_clause or last_word or _cut_word(text, limits.max_unit)
        if word.end() == len(text) and not (is_final or is_parted):
            return None
        cost += word_cost + 1
        last_word = word.end()
        verdict = _verdict(text, word, is_final=is_final)
        if verdict is None:
            return None
        if verdict == "sentence" and cost > limits.min_sentence:
            return last_word
        if verdict == "clause":
            if is_first and cost > limits.first_clause:
                return last_word
            last_clause = last_word if 2 * cost >= limits.max_unit else last_clause
    return len(text) if is_final else None


def split_unit(text: str) -> tuple[str, ...]:
    """Speakable parts of a unit that proved too long, cut at the white space nearest its middle.

    Empty when it cannot be cut.
    """
    text = text.strip()
    middle = len(text) // 2
    gaps = [gap.start() for gap in re.finditer(r"\s+", text)]
    place = min(gaps, key=lambda gap: abs(gap - middle), default=middle)
    parts = (text[:place].rstrip(), text[place:].lstrip()) if place else ()
    return tuple(part for part in parts if is_speakable(part))


def pieces_of(text: str, max_bytes: int) -> list[str]:
    """`text` in pieces of at most so many UTF-8 bytes, cut at white space where there is some."""
    pieces: list[str] = []
    while len(text.encode()) > max_bytes:
        place = len(text.encode()[:max_bytes].decode(errors="ignore"))
        space = text.rfind(" ", 1, place)
        place = space if space > 0 else max(place, 1)
        pieces.append(text[:place])
        text = text[place:]
    return [*pieces, text] if text else pieces


def is_speakable(text: str) -> bool:
    """Whether `text` holds a letter or a digit of any script."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def _verdict(text: str, word: re.Match[str], *, is_final: bool) -> str | None:
    """What ends with `word`: `sentence`, `clause` or `word`; None when more text is needed.

    White space follows the word, or the text is final.
    """
    blank = _BLANK.match(text, word.end())
    assert blank is not None, "the pattern matches nothing too"
    next_start = blank.end()
    if text.count("\n", word.end(), next_start) >= 2:
        return "sentence"
    core = word.group().rstrip(CLOSERS)
    if not core:
        return "word"
    if core[-1] in _CLAUSE:
        return "clause"
    if core[-1] not in ".…" + _STRONG:
        return "word"
    kind = _stop_kind(
        core, is_closed=core != word.group(), starts_line=_starts_line(text, word.start())
    )
    if kind != "either":
        return kind
    opening = _OPENING.match(text, next_start)
    start = text[opening.end() : opening.end() + 1] if opening else ""
    if not start and not is_final:
        return None
    return "word" if start.islower() or (start.isdigit() and core[-1] == ".") else "sentence"


def _starts_line(text: str, place: int) -> bool:
    before = text[max(0, place - 8) : place].rstrip(" \t")
    return place == 0 or before.endswith("\n")


def _stop_kind(core: str, *, is_closed: bool, starts_line: bool) -> str:
    """What a word that ends with a stop means: `sentence`, `word`, or `either`, by what follows."""
    if core[-1] in _STRONG:
        return "either" if is_closed else "sentence"
    body = core.rstrip(".…").lstrip(_OPENERS)
    if core[-1] == "…" or core.endswith(".."):
        return "either"
    if body.lower() in _INNER:
        return "word"
    if len(body) == 1 and body.isupper() and body != "I":
        return "word"
    if body.isdigit() and starts_line:
        return "word"
    if is_closed or "." in body or body.lower() in _EITHER:
        return "either"
    return "sentence"


def _cost(word: str) -> int:
    return len(word) + (DIGIT_COST - 1) * sum(character.isdigit() for character in word)


def _cut_word(text: str, max_cost: int) -> int:
    """Where a single giant word is cut: at least one character, no mark torn from its letter."""
    cost = 0
    place = 0
    while cost <= max_cost:
        cost += DIGIT_COST if text[place].isdigit() else 1
        place += 1
    place = max(place - 1, 1)
    while place > 1 and unicodedata.combining(text[place]):
        place -= 1
    return place


def _last_word(text: str) -> int:
    """Where the last, perhaps unfinished word of `text` starts."""
    place = text.rfind(" ")
    return max(place, len(text) - LONGEST_WORD, 0)
