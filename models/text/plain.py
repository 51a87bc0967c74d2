# ruff: noqa: RUF001 -- marks of many scripts are this file's matter
"""Plain text with the way back to where it was written, as it grows. Pure, any thread."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from models.text.breaks import Pause

ENDS: Final = ".?!:;,—–…‽。！？、，：；؟،।"
"""After one of these a heading or a list item needs no full stop of ours."""
CLOSERS: Final = "\"')]}»”’」』）"
"""They may follow the mark that ends a sentence."""
_ATTACHED: Final = ",.;:!?)"
"""They stand right behind a word, though an emoji stood between."""


class Piece(NamedTuple):
    """Plain text that stands for `[start, end)` of what was written.

    Its first characters stand for as many written ones; what is longer than that was put in.
    """

    text: str
    start: int
    end: int

    def place_of(self, n_characters: int) -> int:
        """Where the character at `n_characters` was written."""
        return min(self.start + n_characters, self.end)


Part = Piece | Pause


class Gap(IntEnum):
    """What parts two words; of several the strongest counts."""

    NONE = 0
    BLANK = 1
    CELL = 2
    LINE = 3
    BLOCK = 4


class PlainWriter:
    """Collects plain text. Gaps are written when it is known what follows them.

    A heading, an item or a paragraph that has no mark at its end is given a full stop, so that a
    voice ends it as a sentence.
    """

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._gap = Gap.NONE
        self._gap_start = 0
        self._has_dropped = False
        self._last = ""

    @property
    def is_parted(self) -> bool:
        """Whether the last word is complete: a blank or a line break follows it."""
        return self._gap in (Gap.BLANK, Gap.LINE)

    def write(self, text: str, start: int, end: int) -> None:
        """Add text that was written at `[start, end)`; not empty, no blank at its ends."""
        if self._gap and self._last:
            self._write_gap(start, is_attached=text[0] in _ATTACHED)
        self._gap = Gap.NONE
        self._has_dropped = False
        self._parts.append(Piece(text, start, end))
        last = text.rstrip(CLOSERS)[-1:]
        self._last = last or self._last or text[-1]

    def part(self, gap: Gap, at: int) -> None:
        """What follows is parted from what came."""
        if not self._gap:
            self._gap_start = at
        self._gap = max(self._gap, gap)

    def drop(self, at: int) -> None:
        """A sign that is not read stood at `at`."""
        self.part(Gap.BLANK, at)
        self._has_dropped = True

    def pause(self, pause: Pause) -> None:
        """Silence stood here."""
        self.restart()
        self._parts.append(pause)

    def restart(self) -> None:
        """What follows begins anew: no gap before it, no full stop behind what came."""
        self._gap, self._last = Gap.NONE, ""

    def take(self) -> list[Part]:
        """What is new."""
        parts, self._parts = self._parts, []
        return parts

    def _write_gap(self, end: int, *, is_attached: bool) -> None:
        is_word = self._last not in ENDS
        start = self._gap_start
        if self._gap is Gap.BLANK and self._has_dropped and is_attached and is_word:
            return
        if self._gap is Gap.CELL and is_word:
            self._parts.append(Piece(",", start, start))
        if self._gap is Gap.BLOCK and is_word:
            self._parts.append(Piece(".", start, start))
        blank = {Gap.LINE: "\n", Gap.BLOCK: "\n\n"}.get(self._gap, " ")
        self._parts.append(Piece(blank, start, end))
