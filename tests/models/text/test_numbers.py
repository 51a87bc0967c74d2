"""Numbers in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.text.numbers import LARGEST, cardinal, ordinal, year


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (101, "one hundred and one"),
        (1_005, "one thousand and five"),
        (2_000_300, "two million three hundred"),
        (-7, "minus seven"),
        (LARGEST, "one" + " zero" * 15),
    ],
)
def test_cardinals(value: int, words: str) -> None:
    assert cardinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "first"), (12, "twelfth"), (20, "twentieth"), (103, "one hundred and third")],
)
def test_ordinals(value: int, words: str) -> None:
    assert ordinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1984, "nineteen eighty four"),
        (1900, "nineteen hundred"),
        (2000, "two thousand"),
        (2005, "two thousand and five"),
        (2019, "twenty nineteen"),
        (476, "four hundred and seventy six"),
    ],
)
def test_years(value: int, words: str) -> None:
    assert year(value) == words


@given(st.integers(0, LARGEST - 1), st.integers(0, LARGEST - 1))
def test_different_numbers_sound_different(left: int, right: int) -> None:
    assert (cardinal(left) == cardinal(right)) == (left == right)
