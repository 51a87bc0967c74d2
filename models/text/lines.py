"""How a line of Markdown begins: heading, item, quote, table, rule, fence. Pure, any thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from models.text.signs import BULLETS, EMOJI

_LONGEST_PREFIX: Final = 200
_PREFIX: Final = re.compile(rf"[ \t>#*+\-=_|:~`{BULLETS}]{{0,{_LONGEST_PREFIX}}}")
_QUOTE: Final = re.compile(r"[ \t]*(?:>[ \t]*)*")
_FENCE: Final = re.compile(r"(`{3,}|~{3,})")
_FENCE_LINE: Final = re.compile(r"[^`\n]{0,100}(?:\n|$)")
_OPEN_FENCE_LINE: Final = re.compile(r"[^`\n]{0,100}")
_HEADING: Final = re.compile(r"#{1,6}[ \t]+")
_ITEM: Final = re.compile(rf"(?:[-*+{BULLETS}][ \t]+)+")
_TASK: Final = re.compile(r"\[[ xX]\][ \t]")
_OPEN_TASK: Final = re.compile(r"\[(?:[ xX]\]?)?")
_NUMBERED: Final = re.compile(r"\d{1,3}[.)][ \t]")
_OPEN_NUMBERED: Final = re.compile(r"\d{1,3}[.)]?")
_CELL: Final = re.compile(r"\|[ \t]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStart:
    """What stands before the text of a line.

    Args:
        end: of the marks; the text of the line begins here.
        is_block: the line is no part of the paragraph before it.
        is_alone: nor is the line after it a part of this one.
        is_blank: the line has no text; `end` is behind its line break.
        fence: that the line opens.
    """

    end: int
    is_block: bool = False
    is_alone: bool = False
    is_blank: bool = False
    fence: str = ""


def read_line_start(text: str, place: int, *, is_final: bool) -> LineStart | None:
    """How the line at `place` begins; None where more text may tell.

    Args:
        text: no further than it has come.
        place: of the line's first character.
        is_final: nothing follows `text`.
    """
    prefix = _PREFIX.match(text, place)
    assert prefix is not None, "the pattern matches nothing too"
    end = prefix.end()
    if end - place == _LONGEST_PREFIX:
        return LineStart(end=end, is_block=True, is_blank=True)
    if end == len(text) and not is_final:
        return None
    quote = _QUOTE.match(text, place, end)
    assert quote is not None, "the pattern matches nothing too"
    if fence := _FENCE.match(text, quote.end(), end):
        return _read_fence(text, fence, is_final=is_final)
    if text[end : end + 1] in ("", "\n"):
        return LineStart(end=min(end + 1, len(text)), is_block=True, is_blank=True)
    return _read_marks(text, quote.end(), end, is_final=is_final)


def read_code_start(text: str, place: int, fence: str, *, is_final: bool) -> LineStart | None:
    """The same within code: a line that ends it (`fence` is empty then), or one of code."""
    prefix = _PREFIX.match(text, place)
    assert prefix is not None, "the pattern matches nothing too"
    end = prefix.end()
    is_whole = end < len(text) or is_final or end - place == _LONGEST_PREFIX
    if not is_whole:
        return None
    marks = prefix[0].strip()
    if text[end : end + 1] in ("", "\n") and end - place < _LONGEST_PREFIX:
        is_closed = marks.startswith(fence) and not marks.strip(fence[0])
        rest = "" if is_closed else fence
        return LineStart(end=min(end + 1, len(text)), is_block=True, is_blank=True, fence=rest)
    return LineStart(end=end, is_block=True, is_alone=True, fence=fence)


def _read_fence(text: str, fence: re.Match[str], *, is_final: bool) -> LineStart | None:
    """A line that opens code: the name of the language behind the fence is not read."""
    line = _FENCE_LINE.match(text, fence.end())
    is_open = _OPEN_FENCE_LINE.fullmatch(text, fence.end()) is not None
    if is_open and not is_final:
        return None
    if line is None:
        return LineStart(end=fence.end(), is_block=False)
    return LineStart(end=line.end(), is_block=True, is_blank=True, fence=fence[0])


def _read_marks(text: str, place: int, end: int, *, is_final: bool) -> LineStart | None:
    """The marks at `[place, end)`, behind those of quotes; something else follows."""
    if heading := _HEADING.match(text, place, end):
        return LineStart(end=heading.end(), is_block=True, is_alone=True)
    if item := _ITEM.match(text, place, end):
        return _read_task(text, item.end(), is_final=is_final)
    if cell := _CELL.match(text, place, end):
        return LineStart(end=cell.end(), is_block=True, is_alone=True)
    if place == end and text[end].isdigit():
        return _read_number(text, place, is_final=is_final)
    return LineStart(end=place, is_block=EMOJI.match(text, place) is not None)


def _read_task(text: str, place: int, *, is_final: bool) -> LineStart | None:
    if not is_final and _OPEN_TASK.fullmatch(text, place):
        return None
    task = _TASK.match(text, place)
    return LineStart(end=task.end() if task else place, is_block=True)


def _read_number(text: str, place: int, *, is_final: bool) -> LineStart | None:
    if not is_final and _OPEN_NUMBERED.fullmatch(text, place):
        return None
    return LineStart(end=place, is_block=_NUMBERED.match(text, place) is not None)
