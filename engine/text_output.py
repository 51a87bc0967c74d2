"""Text ids that a stream has drawn, to the text that each adds. Engine thread; no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

LONGEST_WAIT: Final = 16
"""Ids that may add nothing before the window moves on; an unfinished character has at most four."""


class TextOutput:
    """The ids of a stream whose text may still matter to that of the next one.

    A detokenizer reads ids in their surroundings: bytes of one character, a blank before a word. So
    the ids that gave the last text are read again with each new one, and no others: reading all of
    them for each would be quadratic in the length of an answer.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._n_read = 0

    def push(self, text_id: int, detokenize: Callable[[Sequence[int]], str]) -> str:
        """The text that `text_id` adds; may be empty.

        Raises:
            Exception: whatever the model's own `detokenize` raises.
        """
        self._ids.append(text_id)
        n_old = len(detokenize(self._ids[: self._n_read]))
        new = detokenize(self._ids)[n_old:]
        if new or len(self._ids) - self._n_read >= LONGEST_WAIT:
            del self._ids[: self._n_read]
            self._n_read = len(self._ids)
        return new
