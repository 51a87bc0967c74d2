# ruff: noqa: RUF001 -- dashes and quotes of every kind are input here
"""Written English becomes spoken words, and any string at all stays bounded and stable."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.text.errors import TextError
from models.text.normalise import normalise

CASES = [
    # numbers
    ("1,250 apples", "one thousand two hundred and fifty apples"),
    ("It has 3 of 12.", "It has three of twelve."),
    ("pi is 3.14", "pi is three point one four"),
    (".5 and 0.05", "zero point five and zero point zero five"),
    ("-5 and −7", "minus five and minus seven"),
    ("1st 2nd 3rd 12th 21st 100th", "first second third twelfth twenty first one hundredth"),
    ("007", "zero zero seven"),
    ("1000000", "one million"),
    ("A 3-mile run", "A three mile run"),
    # money, percent
    ("$4.50", "four dollars and fifty cents"),
    ("$1 or $0.50", "one dollar or fifty cents"),
    ("£2.5 million", "two point five million pounds"),
    ("5 € or 20 USD", "five euros or twenty dollars"),
    ("¥300", "three hundred yen"),
    ("5-10% off", "five to ten percent off"),
    # dates and times
    ("2026-03-09", "March ninth, twenty twenty six"),
    ("3/14/2026", "March fourteenth, twenty twenty six"),
    ("31/12/1999", "December thirty first, nineteen ninety nine"),
    ("March 9th", "March ninth"),
    ("Jan. 5, 2024", "January fifth, twenty twenty four"),
    ("9 March 2026", "the ninth of March, twenty twenty six"),
    ("in 2026", "in twenty twenty six"),
    ("by 1905", "by nineteen oh five"),
    ("the 1990s and '80s", "the nineteen nineties and eighties"),
    ("1990–1995", "nineteen ninety to nineteen ninety five"),
    ("at 5:30 p.m. on", "at five thirty P M on"),
    ("At 5pm. 17:45", "At five P M. seventeen forty five"),
    ("10:00", "ten o'clock"),
    ("9:05", "nine oh five"),
    # fractions, measures, ratios
    ("3/4", "three quarters"),
    ("1/2 of 2/3", "one half of two thirds"),
    ("3 1/2 cups, 1½ cups", "three and a half cups, one and a half cups"),
    ("24/7", "twenty four seven"),
    ("1 km, 3 km, 5 ft", "one kilometer, three kilometers, five feet"),
    ("20 °C and 98.6°F", "twenty degrees Celsius and ninety eight point six degrees Fahrenheit"),
    ("60 km/h or 65mph", "sixty kilometers per hour or sixty five miles per hour"),
    ("5 m²", "five square meters"),
    ("5 µs", "five microseconds"),
    ("16:9", "sixteen to nine"),
    ("pages 10-20", "pages ten to twenty"),
    ("2 + 2 = 4", "two plus two equals four"),
    # digit strings
    ("555-0123", "five five five, zero one two three"),
    ("(415) 555-2671", "four one five, five five five, two six seven one"),
    ("dial 911", "dial nine one one"),
    ("12345678901", "one two three four five six seven eight nine zero one"),
    ("v1.2.3", "version one point two point three"),
    ("B2B in 4K", "B two B in four K"),
    # abbreviations
    ("Dr. Lee met Mr. Smith, etc.", "Doctor Lee met Mister Smith, etcetera."),
    ("St. Mary on Main St.", "Saint Mary on Main Street."),
    ("e.g. this, i.e. that", "for example this, that is that"),
    ("No. 5 vs. no. 6", "number five versus number six"),
    ("the U.S.A.", "the USA."),
    ("w/o it and w/ it", "without it and with it"),
    # markdown and addresses
    ("**Two** things: `code` and _this_.\n- first\n- second",
     "Two things: code and this. first. second"),
    ("# Title\n\nText", "Title. Text"),
    ("see [the page](https://x.org/y)", "see the page"),
    ("```python\nx\n```", "x"),
    ("Read https://example.org/a?b=c#d before", "Read example dot org before"),
    ("joe.smith@example.com", "joe dot smith at example dot com"),
    ("www.foo-bar.io/a", "foo bar dot I O"),
    # whole sentences
    (
        "It costs $4.50 for 3 apples, 1,250 in total, or 50%.",
        "It costs four dollars and fifty cents for three apples, "
        "one thousand two hundred and fifty in total, or fifty percent.",
    ),
    (
        "Meet Dr. Lee at 5:30 p.m. on 2026-03-09.",
        "Meet Doctor Lee at five thirty P M on March ninth, twenty twenty six.",
    ),
    (
        "The 1st, 2nd and 21st took 3/4 of the 10:00 slot.",
        "The first, second and twenty first took three quarters of the ten o'clock slot.",
    ),
    ("It was -5 °C at 3 km.", "It was minus five degrees Celsius at three kilometers."),
    # characters
    ("Ｈｅｌｌｏ　ｗｏｒｌｄ", "Hello world"),
    ("café naïve Zoë Łódź", "cafe naive Zoe Lodz"),
    ("“don’t”", "don't"),
    ("rock 'n' roll", "rock n roll"),
    ("a — b – c... d?!", "a, b, c. d?"),
    ("All set 👍🏽 see you", "All set see you"),
    ("a|b \\x {y} <tag>", "a, b x y tag"),
    ("R&D @ 50 %", "R and D at fifty percent"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "spoken"), CASES)
def test_written_text_is_spoken_as_people_say_it(written: str, spoken: str) -> None:
    assert normalise(written) == spoken


@pytest.mark.parametrize("text", ["", " \n\t ", "— … !? ---", "🙂👍🏽❤️", "Привет", '"', "|{}<>"])
def test_text_without_anything_to_say_is_empty(text: str) -> None:
    assert normalise(text) == ""


@pytest.mark.parametrize("text", ["ok\0", "\ud800 fine", "a\udfff"])
def test_invalid_unicode_is_a_typed_error_that_names_the_place(text: str) -> None:
    with pytest.raises(TextError, match="at character"):
        normalise(text)


_PIECES = [
    'St.', 'Dr.', 'p.m.', '5', '3/4', '1999', ':30', 'e.g.', ' ', '  ', 'Main', 'March', '-', '$',
    'km', '%', 'www.a.com', '9th', 'No.', '-5', '1,000', '.', '\n- ', 'x', 'm²', '°C', "'", '"',
    '*', '_', '`', '#', '(', ')', '@', '—', '–', 'é', 'Ω', '½', 'A', 'a', 'I', '&', '+', '=', '<',
    '>', '~', '€', '0', '12:00', 'et al.', 'w/', 'T', '?', '!', ',', ';', ':', '^', '/'
]  # fmt: skip
_ANY_TEXT = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from(_PIECES), max_size=14).map("".join)
)


@settings(max_examples=150, deadline=None)
@given(_ANY_TEXT)
def test_any_string_is_normalised_to_plain_words_or_refused(text: str) -> None:
    try:
        spoken = normalise(text)
    except TextError:
        assert re.search("[\0\ud800-\udfff]", text)
        return
    assert re.fullmatch(r"(?:[A-Za-z][A-Za-z']*[,.?!;:]?(?: |$))*", spoken)
    assert len(spoken) <= 60 * len(text)  # one sign can be "minus ... degrees Fahrenheit"
    assert normalise(spoken) == spoken


N_REPEATS = 4000


@pytest.mark.parametrize(
    "seed", ["1-", "1.", "a.", "(1", "5:", "1/", "<", "*", "@a.", "www.", "$1 "]
)
def test_hostile_repeats_take_no_quadratic_time(seed: str) -> None:
    """A quadratic pattern would take minutes here."""
    assert len(normalise(seed * N_REPEATS)) <= 60 * N_REPEATS * len(seed)
