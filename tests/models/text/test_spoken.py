# ruff: noqa: RUF001 -- quotes and dashes of every kind are input here
"""Figures and abbreviations are read in the text's own language, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.text.markup import strip_markup
from models.text.normalise import normalise
from models.text.spoken import spoken_form
from tests.models.text.test_normalise import CASES


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("“It’s $4.50,” said Dr. Müller (50%).",
         "“It’s four dollars and fifty cents,” said Doctor Müller (fifty percent)."),
        ("At 5:30 p.m. on 2026-03-09 — or never…",
         "At five thirty P M on March ninth, twenty twenty six — or never…"),
        ("It was −5 °C for 3 km²", "It was minus five degrees Celsius for three square kilometers"),
        ("2×3 is 2 × 3.", "two times three is two times three."),
        ("1½ cups; ≈20 g", "one and a half cups; about twenty grams"),
        ("Mail joe@x.org or see x.org!", "Mail joe at x dot org or see x dot org!"),
        ("Ask <laugh> Mr. Lee <sigh> 5", "Ask <laugh> Mister Lee <sigh> five"),
        ("A 3-mile run (12 men)", "A three-mile run (twelve men)"),
        ("Vol. 2, no. 3, e.g. NASA's", "volume two, number three, for example NASA's"),
    ],
)  # fmt: skip
def test_english_is_read_as_people_read_it(written: str, spoken: str) -> None:
    assert spoken_form(written, "en") == spoken
    assert spoken_form(written, "en-GB") == spoken
    assert spoken_form(written, "English") == spoken


@pytest.mark.parametrize(("written", "expected"), CASES)
def test_a_model_that_reads_figures_itself_hears_the_same(written: str, expected: str) -> None:
    unit = " ".join(strip_markup(written).split())
    assert normalise(spoken_form(unit, "en")) == expected


@pytest.mark.parametrize("language", ["de", "zh", "klingon", "", None])
def test_a_language_without_rules_is_left_to_its_model(language: str | None) -> None:
    text = "Dr. Lee hat 3,50 € und 20 %."
    assert spoken_form(text, language) == text


def test_text_in_another_script_is_left_to_its_model() -> None:
    assert spoken_form("в 3 часа", "en") == "в 3 часа"


@given(st.text(st.sampled_from("abcZé ,;?!’“”()'—"), max_size=60))
def test_text_without_figures_and_abbreviations_is_not_touched(text: str) -> None:
    assert spoken_form(text, "en") == text


@given(st.text(st.sampled_from("a1 .,:/-$%°²½’”(—"), max_size=40))
def test_no_figure_is_left(text: str) -> None:
    assert not any(one.isdecimal() for one in spoken_form(text, "en"))
