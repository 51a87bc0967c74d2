"""The letters in which byte-level tokenizers write bytes. No torch.

Source: GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the other bytes in turn for
the characters from U+0100 on.
"""

from __future__ import annotations

from typing import Final


def _byte_of_letter() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


BYTE_OF_LETTER: Final = _byte_of_letter()
"""The byte that each letter stands for."""
LETTER_OF_BYTE: Final = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}
