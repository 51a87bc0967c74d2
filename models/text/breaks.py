"""`<break time="500ms"/>`: the only tag that text may carry. Pure, any thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST_PAUSE_S: Final = 10.0
"""Longer pauses are cut to this: a request must not buy minutes of silence."""
LONGEST_TAG: Final = 64

_TAG: Final = re.compile(
    r"""<break\s{0,8}\stime\s{0,4}=\s{0,4}(["'])\s{0,4}(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})\s{0,4}"""
    r"""(ms|s)\s{0,4}\1\s{0,8}/?>""",
    re.IGNORECASE,
)
_START: Final = "<break"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Silence between two spoken parts."""

    seconds: float


def split_breaks(text: str) -> tuple[str | Pause, ...]:
    """Spoken parts and pauses of `text`, in order; blank parts are left out.

    A tag of another form stays in the text, where normalising drops its brackets.
    """
    parts: list[str | Pause] = []
    start = 0
    for tag in _TAG.finditer(text):
        _append_text(parts, text[start : tag.start()])
        scale = 1e-3 if tag.group(3).lower() == "ms" else 1.0
        parts.append(Pause(seconds=min(float(tag.group(2)) * scale, LONGEST_PAUSE_S)))
        start = tag.end()
    _append_text(parts, text[start:])
    return tuple(parts)


def unfinished_break(text: str) -> int:
    """Where a break tag that has not ended starts at the end of `text`; its length if none does.

    For text that comes in pieces: hold back from here until more of it has come. Never more than
    `LONGEST_TAG` characters.
    """
    start = text.rfind("<", max(0, len(text) - LONGEST_TAG))
    if start < 0:
        return len(text)
    tail = text[start:].lower()
    is_open = ">" not in tail and (_START.startswith(tail) or tail.startswith(_START))
    return start if is_open else len(text)


def _append_text(parts: list[str | Pause], text: str) -> None:
    if text.strip():
        parts.append(text)
