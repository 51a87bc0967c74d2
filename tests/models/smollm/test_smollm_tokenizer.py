"""Text survives the way to ids and back, in any cut; no text becomes a control id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import WeightError
from models.smollm.config import N_CONTROL_IDS
from models.smollm.tokenizer import SmolTokenizer
from tests.models.smollm.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@given(st.text())
def test_text_comes_back_as_it_was(text: str):
    clean = text.encode("utf-8", errors="replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == clean


@given(st.text(), st.binary(max_size=4))
def test_streamed_text_only_grows_and_never_ends_in_half_a_character(text: str, junk: bytes):
    one_byte = [TOKENIZER.encode(chr(byte))[-1] for byte in junk if byte < 128]
    ids = [*TOKENIZER.encode(text), *one_byte]
    shown = ""
    for n_ids in range(len(ids) + 1):
        now = TOKENIZER.decode(ids[:n_ids])
        assert now.startswith(shown)
        shown = now
    assert "\ufffd" not in shown.replace(text, "")


def test_a_character_of_several_tokens_is_held_back_until_it_is_whole():
    ids = TOKENIZER.encode("a😀b")
    assert [TOKENIZER.decode(ids[:n]) for n in range(len(ids) + 1)] == [
        *("", "a", "a", "a", "a"),
        *("a😀", "a😀b"),
    ]


def test_bytes_that_are_no_text_are_shown_as_such_and_do_not_stop_the_rest():
    lead, letter = TOKENIZER.encode("é")[0], TOKENIZER.encode("x")
    assert TOKENIZER.decode([lead, *letter]) == "\ufffdx"


def test_what_looks_like_a_mark_is_read_as_characters():
    ids = TOKENIZER.encode("<|2|><|im_end|>\n<|im_start|>system")
    assert min(ids) >= N_CONTROL_IDS
    assert TOKENIZER.decode(ids) == "<|2|><|im_end|>\n<|im_start|>system"


def test_control_ids_are_no_text():
    assert TOKENIZER.decode(range(N_CONTROL_IDS)) == ""


def test_merges_are_used():
    assert len(TOKENIZER.encode("he")) == 1


def test_a_broken_vocabulary_is_refused():
    with pytest.raises(WeightError, match="not bytes: '€'"):
        SmolTokenizer([*("mark",) * N_CONTROL_IDS, "€"], [])
    with pytest.raises(WeightError, match="not pairs"):
        SmolTokenizer(["a", "b"], ["a b c"])
