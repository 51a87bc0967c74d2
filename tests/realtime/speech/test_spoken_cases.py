"""What is heard of every hard text: cut, read by language, and put into plain words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from models.text.markup import strip_markup
from models.text.normalise import normalise
from models.text.spoken import spoken_form
from realtime.config import TextLimits
from realtime.speech.text_units import TextSegmenter, TextUnit
from tests.cases import text_cases

CASES = text_cases()
DOCUMENT = Path(__file__).parents[3] / "docs/text.md"
ON_MARKUP, ON_FIGURES = (
    re.findall(r"^\| `(.+)` \| (.+) \|$", part, re.MULTILINE)
    for part in DOCUMENT.read_text().split("## Figures and abbreviations")
)
WORDS = ("spoken", "spoken_has", "spoken_not")


def heard(text: str) -> str:
    """Words without marks, in small letters."""
    segmenter = TextSegmenter(TextLimits())
    units = [*segmenter.push(text), *segmenter.flush()]
    words = [
        normalise(spoken_form(unit.text, "en")) for unit in units if isinstance(unit, TextUnit)
    ]
    return " ".join(re.findall("[a-z']+", " ".join(words).lower()))


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if any(key in case["expect"] for key in WORDS)]
)
def test_hard_texts_are_read_as_people_read_them(case: str) -> None:
    expected: dict[str, Any] = CASES[case]["expect"]
    said = heard(CASES[case]["input"])
    assert said == expected.get("spoken", said)
    assert all(words in said for words in expected.get("spoken_has", []))
    assert not any(words in said for words in expected.get("spoken_not", []))


@pytest.mark.parametrize(("written", "read"), ON_MARKUP)
def test_the_document_tells_how_markup_is_read(written: str, read: str) -> None:
    plain = strip_markup(written.replace("⏎", "\n").replace("⎮", "|"))
    assert " ".join(plain.split()) == read


@pytest.mark.parametrize(("written", "read"), ON_FIGURES)
def test_the_document_tells_how_figures_are_read(written: str, read: str) -> None:
    assert spoken_form(written, "en") == read
