"""Markdown, tags, links and emoji: what a reader sees becomes what a listener hears.

Text may come in pieces of any size. What is given out depends on the whole text alone: a place is
decided once all that could change it has come, and every construct is bounded, so that hostile
text is neither held for ever nor read again and again. Pure, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from models.text.breaks import find_tag
from models.text.inline import is_between_figures, part_words, write_run, write_signs
from models.text.lines import read_code_start, read_line_start
from models.text.plain import Gap, Part, Piece, PlainWriter

LONGEST_RUN: Final = 2048
"""A longer run without white space is cut here; no address that people write is longer."""

_RUN_CLASS: Final = r"!-;=?-Z\\^-~\u00a1-\u00a8\u00aa-\u00ac\u00af-\u052f"
"""ASCII but white space, angle and square brackets; letters of Europe: what addresses hold."""
_RUN: Final = re.compile(rf"[{_RUN_CLASS}]{{1,{LONGEST_RUN}}}")
_BLANKS: Final = re.compile(r"[^\S\n]+")
_OTHERS: Final = re.compile(rf"[^\s{_RUN_CLASS}<>\[\]]+")
_PATH: Final = r"[^()\s]{0,1000}(?:\([^()\s]{0,200}\)[^()\s]{0,200})?"
_TITLE: Final = r"""[ \t]{1,8}(?:"[^"\n]{0,200}"|'[^'\n]{0,200}')"""
_TARGET: Final = re.compile(rf"\]\({_PATH}(?:{_TITLE})?[ \t]{{0,8}}\)")
_OPEN_TARGET: Final = re.compile(
    rf"\]\((?:[^()\s]{{0,1000}}(?:\([^()\s]{{0,200}})?|{_PATH}[ \t]{{0,8}}"
    rf"|{_PATH}[ \t]{{1,8}}(?:\"[^\"\n]{{0,200}}|'[^'\n]{{0,200}})|{_PATH}{_TITLE}[ \t]{{0,8}})"
)
_REFERENCE: Final = re.compile(r"\]\[[^\[\]\n]{0,100}\]")
_OPEN_REFERENCE: Final = re.compile(r"\]\[[^\[\]\n]{0,100}")
_NOTE: Final = re.compile(r"\[\^[^\s\[\]]{1,40}\]")
_OPEN_NOTE: Final = re.compile(r"\[\^[^\s\[\]]{0,40}")
_N_BEFORE: Final = 2
"""Characters of what was read that are kept: what a mark means depends on those before it."""


class MarkupReader:
    """Written text in, plain text and pauses out.

    Args:
        sounds: names of tags that the model makes sounds of; they stay.
    """

    def __init__(self, sounds: Iterable[str] = ()) -> None:
        self._sounds = frozenset(sounds)
        self._writer = PlainWriter()
        self._text = ""
        self._at = 0
        self._place = 0
        self._is_final = False
        self._is_line_start = True
        self._is_alone = False
        self._fence = ""
        self._n_brackets = 0
        self._address_end = -1

    @property
    def is_parted(self) -> bool:
        """Whether the last word that was given out is complete: white space follows it."""
        return self._writer.is_parted

    def push(self, text: str) -> list[Part]:
        """More text. Returns what is sure now."""
        self._text += text
        self._scan()
        return self._writer.take()

    def flush(self) -> list[Part]:
        """All that has come, as if the text ended here; what comes later begins anew."""
        self._is_final = True
        self._scan()
        self._is_final = False
        self._writer.restart()
        return self._writer.take()

    def _scan(self) -> None:
        while self._place < len(self._text) and self._step():
            pass
        start = max(0, self._place - _N_BEFORE)
        self._text, self._at, self._place = (
            self._text[start:],
            self._at + start,
            self._place - start,
        )

    def _step(self) -> bool:
        """Read one construct; False where more text is needed to know what it is."""
        if self._is_line_start:
            return self._read_line_start()
        one = self._text[self._place]
        if one == "\n":
            return self._end_line()
        if blanks := _BLANKS.match(self._text, self._place):
            self._writer.part(Gap.BLANK, self._at + self._place)
            return self._move(blanks.end())
        if one in "<>[]":
            return self._read_bracket(one)
        return self._read_run()

    def _move(self, place: int) -> bool:
        self._place = place
        return True

    # Lines.

    def _read_line_start(self) -> bool:
        if self._fence:
            line = read_code_start(self._text, self._place, self._fence, is_final=self._is_final)
        else:
            line = read_line_start(self._text, self._place, is_final=self._is_final)
        if line is None:
            return False
        if line.is_block:
            self._writer.part(Gap.BLOCK, self._at + self._place)
            self._n_brackets = 0
        self._fence = line.fence
        self._is_alone = line.is_alone
        self._is_line_start = line.is_blank
        return self._move(line.end)

    def _end_line(self) -> bool:
        gap = Gap.BLOCK if self._is_alone else Gap.LINE
        self._writer.part(gap, self._at + self._place)
        self._is_line_start, self._is_alone = True, False
        return self._move(self._place + 1)

    # Within a line.

    def _read_run(self) -> bool:
        run = _RUN.match(self._text, self._place)
        if run is None:
            others = _OTHERS.match(self._text, self._place)
            assert others is not None, "every character is of one class"
            write_signs(self._writer, self._text, *others.span(), self._at)
            return self._move(others.end())
        start, end = run.span()
        is_cut = end - start == LONGEST_RUN
        if not is_cut and not self._has(end + 1 + (run[0] == "*")):
            return False
        # What follows a run that is cut may not have come.
        text = self._text[:end] if is_cut else self._text
        is_image = run[0] == "!" and text[end : end + 1] == "["
        is_address = self._at + start == self._address_end
        if not is_address and not is_image:
            is_address = write_run(self._writer, text, start, end, self._at)
        self._address_end = self._at + end if is_address and is_cut else -1
        return self._move(end)

    def _read_bracket(self, one: str) -> bool:
        if self._fence:
            return self._drop_bracket()
        if one == "<":
            return self._read_tag()
        if one == "[":
            return self._read_opening()
        return self._read_closing() if one == "]" and self._n_brackets else self._drop_bracket()

    def _read_tag(self) -> bool:
        tag = find_tag(self._text, self._place, self._sounds, is_final=self._is_final)
        if tag is None:
            return self._drop_bracket()
        if isinstance(tag, bool):
            return False
        start, end = self._at + self._place, self._at + tag.end
        if tag.pause is not None:
            self._writer.pause(tag.pause)
        elif tag.is_sound:
            self._writer.write(self._text[self._place : tag.end], start, end)
        elif tag.is_line:
            self._writer.part(Gap.BLOCK, start)
        return self._move(tag.end)

    def _read_opening(self) -> bool:
        """A link's text, or another thing in brackets; the mark of a footnote is not read."""
        if note := _NOTE.match(self._text, self._place):
            return self._move(note.end())
        if not self._is_final and _OPEN_NOTE.fullmatch(self._text, self._place):
            return False
        if not self._has(self._place + 2):
            return False
        self._n_brackets += 1
        return self._drop_bracket()

    def _read_closing(self) -> bool:
        """The end of a link's text, with what it points to."""
        text, place = self._text, self._place
        if not self._has(place + 2):
            return False
        target = _TARGET.match(text, place) or _REFERENCE.match(text, place)
        is_open = _OPEN_TARGET.fullmatch(text, place) or _OPEN_REFERENCE.fullmatch(text, place)
        if target is None and is_open and not self._is_final:
            return False
        self._n_brackets -= 1
        if target is None:
            return self._drop_bracket()
        self._writer.drop(self._at + place)
        return self._move(target.end())

    def _drop_bracket(self) -> bool:
        """A bracket that is not read, unless it compares figures: `3 < 5`."""
        text, start, end = self._text, self._place, self._place + 1
        is_angle = text[start] in "<>"
        if not self._has(end + 1 + (is_angle and text[end : end + 1] == " ")):
            return False
        if is_angle and is_between_figures(text, start, end):
            self._writer.write(text[start], self._at + start, self._at + end)
        else:
            before, after = text[max(0, start - 1) : start], text[end : end + 1]
            part_words(self._writer, before, after, self._at + start)
        return self._move(end)

    def _has(self, n_characters: int) -> bool:
        """Whether so many characters have come, or no more will."""
        return self._is_final or len(self._text) >= n_characters


def strip_markup(text: str) -> str:
    """`text` without markup; headings, list items and paragraphs end like sentences."""
    reader = MarkupReader()
    parts = [*reader.push(text), *reader.flush()]
    return "".join(one.text if isinstance(one, Piece) else " " for one in parts)
