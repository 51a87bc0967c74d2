"""Small word tables written as text, so that they stay readable side by side. Pure."""

from __future__ import annotations


def table(text: str) -> dict[str, str]:
    """`a: b, c: d e` -> `{"a": "b", "c": "d e"}`; line breaks count as spaces."""
    entries = (entry.split(":", 1) for entry in " ".join(text.split()).split(","))
    return {short.strip(): full.strip() for short, full in entries}


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())
