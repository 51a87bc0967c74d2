# ruff: noqa: RUF001 -- signs of arithmetic are output here
"""Marks within a line: emphasis, code, cells, escapes, and the signs that only look like them.

Pure, any thread.
"""

from __future__ import annotations

import re
from typing import Final

from models.text.addresses import web_addresses
from models.text.plain import Gap, PlainWriter
from models.text.signs import EMOJI, SIGN, is_bullet, is_hidden, joins_letters

_MARK: Final = re.compile(r"[_{}\\]+|~+|#+|[*`|^]")


def write_run(writer: PlainWriter, text: str, start: int, end: int, at: int) -> bool:
    """Write `text[start:end]`, a run of letters, figures and ASCII marks without white space.

    Returns whether it ends with a web address.

    Args:
        writer: of the plain text.
        text: with the characters around the run.
        start: of the run in `text`.
        end: behind it.
        at: where `text` begins in what was written.
    """
    place = start
    for address in web_addresses(text, start, end):
        _write_marked(writer, text, place, address.start, at)
        writer.write(address.host, at + address.start, at + address.end)
        place = address.end
    _write_marked(writer, text, place, end, at)
    return start < place == end


def _write_marked(writer: PlainWriter, text: str, start: int, end: int, at: int) -> None:
    place = start
    for mark in _MARK.finditer(text, start, end):
        if mark.start() > place:
            writer.write(text[place : mark.start()], at + place, at + mark.start())
        place = mark.end()
        _write_mark(writer, text, mark, at)
    if end > place:
        writer.write(text[place:end], at + place, at + end)


def _write_mark(writer: PlainWriter, text: str, mark: re.Match[str], at: int) -> None:
    start, end = mark.span()
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    match mark[0][0]:
        case "|":
            writer.part(Gap.CELL, at + start)
        case "*" if is_between_figures(text, start, end):
            writer.write("×", at + start, at + end)
        case "#" if after.isdecimal() and not before.isalnum():
            writer.write("#", at + start, at + end)
        case "~" if after.isdecimal() and not before.isalnum():
            writer.write("≈", at + start, at + end)
        case "^" if before.isalnum() and (after.isalnum() or after == "-"):
            writer.write("^", at + start, at + end)
        case one if one not in "*`":
            part_words(writer, before, after, at + start)


def part_words(writer: PlainWriter, before: str, after: str, at: int) -> None:
    """A mark that is not read stood between `before` and `after`: two words stay two."""
    if before.isalnum() and after.isalnum():
        writer.part(Gap.BLANK, at)


def is_between_figures(text: str, start: int, end: int) -> bool:
    """Whether figures stand on both sides of `[start, end)`, close to it or each after a blank."""
    is_apart = text[max(0, start - 1) : start] == " "
    if is_apart != (text[end : end + 1] == " "):
        return False
    before, after = start - is_apart, end + is_apart
    return text[max(0, before - 1) : before].isdecimal() and text[after : after + 1].isdecimal()


def write_signs(writer: PlainWriter, text: str, start: int, end: int, at: int) -> None:
    """Write `text[start:end]`, characters beyond the alphabets of Europe, without the emoji."""
    place = start
    for sign in SIGN.finditer(text, start, end):
        one, here = sign[0], sign.start()
        if joins_letters(one, text[max(0, here - 1) : here]):
            continue
        if here > place:
            writer.write(text[place:here], at + place, at + here)
        place = sign.end()
        if is_bullet(one):
            writer.part(Gap.CELL, at + here)
        elif EMOJI.match(one):
            writer.drop(at + here)
        else:
            assert is_hidden(one), "a sign is a bullet, an emoji or cannot be seen"
    if end > place:
        writer.write(text[place:end], at + place, at + end)
