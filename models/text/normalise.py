"""Written English to words as they are spoken. Pure, deterministic, any thread."""

from __future__ import annotations

import re
import unicodedata

from models.text.errors import check_text
from models.text.numbers import whole_number


def normalise(text: str) -> str:
    """Spoken words of `text`, with sentence punctuation kept; empty when nothing can be said.

    Raises:
        TextError: the text holds a NUL or a lone surrogate.
    """
    check_text(text)
    plain = unicodedata.normalize("NFKC", text).replace("’", "'")
    plain = re.sub(r"[–—]", ", ", plain)
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", plain)
    plain = re.sub(r"[0-9]+", lambda found: f" {whole_number(found.group())} ", plain)
    plain = re.sub(r"[^A-Za-z' ,.?!;:]", " ", plain)
    plain = re.sub(r"\s+", " ", plain)
    plain = re.sub(r"\s+(?=[,.?!;:])", "", plain).strip()
    return plain if re.search("[A-Za-z]", plain) else ""
