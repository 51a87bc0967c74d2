"""Answers cut for speech: the end at a sentence, and the way from audio back to text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.agent import clauses
from realtime.agent.clauses import ANSWER_TEXT, SentenceGate, SpokenPlaces
from realtime.speech.text_units import TextSegmenter, next_cut

PIECES = st.lists(
    st.sampled_from(
        ["Sure", ",", " ", "I can", ". ", "No", "! ", "3.5", "?", '"', "\n\n", "a", "e.g. "]
    ),
    max_size=40,
)


def gated(*pieces: str, is_cut: bool = False) -> tuple[list[str], str, bool]:
    gate = SentenceGate()
    passed = [gate.push(one) for one in pieces]
    rest, is_whole = gate.finish(is_cut=is_cut)
    return passed, rest, is_whole


def test_the_first_sentence_passes_at_once():
    passed, _, _ = gated("Sure", ", I", " can.")
    assert passed == ["Sure", ", I", " can."]


def test_later_sentences_pass_when_they_are_whole():
    passed, rest, is_whole = gated("Yes. ", "It is", " late. ", "Go", is_cut=True)
    assert passed == ["Yes. ", "", "It is late. ", ""]
    assert (rest, is_whole) == ("", True)


def test_a_whole_last_sentence_is_kept_though_the_limit_has_come():
    passed, rest, is_whole = gated("Yes. ", "It is late.", is_cut=True)
    assert "".join(passed) + rest == "Yes. It is late."
    assert is_whole


def test_a_first_sentence_that_never_ends_is_kept_and_said_to_be_cut():
    passed, rest, is_whole = gated("And then ", "he went", is_cut=True)
    assert "".join(passed) + rest == "And then he went"
    assert not is_whole


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_sentence_that_comes_again_ends_the_answer(is_cut: bool):
    gate = SentenceGate()
    passed = [gate.push(one) for one in ("I am. ", "So is he. ", "I am! ", "More. ")]
    assert passed == ["I am. ", "So is he. ", "", ""]
    assert gate.is_looping
    assert gate.finish(is_cut=is_cut) == ("", True)


def test_a_last_sentence_that_comes_again_is_left_out():
    passed, rest, is_whole = gated("I am. ", "So is he. ", "I am")
    assert "".join(passed) + rest == "I am. So is he. "
    assert is_whole


@given(PIECES)
def test_without_a_cut_nothing_is_lost_but_what_comes_again(pieces):
    gate = SentenceGate()
    passed = [gate.push(one) for one in pieces]
    rest, is_whole = gate.finish(is_cut=False)
    assert is_whole
    if gate.is_looping:
        assert "".join(pieces).startswith("".join(passed) + rest)
    else:
        assert "".join(passed) + rest == "".join(pieces)


@given(PIECES)
def test_a_cut_takes_from_the_end_alone(pieces):
    passed, rest, _ = gated(*pieces, is_cut=True)
    assert "".join(pieces).startswith("".join(passed) + rest)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("A week is seven days. It", "A week is seven days."),
        ("Well, of course, I can help you with that.", "Well, of course,"),
        ("Hello there! I am here.", "Hello there!"),
    ],
)
def test_the_first_unit_of_an_answer_is_short(text: str, first: str):
    assert TextSegmenter(ANSWER_TEXT).push(text + " ")[0].text == first


def test_places_follow_the_units():
    text = "  Hello there!  How are you today, my friend? <break time='1s'/> Good. So it is."
    places = SpokenPlaces(ANSWER_TEXT)
    places.push(text)
    places.end()
    assert places.n_units == 3
    assert places.n_characters == len(text)
    assert places.place_of(0) == text.index("Hello")
    assert places.place_of(5) == text.index("Hello") + 5
    # Where one unit ends the next begins.
    assert places.place_of(len("Hello there!")) == text.index("How")
    assert places.place_of(10_000) == len(text)


def test_places_are_those_of_the_written_text_though_its_markup_is_not_spoken():
    text = "## Plans\n\nSee **the [long page](https://example.org/a/b/c?d=e#f)** now, *please*."
    places = SpokenPlaces(ANSWER_TEXT)
    for one in text:
        places.push(one)
    said = "Plans. See the long page now,"
    assert text[: places.place_of(said.index("See"))] == "## Plans\n\n"
    assert text[places.place_of(said.index("page")) :].startswith("page](https")
    assert text[places.place_of(said.index("now")) :] == "now, *please*."
    places.end()
    assert places.place_of(len(said)) == text.index("please")
    assert places.place_of(10_000) == len(text)


def test_a_gate_looks_at_a_long_sentence_once_not_at_each_piece(monkeypatch):
    n_read = 0

    def counted(text, *args, **kwargs):
        nonlocal n_read
        n_read += len(text)
        return next_cut(text, *args, **kwargs)

    monkeypatch.setattr(clauses, "next_cut", counted)
    gate = SentenceGate()
    pieces = ["Yes. ", *(f"and on {n} " for n in range(5_000)), "so. "]
    for piece in pieces:
        gate.push(piece)
    assert not gate.is_looping
    n_written = sum(map(len, pieces))
    assert n_read < 20 * n_written


def test_nothing_is_spoken_of_a_text_without_units():
    places = SpokenPlaces(ANSWER_TEXT)
    assert places.place_of(3.0) == 0
    places.push("...")
    places.end()
    assert (places.n_units, places.place_of(3.0)) == (0, 0)


@given(st.lists(st.sampled_from(["Yes. ", "no ", "<break time='1s'/>", "<br", "x", "\n\n", "! "])))
def test_places_never_fall_and_end_in_the_text(pieces):
    places = SpokenPlaces(ANSWER_TEXT)
    for piece in pieces:
        places.push(piece)
    places.end()
    n_most = len("".join(pieces))
    found = [places.place_of(n / 2) for n in range(2 * n_most + 2)]
    assert found == sorted(found)
    assert found[-1] <= n_most
