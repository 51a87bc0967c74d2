"""Break tags become pauses, known tags are dropped, what is no tag is text."""

from __future__ import annotations

import pytest

from models.text.breaks import DEFAULT_PAUSE_S, Pause, find_tag
from models.text.markup import MarkupReader
from models.text.plain import Piece


def read(text: str) -> list[str | Pause]:
    """Plain text and pauses."""
    reader = MarkupReader()
    read: list[str | Pause] = []
    for part in [*reader.push(text), *reader.flush()]:
        if isinstance(part, Piece) and read and isinstance(read[-1], str):
            read[-1] += part.text
        else:
            read.append(part.text if isinstance(part, Piece) else part)
    return read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Wait<break time="500ms"/>now.', ["Wait", Pause(seconds=0.5), "now."]),
        ("a <break time='1.5s' /> b", ["a", Pause(seconds=1.5), "b"]),
        ('<BREAK TIME="2s">', [Pause(seconds=2.0)]),
        ("<break time=500ms/>", [Pause(seconds=0.5)]),
        ('<break time="90s"/>', [Pause(seconds=10.0)]),
        ('<break time="soon"/>', [Pause(seconds=DEFAULT_PAUSE_S)]),
        ("a<break/>b", ["a", Pause(seconds=DEFAULT_PAUSE_S), "b"]),
        ("a <break strength='weak'></break> b", ["a", Pause(seconds=DEFAULT_PAUSE_S), "b"]),
        ("no tag", ["no tag"]),
        ("<b>bold</b>face", ["boldface"]),
        ("<p>One</p><p>Two</p>", ["One.\n\nTwo"]),
        ('<speak><prosody rate="slow">Hi</prosody></speak>', ["Hi"]),
        ('an <a href="https://x.org/y">anchor</a>.', ["an anchor."]),
        ("so <!-- not this --> it is", ["so it is"]),
        ("write <name> here", ["write name here"]),
        ("see <https://x.org/y>", ["see x.org"]),
        ("a < b, c<d, 3 < 5 and 6>2", ["a b, c d, 3 < 5 and 6>2"]),
        ("open <b and <break time='1s'", ["open b and break time='1s'"]),
        ("```\na <b> c\n```", ["a b c"]),
        ("  ", []),
    ],
)
def test_what_is_read_of_tags(text: str, expected: list[str | Pause]) -> None:
    assert read(text) == expected


def test_a_tag_in_pieces_waits_for_its_end_and_nothing_else_does() -> None:
    tag = '<break time="300ms"/>'
    for size in range(1, len(tag)):
        assert find_tag(tag[:size], 0, is_final=False) is False
    assert find_tag("<breaker", 0, is_final=False) is None
    assert find_tag("<3", 0, is_final=False) is None
    assert find_tag("<bold and", 0, is_final=False) is None


def test_an_endless_tag_is_not_held_for_ever() -> None:
    assert find_tag("<break " + "x" * 300, 0, is_final=False) is None


def test_a_model_keeps_the_tags_that_it_makes_sounds_of() -> None:
    reader = MarkupReader(["laugh"])
    text = "Well <lau", "gh>, <b>yes</b> <sigh>."
    parts = [*reader.push(text[0]), *reader.push(text[1]), *reader.flush()]
    assert "".join(part.text for part in parts if isinstance(part, Piece)) == (
        "Well <laugh>, yes sigh."
    )
