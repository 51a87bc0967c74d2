"""What callers have spoken: forty texts written for this load test, from 3 to 51 words."""

from __future__ import annotations

from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("texts.txt")


@cache
def texts() -> tuple[str, ...]:
    """The texts, short ones first."""
    return tuple(PATH.read_text(encoding="utf-8").splitlines())
