"""What recognition makes up: loops and text without words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.agent.loops import is_suspect, without_loops


@pytest.mark.parametrize(
    "text",
    [
        "Press eight. Press eight. Press eight.",
        "to go, to go to go and on",
        "Hello? Hello?",
        "the quick brown fox the quick brown fox",
        "no no no no no",
        "well " + "a b c d e f g h i j k l m n o p " * 3,
    ],
)
def test_a_loop_is_suspect(text: str):
    assert is_suspect(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ". . . . . . . .",
        "no, no, no",
        "It was very, very good.",
        "What is it?",
        "he had had had he",
    ],
)
def test_speech_is_not(text: str):
    assert not is_suspect(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Press eight. Press eight! press eight and go", "Press eight. and go"),
        ("no no no no no no", "no"),
        (". . . . . . .", ""),
        ("♪ ♪", ""),
        ("", ""),
        ("Hello? Hello?", "Hello? Hello?"),
        ("a b a b a b c d c d c d", "a b c d"),
    ],
)
def test_a_loop_is_left_in_once(text: str, left: str):
    assert without_loops(text) == left


@given(st.text(alphabet="ab. ", max_size=60))
def test_nothing_is_left_to_take_out(text: str):
    once = without_loops(text)
    assert without_loops(once) == once
    assert len(once) <= len(text)
