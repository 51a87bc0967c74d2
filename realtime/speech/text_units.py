"""Streamed text to units that a model can speak. Sans-I/O; any thread.

A unit is a sentence, a few short ones, or a part of a long one. Where units end depends on the
whole text alone, never on the borders of the pieces it came in: a place is decided once all
that could change it has come. `<break time="500ms"/>` becomes a pause between units.
"""

# ruff: noqa: RUF001 - the look-alike characters in this file are meant

from __future__ import annotations

import re
import unicodedata
from typing import Final

from models.text.breaks import Pause, split_breaks, unfinished_break
from realtime.config import TextLimits

Unit = str | Pause

DIGIT_COST: Final = 6
"""A digit is spoken as a word of about so many letters."""

_WORD: Final = re.compile(r"[^\s。！？]*[。！？]+[」』）”’\"')\]]*|\S+")
_BLANK: Final = re.compile(r"\s*")
_CLOSERS: Final = "\"')]}»”’*_`~」』）"
_OPENERS: Final = "\"'([{«“‘*_`~「『（"
_OPENING: Final = re.compile(f"[{re.escape(_OPENERS)}]*")
_STRONG: Final = "!?‽！？。"
_CLAUSE: Final = ",;:—–、，；："
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


class TextSegmenter:
    """Incremental cutter of one response's text.

    Args:
        limits: lengths; see `TextLimits`.
    """

    def __init__(self, limits: TextLimits) -> None:
        self._limits = limits
        self._held = ""
        self._text = ""
        self._n_units = 0

    def push(self, text: str) -> list[Unit]:
        """More text. Returns the units that are sure now."""
        self._held += text
        place = unfinished_break(self._held)
        ready, self._held = self._held[:place], self._held[place:]
        return self._take(ready)

    def flush(self) -> list[Unit]:
        """Everything that has come, cut as if the text ended here."""
        ready, self._held = self._held, ""
        return self._take(ready) + self._cut(is_final=True)

    def _take(self, ready: str) -> list[Unit]:
        parts = split_breaks(ready)
        if not any(isinstance(part, Pause) for part in parts):
            # NOTE: not `parts`: blank text between words comes as its own piece and must stay.
            self._text += ready
            return self._cut(is_final=False)
        units: list[Unit] = []
        for part in parts:
            if isinstance(part, Pause):
                units += self._cut(is_final=True)
                units.append(part)
            else:
                self._text += part
        return units + self._cut(is_final=False)

    def _cut(self, *, is_final: bool) -> list[Unit]:
        units: list[Unit] = []
        self._text = self._text.lstrip()
        while self._text:
            place = next_cut(
                self._text, self._limits, is_first=self._n_units == 0, is_final=is_final
            )
            if place is None:
                break
            unit = self._text[:place].rstrip()
            self._text = self._text[place:].lstrip()
            if is_speakable(unit):
                self._n_units += 1
                units.append(unit)
        return units


class WordHolder:
    """Text for a model that takes it as it comes: whole words and pauses.

    Whole, so that the model's tokens do not depend on the pieces in which the text came.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Unit]:
        """More text. Returns what ends at white space, and pauses."""
        self._held += text
        place = unfinished_break(self._held)
        ready, rest = self._held[:place], self._held[place:]
        parts: list[Unit] = list(split_breaks(ready))
        tail = ready
        if any(isinstance(part, Pause) for part in parts):
            last = parts[-1]
            tail = last if isinstance(last, str) else ""
            parts = parts[:-1] if tail else parts
        else:
            parts = []
        whole = tail[: _last_word(tail)]
        whole = whole if whole.strip() else ""
        self._held = tail[len(whole) :] + rest
        return [*parts, whole] if whole else parts

    def flush(self) -> list[Unit]:
        """Everything that has come."""
        ready, self._held = self._held, ""
        return list(split_breaks(ready))


def next_cut(text: str, limits: TextLimits, *, is_first: bool, is_final: bool) -> int | None:
    """Where the first unit of `text` ends; None when that cannot be said yet.

    Args:
        text: without leading white space and without break tags.
        limits: lengths.
        is_first: nothing has been spoken yet, so a clause will do.
        is_final: nothing follows `text`.
    """
    cost = 0
    last_word: int | None = None
    last_clause: int | None = None
    for word in _WORD.finditer(text):
        word_cost = _cost(word.group())
        if cost + word_cost > limits.max_unit:
            return last_clause or last_word or _cut_word(text, limits.max_unit)
        if word.end() == len(text) and not is_final:
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

    Something follows the word, or the text is final.
    """
    next_start = _BLANK.match(text, word.end()).end()  # type: ignore[union-attr] # matches nothing too
    is_open = next_start == len(text) and not is_final
    n_lines = text.count("\n", word.end(), next_start)
    if n_lines >= 2:
        return "sentence"
    if is_open and n_lines:
        return None
    core = word.group().rstrip(_CLOSERS)
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
    return next((n for n in range(len(text) - 1, -1, -1) if text[n].isspace()), 0)
