"""Break tags become pauses; other tags stay text; a tag may come in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.text.breaks import LONGEST_TAG, Pause, split_breaks, unfinished_break


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('Wait<break time="500ms"/>now.', ("Wait", Pause(seconds=0.5), "now.")),
        ("a <break time='1.5s' /> b", ("a ", Pause(seconds=1.5), " b")),
        ('<BREAK TIME="2s">', (Pause(seconds=2.0),)),
        ('<break time="90s"/>', (Pause(seconds=10.0),)),
        ("no tag", ("no tag",)),
        ("<b>bold</b>", ("<b>bold</b>",)),
        ('<break time="soon"/>', ('<break time="soon"/>',)),
        ("<break time=500ms/>", ("<break time=500ms/>",)),
        ("  ", ()),
    ],
)
def test_only_well_formed_break_tags_are_pauses(text: str, parts: tuple[str | Pause, ...]) -> None:
    assert split_breaks(text) == parts


def test_a_tag_in_pieces_is_held_back_from_its_start() -> None:
    text = 'Wait <break time="300ms"/> now.'
    start = text.index("<")
    for size in range(start + 1, text.index(">") + 1):
        assert unfinished_break(text[:size]) == start
    assert unfinished_break(text[: text.index(">") + 1]) == text.index(">") + 1


@pytest.mark.parametrize("text", ["", "3 < 5", "a <c", "done>", "<break" + "x" * 100])
def test_text_that_starts_no_tag_is_not_held(text: str) -> None:
    assert unfinished_break(text) == len(text)


@given(st.text(alphabet="<>break /tim='\"50s", max_size=120))
def test_never_more_than_a_tag_is_held(text: str) -> None:
    assert 0 <= len(text) - unfinished_break(text) <= LONGEST_TAG
