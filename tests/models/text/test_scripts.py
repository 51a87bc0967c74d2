# ruff: noqa: RUF001 -- letters of every script are input here
"""Scripts that an English model cannot speak are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.text.scripts import unspeakable_scripts


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("hello, café Łódź", ()),
        ("Ｆｕｌｌ width and 𝐛𝐨𝐥𝐝", ()),
        ("👍 ٣ × →", ()),
        ("the number π", ()),
        ("Привет", ("Cyrillic",)),
        ("שלום and hello", ("Hebrew",)),
        ("你好 こんにちは カナ", ("Han", "Hiragana", "Katakana")),
        ("مرحبا", ("Arabic",)),
        ("안녕 नमस्ते สวัสดี", ("Hangul", "Devanagari", "Thai")),
        ("Καλημέρα", ("Greek",)),
    ],
)
def test_scripts_are_named_in_order(text: str, scripts: tuple[str, ...]) -> None:
    assert unspeakable_scripts(text) == scripts


@given(st.text())
def test_any_string_has_an_answer(text: str) -> None:
    assert all(script for script in unspeakable_scripts(text))
