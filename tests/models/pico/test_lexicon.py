# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""The shipped lexicon, its file format, and the rules for forms that it leaves out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from models.errors import WeightError
from models.pico import units
from models.pico.inflect import compound, inflected
from models.pico.lexicon import LEXICON_PATH, encode_units, read_lexicon, shipped_lexicon


def _say(ids: tuple[int, ...] | None) -> str | None:
    return None if ids is None else units.join_units(ids)


@pytest.mark.parametrize(
    ("word", "ipa"),
    [
        ("water", "wˈɔːɾɚ"),
        ("about", "ɐbˈaʊt"),
        ("button", "bˈʌʔn̩"),
        ("hurry", "hˈɜːɹi"),
        ("create", "kɹiːˈeɪt"),
        ("period", "pˈɪɹiəd"),
        ("judge", "dʒˈʌdʒ"),
        ("cafe", "kæfˈeɪ"),
    ],
)
def test_common_words_are_listed_in_the_voice_style(word: str, ipa: str) -> None:
    assert _say(shipped_lexicon().find(word)) == ipa


def test_the_file_is_small_and_full() -> None:
    lexicon = shipped_lexicon()
    assert LEXICON_PATH.stat().st_size < 1_000_000
    assert len(lexicon.words) > 100_000
    assert "NASA" in lexicon.acronyms
    assert "FBI" not in lexicon.acronyms


def test_roles_have_their_own_sound() -> None:
    lexicon = shipped_lexicon()
    assert _say(lexicon.find("record")) == "ɹˈɛkɚd"
    assert _say(lexicon.find_variant("record", "VERB")) == "ɹəkˈɔːɹd"
    assert lexicon.find_variant("record", "PAST") is None
    assert lexicon.find_variant("table", "VERB") is None


_STEMS = {
    "cat": "kˈæt",
    "dog": "dˈɔːɡ",
    "box": "bˈɑːks",
    "walk": "wˈɔːk",
    "want": "wˈɑːnt",
    "hate": "hˈeɪt",
    "run": "ɹˈʌn",
    "make": "mˈeɪk",
    "happy": "hˈæpi",
    "big": "bˈɪɡ",
    "basic": "bˈeɪsɪk",
    "terrible": "tˈɛɹəbəl",
    "key": "kˈiː",
    "board": "bˈɔːɹd",
    "offer": "ˈɔːfɚ",
    "able": "ˈeɪbəl",
    "play": "plˈeɪ",
}


def _find(word: str) -> tuple[int, ...] | None:
    ipa = _STEMS.get(word)
    return units.split_ipa(ipa) if ipa else None


@pytest.mark.parametrize(
    ("word", "ipa"),
    [
        ("cats", "kˈæts"),
        ("dogs", "dˈɔːɡz"),
        ("boxes", "bˈɑːksᵻz"),
        ("cat's", "kˈæts"),
        ("dogs'", "dˈɔːɡz"),
        ("walked", "wˈɔːkt"),
        ("wanted", "wˈɑːntᵻd"),
        ("hated", "hˈeɪɾᵻd"),
        ("played", "plˈeɪd"),
        ("running", "ɹˈʌnɪŋ"),
        ("making", "mˈeɪkɪŋ"),
        ("offering", "ˈɔːfəɹɪŋ"),
        ("bigger", "bˈɪɡɚ"),
        ("happiest", "hˈæpiᵻst"),
        ("happily", "hˈæpəli"),
        ("terribly", "tˈɛɹəbli"),
        ("basically", "bˈeɪsɪkli"),
        ("happiness", None),
        ("replay", "ɹiːplˈeɪ"),
        ("dog'll", "dˈɔːɡəl"),
        ("s", None),
        ("ing", None),
    ],
)
def test_endings_change_sounds_as_in_speech(word: str, ipa: str | None) -> None:
    assert _say(inflected(word, _find)) == ipa


def test_a_compound_has_one_primary_stress() -> None:
    assert _say(compound("keyboard", _find)) == "kˈiːbˌɔːɹd"
    assert compound("keyzzz", _find) is None


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.json.gz"
    with pytest.raises(WeightError, match="cannot read"):
        read_lexicon(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(WeightError, match="cannot read"):
        read_lexicon(path)
    fields = {"words": "a\nb", "says": encode_units([20]), "variants": {}, "acronyms": []}
    path.write_bytes(gzip.compress(json.dumps(fields).encode()))
    with pytest.raises(WeightError, match="rebuild"):
        read_lexicon(path)
