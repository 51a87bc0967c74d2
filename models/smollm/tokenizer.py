"""Text to ids and back, by the byte-level BPE that the GGUF metadata holds.

Text never becomes a control id: what looks like `<|im_end|>` in a message is read as characters, so
that nobody can close their own message and open another.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.errors import WeightError
from models.smollm.config import N_CONTROL_IDS
from models.text.byte_letters import BYTE_OF_LETTER

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SmolTokenizer:
    """Encodes and decodes; holds no state between calls, so any thread may use it.

    Args:
        tokens: the token of every id, its bytes written as letters (`models.text.byte_letters`).
        merges: pairs to join, by rank, each as two tokens with a space between.
    """

    def __init__(self, tokens: Sequence[str], merges: Sequence[str]) -> None:
        self._bpe = _make_bpe(tokens, merges)
        self._bytes = [
            b"" if id_ < N_CONTROL_IDS else _bytes_of(token) for id_, token in enumerate(tokens)
        ]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, none a control id; bytes that the vocabulary lacks are left out."""
        # A lone surrogate has no UTF-8 form.
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        ids: list[int] = self._bpe.encode(clean, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; an incomplete last character is held back.

        More ids only ever add to the end of it: a client can be sent what is new.
        """
        raw = b"".join([self._bytes[id_] for id_ in ids])
        return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(raw)


def _make_bpe(tokens: Sequence[str], merges: Sequence[str]) -> Tokenizer:
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers
    except ImportError as error:
        message = "smollm2-135m needs the package tokenizers; pip install 'parley[voice]'"
        raise WeightError(message) from error
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    if any(not right or " " in right for _, right in pairs):
        raise WeightError("the GGUF file has BPE merges that are not pairs of tokens")
    bpe = Tokenizer(
        models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=pairs)
    )
    # Source: the pre-tokenizer that llama.cpp names "smollm": every digit by itself, then GPT-2's.
    digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, gpt2])
    return bpe


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(BYTE_OF_LETTER[character] for character in token)
    except KeyError as error:
        raise WeightError(f"the GGUF file has a token that is not bytes: {token!r}") from error
