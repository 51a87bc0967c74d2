"""Text to the ids of Chatterbox's tokenizers. Worker threads; no torch.

Source: resemble-ai/chatterbox, `tts.py`, `mtl_tts.py` and `models/tokenizers/` (MIT): what marks of
punctuation become, the language in brackets, Chinese spelled by Cangjie. The reference also reads
Japanese, Hebrew and Russian by packages that turn them into kana, or add vowels and stress; without
them it leaves the text as it is, and so does this, but for characters that then have no sound.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from unicodedata import category, normalize

from tokenizers import Tokenizer

from models.errors import PlanError, WeightError

START: Final = "[START]"
STOP: Final = "[STOP]"
SPACE: Final = "[SPACE]"
CHINESE, JAPANESE = "zh", "ja"
REPLACED: Final = (
    ("...", ", "),
    ("…", ", "),
    (":", ","),
    (" - ", ", "),
    (";", ", "),
    ("—", "-"),
    ("–", "-"),  # noqa: RUF001  what a text may hold
    (" ,", ","),
    ("“", '"'),
    ("”", '"'),
    ("‘", "'"),  # noqa: RUF001  what a text may hold
    ("’", "'"),  # noqa: RUF001  what a text may hold
)
"""One after another, each in what the ones before it left."""
_ENDS: Final = (*".!?-,", *"、，。？！")  # noqa: RUF001  what a text may hold
_FIRST_HAN, _LAST_HAN = "\u4e00", "\u9fff"


class TextReader:
    """The tokenizer of a checkpoint.

    Args:
        tokenizer: of its file.
        languages: that it is told of; empty: it is told of none, and reads English alone.
        cangjie: how Chinese characters are spelled, see `read_cangjie`.
        source: the tokenizer's file, for messages.

    Raises:
        WeightError: a token with a meaning is not there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        languages: tuple[str, ...] = (),
        cangjie: Mapping[str, str] | None = None,
        *,
        source: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._languages = languages
        self._cangjie = cangjie or {}
        marks = (START, STOP, SPACE, *(f"[{language}]" for language in languages))
        ids = tokenizer.get_vocab()
        absent = [mark for mark in marks if mark not in ids]
        if absent:
            raise WeightError(f"{source} has no token {', '.join(absent)}: it is no Chatterbox's")
        self._start, self._stop = ids[START], ids[STOP]

    def ids(self, text: str, language: str) -> list[int]:
        """Ids of a text between its two marks.

        Raises:
            PlanError: `unsupported_characters`: Japanese with kanji, which only kana can say.
        """
        said = punctuated(text)
        if self._languages:
            said = f"[{language}]{self._spelled(normalize('NFKD', said.lower()), language)}"
        ids = self._tokenizer.encode(said.replace(" ", SPACE)).ids
        return [self._start, *ids, self._stop]

    def _spelled(self, text: str, language: str) -> str:
        if language == JAPANESE and any(_FIRST_HAN <= one <= _LAST_HAN for one in text):
            message = "Japanese is read from kana: write the kanji of the text in hiragana"
            raise PlanError("unsupported_characters", message, "text")
        if language != CHINESE:
            return text
        return "".join(
            self._cangjie.get(one, one) if category(one) == "Lo" else one for one in text
        )


def punctuated(text: str, replaced: Sequence[tuple[str, str]] = REPLACED) -> str:
    """A text with the marks that the model knows, a capital at its start and an end."""
    said = " ".join((text[:1].upper() + text[1:] if text[:1].islower() else text).split())
    for old, new in replaced:
        said = said.replace(old, new)
    said = said.rstrip(" ")
    return said if said.endswith(_ENDS) else f"{said}."


def read_cangjie(path: Path) -> dict[str, str]:
    """Chinese characters as rows of Cangjie tokens.

    The file lists `character<TAB>code`. Characters of one code are told apart by their number.

    Raises:
        WeightError: it is damaged.
    """
    try:
        entries = [entry.split("\t")[:2] for entry in json.loads(path.read_text("utf-8"))]
        codes = dict(entries)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WeightError(f"{path} cannot be read ({error}); fetch it again") from error
    alike: dict[str, list[str]] = defaultdict(list)
    for character, code in entries:
        alike[code].append(character)
    spelled = {}
    for character, code in codes.items():
        number = alike[code].index(character)
        letters = f"{code}{number or ''}"
        spelled[character] = "".join(f"[cj_{letter}]" for letter in (*letters, "."))
    return spelled
