"""Each id's text, as if all were read at once, and in time linear in their number."""

import codecs

from hypothesis import given
from hypothesis import strategies as st

from engine.text_output import LONGEST_WAIT, TextOutput
from tests.engine.harness import load_toy

TEXT = "Ça va? 你好, \N{FAMILY} नमस्ते!\N{WAVING HAND SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-5} "


def decode(tokens):
    """Byte-level BPE: a token may end, or begin, within a character."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(b"".join(tokens))


def sentence_piece(words):
    """A blank stands before each word but the first one that is read."""
    return " ".join(words)


def told(ids, detokenize):
    output = TextOutput()
    return [output.push(one, detokenize) for one in ids]


@given(st.lists(st.binary(max_size=3), max_size=60))
def test_pieces_are_the_text_of_all_ids_whatever_bytes_they_hold(tokens):
    assert "".join(told(tokens, decode)) == decode(tokens)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_characters_come_whole_wherever_tokens_are_cut(sizes):
    raw, tokens = TEXT.encode() * 2, []
    for size in sizes:
        tokens.append(raw[:size])
        raw = raw[size:]
    tokens.append(raw)
    pieces = told(tokens, decode)
    assert "".join(pieces) == TEXT * 2
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


@given(st.lists(st.sampled_from(["we", "go", "on"]), max_size=40))
def test_a_blank_before_a_word_is_kept(words):
    assert "".join(told(words, sentence_piece)) == " ".join(words)


@given(st.lists(st.integers(0, 255), max_size=60))
def test_a_toy_says_the_same(raw):
    toy = load_toy("toy-mixed")
    ids = [3 + byte for byte in raw]
    assert "".join(told(ids, toy.detokenize_text)) == toy.detokenize_text(ids)


def test_ids_that_add_nothing_are_not_read_for_ever():
    """4000 ids of an answer were read 8 million times."""
    n_read = 0

    def counted(tokens):
        nonlocal n_read
        n_read += len(tokens)
        return decode(tokens)

    ids = [b"word "] * 2000 + [b""] * 2000 + [b"\xf0"] + [b"word "] * 2000
    told(ids, counted)
    assert n_read < 3 * LONGEST_WAIT * len(ids)
