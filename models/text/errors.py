"""The error of text that no model can take. Pure, any thread."""

from __future__ import annotations

import re
from typing import Final

from models.errors import ModelError

_INVALID: Final = re.compile("[\\0\ud800-\udfff]")


class TextError(ModelError):
    """Text that is not valid Unicode text: a NUL or a lone surrogate; the message says where."""


def check_text(text: str) -> None:
    """Refuse text that cannot be encoded or stored.

    Raises:
        TextError: a NUL or a lone surrogate; line breaks and tabs are fine.
    """
    found = _INVALID.search(text)
    if found:
        raise TextError(
            f"invalid text: U+{ord(found.group()):04X} at character {found.start()}; "
            "send Unicode text without NUL and lone surrogates"
        )
