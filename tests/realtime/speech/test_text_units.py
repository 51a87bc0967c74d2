"""Units depend on the whole text alone, hold every word once, and keep together what belongs so."""

# ruff: noqa: RUF001 - the look-alike characters in this file are meant

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.text.breaks import Pause
from realtime.config import TextLimits
from realtime.speech.text_units import TextSegmenter, WordHolder, is_speakable, split_unit

LIMITS = TextLimits()
SMALL = TextLimits(min_sentence=3, first_clause=6, max_unit=12)
PIECES = [*"aAbZ .,!?\n\"')(<>/=1023…—*_。！é\u0301\t", "  ", "a. ", "<break time='1s'/>", "<break"]
TRICKY = st.lists(st.sampled_from(PIECES), max_size=100).map("".join)
FAST = settings(deadline=None, max_examples=80)


def units_of(*pieces, limits=LIMITS):
    segmenter = TextSegmenter(limits)
    units = []
    for piece in pieces:
        units += segmenter.push(piece)
    return units + segmenter.flush()


def split_at(text, places):
    cuts = sorted({min(place, len(text)) for place in places})
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@FAST
@given(text=TRICKY, places=st.lists(st.integers(0, 120), max_size=12), small=st.booleans())
def test_units_do_not_depend_on_the_pieces(text, places, small):
    limits = SMALL if small else LIMITS
    assert units_of(*split_at(text, places), limits=limits) == units_of(text, limits=limits)


@FAST
@given(text=TRICKY)
def test_one_character_at_a_time_is_the_same(text):
    assert units_of(*text, limits=SMALL) == units_of(text, limits=SMALL)


@FAST
@given(text=st.text(alphabet=st.characters(max_codepoint=0x24FF), max_size=100))
def test_every_speakable_character_is_spoken_once_and_in_order(text):
    text = text.replace("<", "(")
    spoken = "".join(unit for unit in units_of(text, limits=SMALL) if isinstance(unit, str))
    assert [one for one in spoken if is_speakable(one)] == [
        one for one in text if is_speakable(one)
    ]


@FAST
@given(text=st.text(alphabet="ab ", max_size=400))
def test_units_stay_under_the_cap(text):
    units = units_of(text, limits=SMALL)
    assert all(len(" ".join(unit.split())) <= SMALL.max_unit for unit in units)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is fine today. We go out.", ["It is fine today.", "We go out."]),
        ("Meet Dr. Lee at 5:30 p.m. on Monday.", ["Meet Dr. Lee at 5:30 p.m. on Monday."]),
        ("See e.g. the FBI, i.e. three.", ["See e.g. the FBI, i.e. three."]),
        ("It costs 3.14 dollars. Cheap enough.", ["It costs 3.14 dollars.", "Cheap enough."]),
        (
            "Read https://example.org/a.b?c=d. Then have lunch.",
            ["Read https://example.org/a.b?c=d.", "Then have lunch."],
        ),
        ('He asked "What is it?" and left.', ['He asked "What is it?" and left.']),
        ("Well... maybe we can do that. Sure.", ["Well... maybe we can do that.", "Sure."]),
        ("We came home at 5 p.m. Then we ate.", ["We came home at 5 p.m.", "Then we ate."]),
        ("J. R. Smith wrote it all. Good book.", ["J. R. Smith wrote it all.", "Good book."]),
        ("1. First thing here\n2. Second", ["1. First thing here\n2. Second"]),
        ("A heading of some length\n\nBody text.", ["A heading of some length", "Body text."]),
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
    assert segmenter.push(" ") == ["This is a sentence."]


def test_flush_ends_a_unit_in_the_middle():
    segmenter = TextSegmenter(LIMITS)
    assert segmenter.push("so far ") == []
    assert segmenter.flush() == ["so far"]
    assert segmenter.push("and on") == []
    assert segmenter.flush() == ["and on"]


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
