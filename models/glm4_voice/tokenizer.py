"""Text to ids and back, by `tokenizer.model`; marks and speech tokens by `tokenizer_config.json`.

`tokenizer.model` is no SentencePiece file: a line for each token, its bytes in base64 and its rank,
which is its id (tiktoken). A pair of neighbours is joined first whose whole has the lowest rank.
What stands above the ranks is named in `added_tokens_decoder` of `tokenizer_config.json`: marks
such as `<|user|>`, and `<|audio_0|>` and so on. The code that lies beside these files is not run.

Text never becomes a mark: what looks like `<|user|>` in a message is read as characters.

Source: zai-org/glm-4-9b, `tokenization_chatglm.py` (Apache-2.0); openai/tiktoken, `_educational.py`
(MIT).
"""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from models.checkpoint import REMEDY, Config, read_config
from models.errors import WeightError
from models.text.byte_letters import LETTER_OF_BYTE

RANKS_FILE: Final = "tokenizer.model"
MARKS_FILE: Final = "tokenizer_config.json"
WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How words are parted before their bytes are joined. Source: `tokenization_chatglm.py`."""


class GlmTokenizer:
    """Encodes and decodes; holds no state between calls, so any thread may use it.

    Args:
        ranks: id of each token, by its bytes; ids from 0 on, without a gap.
    """

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        self._bytes = sorted(ranks, key=ranks.__getitem__)
        vocabulary = {_letters(token): rank for token, rank in ranks.items()}
        # A word that is a token stays one, as in tiktoken.
        self._bpe = Tokenizer(BPE(vocab=vocabulary, merges=_merges(ranks), ignore_merges=True))
        words = pre_tokenizers.Split(Regex(WORDS), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence([words, letters])

    @property
    def n_ids(self) -> int:
        """Ids of text: marks lie above."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, none of them a mark."""
        # A lone surrogate has no UTF-8 form.
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        ids: list[int] = self._bpe.encode(clean, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; an incomplete last character is held back."""
        raw = b"".join(self._bytes[idx] for idx in ids)
        return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(raw)


def read_tokenizer(folder: Path) -> GlmTokenizer:
    """The tokenizer of a checkpoint. Raises: `WeightError`."""
    path = folder / RANKS_FILE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise WeightError(f"{path} is missing; {REMEDY}") from None
    except OSError as error:
        raise WeightError(f"{path} cannot be read ({error}); {REMEDY}") from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            message = f"{path} line {number} is no token in base64 and its rank"
            raise WeightError(f"{message}; {REMEDY}") from None
    missing = {bytes([one]) for one in range(256)} - ranks.keys()
    if missing or sorted(ranks.values()) != list(range(len(ranks))):
        fault = f"has no byte {min(missing)!r}" if missing else "has ranks twice or none"
        raise WeightError(f"{path} {fault}; {REMEDY}")
    return GlmTokenizer(ranks)


def read_marks(folder: Path) -> dict[str, int]:
    """Ids of marks and speech tokens by name. Raises: `WeightError`."""
    added = read_config(folder / MARKS_FILE).part("added_tokens_decoder")
    marks = {added.part(idx).text("content"): _id(added, idx) for idx in added.values}
    if not marks:
        raise WeightError(f"{MARKS_FILE} has no marks in added_tokens_decoder; {REMEDY}")
    return marks


def _id(added: Config, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"{added.source} has {added.prefix}{text}, must be ids"
        raise WeightError(message) from None


def _letters(token: bytes) -> str:
    return "".join(LETTER_OF_BYTE[byte] for byte in token)


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, the lowest rank of the whole first."""
    pairs = []
    for token, rank in ranks.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ranks and right in ranks:
                pairs.append((rank, ranks[left], ranks[right], left, right))
    pairs.sort()
    return [(_letters(left), _letters(right)) for *_, left, right in pairs]
