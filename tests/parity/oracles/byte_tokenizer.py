"""A tokenizer of bytes with marks, as small checkpoints need one."""

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE


def byte_tokenizer(marks: list[str]) -> Tokenizer:
    """Every byte is a token; `marks` follow."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: idx for idx, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    return tokenizer
