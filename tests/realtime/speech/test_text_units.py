"""Units depend on the whole text alone, hold every word once, and keep together what belongs so."""

# ruff: noqa: RUF001 - the look-alike characters in this file are meant

import re
import time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from models.text.breaks import Pause
from realtime.config import TextLimits
from realtime.speech.text_units import TextSegmenter, TextUnit, WordHolder, is_speakable, split_unit

LIMITS = TextLimits()
SMALL = TextLimits(min_sentence=3, first_clause=6, max_unit=12)
PIECES = [
    *"aAbZ .,!?\n\"')(<>/=1023…—*_`~#|[]\\{}^-+:•。！é字\u0301\t🙂\ufe0f\u200d",
    *("  ", "a. ", "<break time='1s'/>", "<break", "\n\n", "- ", "1. ", "](", "![", "```", "---"),
    *("https://", "x.org", "**", "<br>", "<b ", "[^1]", "[x] "),
]
TRICKY = st.lists(st.sampled_from(PIECES), max_size=100).map("".join)
FAST = settings(deadline=None, max_examples=80)


def cut(*pieces, limits=LIMITS):
    """Units as they are, with their places."""
    segmenter = TextSegmenter(limits)
    units = []
    for piece in pieces:
        units += segmenter.push(piece)
    return units + segmenter.flush()


def units_of(*pieces, limits=LIMITS):
    """Units as they sound: their texts, and pauses."""
    return spoken(cut(*pieces, limits=limits))


def spoken(units):
    return [unit.text if isinstance(unit, TextUnit) else unit for unit in units]


def places_of(units):
    """Where every character of every unit was written."""
    return [
        [unit.place_of(n) for n in range(len(unit.text) + 1)]
        for unit in units
        if isinstance(unit, TextUnit)
    ]


def split_at(text, places):
    cuts = sorted({min(place, len(text)) for place in places})
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@FAST
@given(text=TRICKY, places=st.lists(st.integers(0, 120), max_size=12), small=st.booleans())
def test_units_do_not_depend_on_the_pieces(text, places, small):
    limits = SMALL if small else LIMITS
    pieces, whole = cut(*split_at(text, places), limits=limits), cut(text, limits=limits)
    assert spoken(pieces) == spoken(whole)
    assert places_of(pieces) == places_of(whole)


@FAST
@given(text=TRICKY)
@example(text="b (((\u2013\n- Dr. x")  # a full stop was put in behind a unit that had gone out
def test_one_character_at_a_time_is_the_same(text):
    assert units_of(*text, limits=SMALL) == units_of(text, limits=SMALL)


@FAST
@given(text=TRICKY, places=st.lists(st.integers(0, 120), max_size=12), small=st.booleans())
def test_no_unit_exceeds_the_cap_or_is_without_words(text, places, small):
    limits = SMALL if small else LIMITS
    for unit in units_of(*split_at(text, places), limits=limits):
        if isinstance(unit, str):
            assert is_speakable(unit)
            assert 0 < len(unit) <= limits.max_unit
            assert unit == " ".join(unit.split())


@FAST
@given(text=TRICKY, small=st.booleans())
def test_places_never_fall_and_lie_in_the_text(text, small):
    places = [
        place for unit in places_of(cut(text, limits=SMALL if small else LIMITS)) for place in unit
    ]
    assert places == sorted(places)
    assert all(0 <= place <= len(text) for place in places)


WORDS = st.lists(
    st.sampled_from(["one", "Two", "3", "4.5", "é", "字", "Dr.", "(five)"]), min_size=1
)
AROUND = st.sampled_from([
    "{}", "**{}**", "_{}_", "`{}`", "~~{}~~", "[{}](https://x.org/a_b?c=d)", "![{}](a.png)", "[{}]",
    "# {}\n", "- {}\n", "1) {}\n", "> {}\n", "| {} | {} |\n|---|:-:|\n", "```py\n{}\n```\n",
    "<b>{}</b>", "{} 🙂", "👍🏽 {}", "{}❤️\u200d🔥", '<break time="1s"/>{}', "{}[^2]",
    "<!-- no -->{}", "<p>{}</p>", "{{{}}}",
])  # fmt: skip


@FAST
@given(st.lists(st.tuples(AROUND, WORDS), max_size=12), st.lists(st.integers(0, 400), max_size=9))
def test_every_word_within_markup_is_spoken_in_order(marked, places):
    text = "\n\n".join(around.format(*[" ".join(words)] * 2) for around, words in marked)
    # A list's own number is read too, and a table's cell stands in it twice.
    expected = [
        one
        for around, words in marked
        for one in ["1"] * around.startswith("1)") + words * around.count("{}")
    ]
    units = [unit for unit in units_of(*split_at(text, places)) if isinstance(unit, str)]
    heard = [word for word in re.split(r"[^\w.]+|\.(?!\d)", " ".join(units)) if word]
    assert heard == [word.strip("().") for word in expected]


@FAST
@given(
    text=st.text(
        alphabet=st.characters(max_codepoint=0x52F, exclude_characters="<[]^"), max_size=99
    )
)
def test_every_speakable_character_is_spoken_once_and_in_order(text):
    assume("." not in text and ":" not in text)  # addresses lose their path
    assume("```" not in text and "~~~" not in text)
    heard = "".join(unit for unit in units_of(text, limits=SMALL) if isinstance(unit, str))
    assert [one for one in heard if is_speakable(one)] == [one for one in text if is_speakable(one)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is fine today. We go out.", ["It is fine today.", "We go out."]),
        ("Meet Dr. Lee at 5:30 p.m. on Monday.", ["Meet Dr. Lee at 5:30 p.m. on Monday."]),
        ("See e.g. the FBI, i.e. three.", ["See e.g. the FBI, i.e. three."]),
        ("It costs 3.14 dollars. Cheap enough.", ["It costs 3.14 dollars.", "Cheap enough."]),
        (
            "Read https://example.org/a.b?c=d. Then have lunch.",
            ["Read example.org.", "Then have lunch."],
        ),
        ('He asked "What is it?" and left.', ['He asked "What is it?" and left.']),
        ("Well... maybe we can do that. Sure.", ["Well... maybe we can do that.", "Sure."]),
        ("We came home at 5 p.m. Then we ate.", ["We came home at 5 p.m.", "Then we ate."]),
        ("J. R. Smith wrote it all. Good book.", ["J. R. Smith wrote it all.", "Good book."]),
        ("1. First thing here\n2. Second", ["1. First thing here.", "2. Second"]),
        ("Two things:\n- the first one\n- second", ["Two things: the first one.", "second"]),
        ("A heading of some length\n\nBody text.", ["A heading of some length.", "Body text."]),
        ("No. 5 is the best one. Yes.", ["No. 5 is the best one.", "Yes."]),
        ("Hi. I am here now. Bye.", ["Hi. I am here now.", "Bye."]),
        ("— … !? ---", []),
        (" \n\t ", []),
        ("", []),
        ("🙂👍🏽❤️", []),
        ('Wait<break time="500ms"/>now.', ["Wait", Pause(seconds=0.5), "now."]),
        (
            "你好世界你好世界你好世界你好世界你好世界。我们走吧。",
            ["你好世界你好世界你好世界你好世界你好世界。", "我们走吧。"],
        ),
    ],
)
def test_where_units_end(text, expected):
    assert units_of(text) == expected


def test_the_first_unit_may_end_at_a_clause_so_that_sound_starts_sooner():
    text = "When the long winter was over and the ice had gone, " * 2 + "we left."
    first, *rest = units_of(text)
    assert first == "When the long winter was over and the ice had gone,"
    assert len(rest) == 1


def test_a_sentence_is_given_out_as_soon_as_the_space_after_it_comes():
    segmenter = TextSegmenter(LIMITS)
    assert segmenter.push("This is a sentence.") == []
    assert spoken(segmenter.push(" ")) == ["This is a sentence."]


def test_flush_ends_a_unit_in_the_middle():
    segmenter = TextSegmenter(LIMITS)
    assert segmenter.push("so far ") == []
    assert spoken(segmenter.flush()) == ["so far"]
    assert segmenter.push("\n\nand on") == []
    assert spoken(segmenter.flush()) == ["and on"]


def test_a_giant_word_is_cut_and_nothing_is_lost():
    units = units_of("a" * 3000)
    assert "".join(units) == "a" * 3000
    assert max(map(len, units)) <= LIMITS.max_unit


def test_digits_count_as_the_words_they_are_spoken_as():
    units = units_of(" ".join(["123456"] * 30))
    assert max(sum(map(str.isdigit, unit)) for unit in units) * 6 <= LIMITS.max_unit


def test_long_text_without_sentence_ends_is_cut_at_words():
    text = "and then we went on " * 250
    units = units_of(text)
    assert " ".join(units).split() == text.split()


@FAST
@given(text=TRICKY, places=st.lists(st.integers(0, 120), max_size=12))
def test_streamed_words_keep_all_text_and_are_never_torn(text, places):
    holder = WordHolder()
    parts = []
    for piece in split_at(text, places):
        parts += holder.push(piece)
    parts += holder.flush()
    whole = WordHolder()
    expected = whole.push(text) + whole.flush()

    def words(units):
        merged = [[]]
        for unit in units:
            if isinstance(unit, Pause):
                merged += [unit, []]
            else:
                merged[-1] += [unit]
        return ["".join(one).split() if isinstance(one, list) else one for one in merged]

    assert words(parts) == words(expected)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two three four", ("one two", "three four")),
        ("a" + " " * 9_000 + "b", ("a", "b")),
        ("unbroken", ("unbr", "oken")),
        ("words --", ("words",)),
        ("x", ()),
        ("", ()),
    ],
)
def test_a_unit_that_proved_too_long_is_cut_near_its_middle(text, parts):
    assert split_unit(text) == parts


HOSTILE = [
    *(
        "and so on ",
        "and so. ",
        "](",
        "[a](b",
        "](a(a)",
        "<b ",
        "<break time=",
        "[",
        "|",
        "*",
        "- ",
    ),
    *(
        "```\n",
        "a",
        " ",
        "\n",
        "http://a",
        "1. ",
        "a.b.",
        "[^a",
        "> ",
        "字",
        "字。",
        "👍",
        "\u200d",
    ),
    *("a ( ", "a. ((((", "a, ", "Dr. ", "<break/>", "a\n\n"),
]


@pytest.mark.parametrize("seed", HOSTILE)
def test_text_that_comes_in_small_pieces_is_not_read_again_and_again(seed):
    """A quadratic reader would need 36 times as long for 6 times the text."""
    short, long = ((seed * n)[:n] for n in (2_000, 12_000))
    for cutter in (lambda: TextSegmenter(LIMITS), WordHolder):
        assert any(cpu_s(cutter(), long) < 18 * cpu_s(cutter(), short) for _ in range(3))


def cpu_s(cutter, text):
    begun_s = time.process_time()
    for one in text:
        cutter.push(one)
    cutter.flush()
    return max(time.process_time() - begun_s, 1e-3)
