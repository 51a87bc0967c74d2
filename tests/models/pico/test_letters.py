# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""Letters to sound: never silent, bounded, stressed; the aligner behind its training."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import WeightError
from models.pico import units
from models.pico.letters import (
    LETTERS_PATH,
    MAX_LETTERS,
    read_letter_model,
    shipped_letter_model,
    with_one_stress,
)
from models.pico.training.alignment import align, estimate
from models.pico.words import shipped_pronouncer

_LOWER = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("word", "consonants"),
    [("blorptastic", "blɹptstk"), ("frobnicator", "fɹbnkɾ"), ("zindle", "zndl"), ("mungo", "mŋɡ")],
)
def test_made_up_words_keep_their_consonants(word: str, consonants: str) -> None:
    said = units.join_units(shipped_letter_model().sound(word))
    assert "".join(one for one in said if one in "bdfhjklmnpstvwzðŋɡɹɾʃʒθ") == consonants


def test_a_very_long_word_is_bounded() -> None:
    model = shipped_letter_model()
    assert model.sound("a" * 2000) == model.sound("a" * MAX_LETTERS)


@given(st.text(alphabet=_LOWER, min_size=1, max_size=60))
def test_no_word_is_silent(word: str) -> None:
    ids = shipped_pronouncer().say(word)
    assert 0 < len(ids) <= 4 * MAX_LETTERS
    assert all(units.FIRST_PHONEME_ID <= one < units.N_UNITS for one in ids)


def test_the_same_word_sounds_the_same_every_time() -> None:
    model = shipped_letter_model()
    assert model.sound("quuxification") == model.sound("quuxification")


@pytest.mark.parametrize(
    ("ipa", "stressed"),
    [
        ("bənæn", "bənˈæn"),
        ("kˈætdˈɔːɡ", "kˈætdˌɔːɡ"),
        ("təmˌeɪtoʊ", "təmˈeɪtoʊ"),
        ("tə", "tˈʌ"),
        ("st", "st"),
    ],
)
def test_exactly_one_primary_stress(ipa: str, stressed: str) -> None:
    ids = with_one_stress(list(units.split_ipa(ipa)))
    assert units.join_units(ids) == stressed


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="cannot read"):
        read_letter_model(tmp_path / "none.safetensors")
    assert LETTERS_PATH.stat().st_size < 1_000_000


def test_alignment_finds_which_letter_makes_which_sound() -> None:
    pairs = [("cat", "kat"), ("tack", "tak"), ("fox", "foks"), ("tax", "taks"), ("cot", "kot")] * 3
    scores = estimate(pairs, n_rounds=4)
    assert align("fox", "foks", scores) == ["f", "o", "ks"]
    assert align("cat", "kat", scores) == ["k", "a", "t"]
    assert align("a", "abcdef", scores) == []
