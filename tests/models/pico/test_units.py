# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""The unit inventory is fixed, spells out in the teacher's characters, and cuts strings."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.pico import units

_VOICE = frozenset(
    " !,-.:;?abcdefhijklmnopqrstuvwxyzæçðøħŋœɐɑɒɔəɚɛɜɡɪɫɹɾʃʊʌʍʎʒʔʲˈˌːβθχᵻ\u0303\u0329"
)
"""Characters of the teacher voice's phoneme table that matter here."""


def test_ids_never_change() -> None:
    """Weights are trained on these ids: another order makes every weight file useless."""
    digest = hashlib.sha256("\n".join(units.UNITS).encode()).hexdigest()
    assert units.N_UNITS == 101
    assert digest.startswith(_DIGEST)
    assert [units.unit_id(one) for one in ("<pad>", "<bos>", "<boa>", " ", ",")] == [0, 1, 2, 3, 4]


_DIGEST = "86c7d7d7ab107f34"


def test_every_unit_spells_out_in_the_voice_table() -> None:
    for one in range(units.FIRST_PHONEME_ID, units.N_UNITS):
        assert set(units.voice_characters(one)) <= _VOICE
    assert units.voice_characters(units.BOS_ID) == ()
    assert units.voice_characters(units.unit_id("ˈiː")) == ("ˈ", "i", "ː")


@given(st.lists(st.integers(3, units.N_UNITS - 1)))
def test_strings_and_ids_convert_both_ways(ids: list[int]) -> None:
    assert units.units_to_ids(units.ids_to_units(ids)) == tuple(ids)
    assert units.join_units(units.split_ipa(units.join_units(ids))) == units.join_units(ids)


def test_longest_unit_wins() -> None:
    assert units.ids_to_units(units.split_ipa("tʃˈiːz, iə")) == ("tʃ", "ˈiː", "z", ",", " ", "iə")


@pytest.mark.parametrize("ipa", ["ʘ", "5", "tˈ"])
def test_unknown_symbols_are_named(ipa: str) -> None:
    with pytest.raises(units.UnitError, match="no unit"):
        units.split_ipa(ipa)


@pytest.mark.parametrize("one", [-1, 101])
def test_ids_out_of_range_are_named(one: int) -> None:
    with pytest.raises(units.UnitError, match=str(one)):
        units.ids_to_units([one])


@pytest.mark.parametrize(
    ("unit", "mark", "other"),
    [("iː", "ˈ", "ˈiː"), ("ˈiː", "ˌ", "ˌiː"), ("ə", "ˈ", "ˈʌ"), ("ɚ", "ˌ", "ˌɜː"), ("t", "ˈ", "t")],
)
def test_stress_moves_between_units_of_a_vowel(unit: str, mark: str, other: str) -> None:
    assert units.restress(units.unit_id(unit), mark) == units.unit_id(other)
