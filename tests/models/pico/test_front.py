# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""Text to units: words in context, spans, sentence ends, and any string at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.pico import units
from models.pico.front import text_to_units
from models.text.errors import TextError


def _say(text: str) -> str:
    return units.join_units(text_to_units(text).ids)


@pytest.mark.parametrize(
    ("text", "ipa"),
    [
        ("Hello, world!", "həlˈoʊ, wˈɜːld!"),
        ("The cat and the apple", "ðə kˈæt ænd ðɪ ˈæpəl."),
        ("a lot to eat, to go to.", "ɐ lˈɑːt tʊ ˈiːt, tə ɡˌoʊ tˈuː."),
        ("Vitamin A", "vˈaɪɾəmən ˈeɪ."),
        ("A dog", "ɐ dˈɔːɡ."),
        ("a|b", "ˈeɪ, bˈiː."),
        ("I am.", "ˈaɪ ˈæm."),
        ("NASA and the FBI", "nˈæsə ænd ðɪ ˌɛfbˌiːˈaɪ."),
        ("the US and us", "ðə jˌuːˈɛs ænd ʌs."),
        ("PCs", "pˌiːsˈiːz."),
        ("html", "ˌeɪtʃtˌiːˌɛmˈɛl."),
        ("PLEASE STOP NOW", "plˈiːz stˈɑːp nˈaʊ."),
        ("GitHub OpenAI", "ɡˈɪthʌb ˈoʊpənˌeɪˈaɪ."),
    ],
)
def test_words_sound_right_in_their_place(text: str, ipa: str) -> None:
    assert _say(text) == ipa


@pytest.mark.parametrize(
    ("text", "sounds"),
    [
        ("I will read it.", "ɹˈiːd"),
        ("I read it yesterday.", "ɹˈɛd"),
        ("She has read it.", "ɹˈɛd"),
        ("We live here.", "lˈɪv"),
        ("a live show", "lˈaɪv"),
        ("He lives here.", "lˈɪvz"),
        ("their lives", "lˈaɪvz"),
        ("Close the door.", "klˈoʊz"),
        ("stay close to him", "klˈoʊs"),
        ("to record it", "ɹəkˈɔːɹd"),
        ("a new record", "ɹˈɛkɚd"),
        ("They present it.", "pɹiːzˈɛnt"),
        ("the present", "pɹˈɛzənt"),
        ("They object.", "əbdʒˈɛkt"),
        ("an object", "ˈɑːbdʒəkt"),
        ("no use", "jˈuːs"),
        ("you use it", "jˈuːz"),
        ("I used to go", "jˈuːst"),
        ("wind up the clock", "wˈaɪnd"),
        ("the wind", "wˈɪnd"),
        ("a lead pipe", "lˈɛd"),
        ("a minute", "mˈɪnət"),
        ("an estimate", "ˈɛstəmət"),
    ],
)
def test_heteronyms_go_by_their_neighbours(text: str, sounds: str) -> None:
    assert sounds in _say(text).rstrip(".").split(" ")


@pytest.mark.parametrize(
    ("text", "end"), [("so", "."), ("so,", "."), ("so?", "?"), ("so!", "!"), ("so: ", ".")]
)
def test_every_sequence_ends_like_a_sentence(text: str, end: str) -> None:
    assert units.UNITS[text_to_units(text).ids[-1]] == end


def test_spans_tell_which_units_a_word_has() -> None:
    said = text_to_units("Meet Dr. Lee at 5.")
    assert [word.text for word in said.words] == ["meet", "doctor", "lee", "at", "five"]
    parts = [units.join_units(said.ids[word.start : word.end]) for word in said.words]
    assert parts[:3] == ["mˈiːt", "dˈɑːktɚ", "lˈiː"]
    gaps = zip(said.words, said.words[1:], strict=False)
    assert all(right.start - left.end >= 1 for left, right in gaps)


@pytest.mark.parametrize("text", ["", " ", "—…!?", "🙂", "Привет", "שלום"])
def test_unspeakable_text_gives_no_units(text: str) -> None:
    assert text_to_units(text).ids == ()
    assert text_to_units(text).words == ()


def test_the_english_part_of_mixed_text_is_spoken() -> None:
    assert _say("שלום and hello") == "ænd həlˈoʊ."


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=80), st.text(alphabet="aAeE'bBsSzZ .,-19$%?", max_size=60)))
def test_any_string_gives_bounded_units_in_range_or_a_typed_error(text: str) -> None:
    try:
        said = text_to_units(text)
    except TextError:
        return
    assert said == text_to_units(text)
    assert len(said.ids) <= 120 * len(text)
    assert all(units.BOA_ID < one < units.N_UNITS for one in said.ids)
    assert bool(said.ids) == bool(said.words)
    if said.ids:
        assert units.UNITS[said.ids[-1]] in units.SENTENCE_ENDS
        assert all(word.start < word.end for word in said.words)
