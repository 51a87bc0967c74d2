# ruff: noqa: RUF001 -- marks and emoji of every kind are input here
"""What a reader sees becomes what a listener hears, in whatever pieces it comes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.text.markup import MarkupReader, strip_markup
from models.text.plain import Piece

CASES = [
    # emphasis, code, escapes
    ("**Two** things: `code` and _this_.", "Two things: code and this."),
    ("***all*** of ~~that~~ un*believ*able", "all of that unbelievable"),
    ("snake_case, __init__ and a\\_b", "snake case, init and a b"),
    ("{x} and a{b}", "x and a b"),
    # the same marks as signs
    ("2*3, 2 * 3, 2**3, *2* 3", "2×3, 2 × 3, 23, 2 3"),
    ("#1 in C# #tag", "#1 in C tag"),
    ("~5 of ~/home", "≈5 of /home"),
    ("x^2 ^ y", "x^2 y"),
    ("3 < 5, a->b, 5>3", "3 < 5, a-b, 5>3"),
    # blocks
    ("# Title\n\nText", "Title.\n\nText"),
    ("## A #1 title?\nText", "A #1 title?\n\nText"),
    ("Title\n=====\nText", "Title.\n\nText"),
    ("one\n\n---\n\ntwo", "one.\n\ntwo"),
    ("- first\n- **second**\n  goes on\n* third", "first.\n\nsecond\ngoes on.\n\nthird"),
    ("So:\n1. one\n2) two", "So:\n\n1. one.\n\n2) two"),
    ("- [x] done\n- [ ] open\n- [maybe]", "done.\n\nopen.\n\nmaybe"),
    ("✅ Fast\n✅ Cheap", "Fast.\n\nCheap"),
    ("> quoted\n> text", "quoted\ntext"),
    ("-5 degrees\n- 5 degrees\n1.5 more", "-5 degrees.\n\n5 degrees\n1.5 more"),
    ("| Name | Age |\n|------|:---:|\n| Ada | 36 |", "Name, Age.\n\nAda, 36"),
    ("a | b\n--|--\nc | d", "a, b.\n\nc, d"),
    ("Do:\n```python\nx = a[0] # *no*\nrun\n```\nDone.", "Do:\n\nx = a 0 no.\n\nrun.\n\nDone."),
    ("~~~\n```\n~~~\nafter", "after"),
    ("```one line```", "one line"),
    ("wrapped\nline", "wrapped\nline"),
    # links and addresses
    ("see [the page](https://x.org/y)", "see the page"),
    ('[a](u "title")[b](v).', "a b."),
    ("![a picture](p.png) here", "a picture here"),
    ("[text][ref] and [1]", "text and 1"),
    ("so it is[^1][^note].", "so it is."),
    ("[not a link] (aside)", "not a link (aside)"),
    ("Read https://example.org/a?b=c#d before", "Read example.org before"),
    ("(see https://example.org/a_b_(c)).", "(see example.org))."),
    ("Is it www.foo-bar.io/a? Yes.", "Is it foo-bar.io? Yes."),
    ("at https://münchen.de/straße!", "at münchen.de!"),
    ("http://localhost:8080/x and ftp://a.b/c", "localhost and a.b"),
    ("file https:///x", "file link"),
    ("joe@example.com, a/b, 1/2", "joe@example.com, a/b, 1/2"),
    # emoji and characters that cannot be seen
    ("All set 👍🏽 see you 👨‍👩‍👧‍👦!", "All set see you!"),
    ("I ❤️ it ❤️‍🔥🇩🇪", "I it"),
    ("press 1️⃣ or #️⃣", "press 1 or"),
    ("Great! 🎉 Next", "Great! Next"),
    ("soft\u00adhyphen\u200b \ufeffBOM", "softhyphen BOM"),
    ("क्‍ष می‌خواهم", "क्‍ष می‌خواهم"),
    ("№ 5 at 20 °C → 7 ½", "№ 5 at 20 °C → 7 ½"),
    ("one • two", "one, two"),
    ("", ""),
    ("*** ___ ``` |", ""),
]  # fmt: skip


@pytest.mark.parametrize(("written", "plain"), CASES)
def test_markup_is_taken_out_and_words_stay(written: str, plain: str) -> None:
    assert strip_markup(written) == plain


@pytest.mark.parametrize("written", [written for written, _ in CASES])
def test_in_single_characters_it_is_the_same(written: str) -> None:
    reader = MarkupReader()
    parts = [part for one in written for part in reader.push(one)] + reader.flush()
    assert "".join(part.text for part in parts if isinstance(part, Piece)) == strip_markup(written)


PIECES = [
    *"*_`~#|[]{}()<>\\^-+=:!.\n 1aé字🙂\u200d\ufe0f•",
    *(
        "**",
        "```",
        "](",
        "![",
        "[^",
        "- ",
        "1. ",
        "> ",
        "|--|",
        "https://",
        "x.org",
        "<br>",
        "word",
    ),
]
MARKS = re.compile(r"[*_`|\[\]{}\\~🙂\u200d\ufe0f]|#(?!\d)|(?<!\w)\^|(?<!\d)(?<!\d )[<>]")


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_mark_is_ever_read(text: str) -> None:
    assert not MARKS.search(strip_markup(text))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(PIECES).filter(lambda one: "//" not in one)).map("".join))
def test_plain_text_is_not_changed_again(text: str) -> None:
    plain = " ".join(strip_markup(text).split())
    assert " ".join(strip_markup(f"x {plain}").split()) == f"x {plain}".strip()


@pytest.mark.parametrize("before", ["<break ", "[a](", "```py", "https://x.org/", "a", "- "])
def test_nothing_is_held_for_ever(before: str) -> None:
    """What has no end is given up after a while, and read as text, or not at all."""
    reader = MarkupReader()
    reader.push(before)
    assert not reader.push("x" * 3)
    told = reader.push("x" * 5_000)
    assert told or before.startswith("https")
    assert "end" in "".join(part.text for part in reader.push(" end ") if isinstance(part, Piece))


def test_a_long_address_is_never_read_however_long_it_is() -> None:
    assert strip_markup("https://x.org/" + "a/" * 5_000 + " end") == "x.org end"


@pytest.mark.parametrize(
    ("written", "said"),
    [("one tw", "one"), ("one ", "one"), ("Hi. ", "Hi."), ("- it", ""), ("字", "字")],
)
def test_words_are_given_out_as_soon_as_they_are_whole(written: str, said: str) -> None:
    assert (
        "".join(part.text for part in MarkupReader().push(written) if isinstance(part, Piece))
        == said
    )
