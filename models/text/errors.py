"""The error of text that no model can take. Pure, any thread."""

from __future__ import annotations

from typing import Final

from models.errors import ModelError

NUL: Final = "\0"


class TextError(ModelError):
    """Text that is not valid Unicode text: a NUL or a lone surrogate; the message says where."""


def check_text(text: str) -> None:
    """Refuse text that cannot be encoded or stored.

    Raises:
        TextError: a NUL or a lone surrogate; line breaks and tabs are fine.
    """
    for place, character in enumerate(text):
        if character == NUL or "\ud800" <= character <= "\udfff":
            raise TextError(
                f"invalid text: U+{ord(character):04X} at character {place}; "
                "send Unicode text without NUL and lone surrogates"
            )
