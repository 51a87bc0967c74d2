"""What speech recognition makes up, found in its text: loops, and text without words. Pure."""

from __future__ import annotations

from typing import Final

from realtime.speech.text_units import is_speakable

LONGEST_LOOP: Final = 16
"""Words of the longest phrase that is looked for."""
FEWEST_ROUNDS: Final = 3
"""A phrase so often in a row was hardly said so."""
FEWEST_SINGLE_ROUNDS: Final = 5
"""The same for one word: `no, no, no, no` is said."""


def is_suspect(text: str) -> bool:
    """Whether a phrase comes round and round, or all of the text is one phrase twice."""
    words = _bare_words(text)
    half, odd = divmod(len(words), 2)
    is_double = not odd and half > 0 and words[:half] == words[half:]
    return is_double or _find_loop(words) is not None


def without_loops(text: str) -> str:
    """`text` with each phrase that comes round and round left in once.

    Empty where nothing in it is a word: `. . . .` is what recognition makes of a hum.
    """
    if not is_speakable(text):
        return ""
    words = text.split()
    while (loop := _find_loop([_bare(word) for word in words])) is not None:
        start, n_words, n_rounds = loop
        del words[start + n_words : start + n_words * n_rounds]
    return " ".join(words)


def _find_loop(words: list[str]) -> tuple[int, int, int] | None:
    """The first loop: where it starts, the words of its phrase, how often it comes."""
    for start in range(len(words)):
        for n_words in range(1, min(LONGEST_LOOP, (len(words) - start) // FEWEST_ROUNDS) + 1):
            n_rounds = _n_rounds(words, start, n_words)
            if n_rounds >= (FEWEST_SINGLE_ROUNDS if n_words == 1 else FEWEST_ROUNDS):
                return start, n_words, n_rounds
    return None


def _n_rounds(words: list[str], start: int, n_words: int) -> int:
    phrase = words[start : start + n_words]
    n_rounds = 1
    while words[start + n_rounds * n_words :][:n_words] == phrase:
        n_rounds += 1
    return n_rounds


def _bare_words(text: str) -> list[str]:
    """Without the marks that stand alone: a row of them is no loop but nothing at all."""
    return [_bare(word) for word in text.split() if is_speakable(word)]


def _bare(word: str) -> str:
    """A word as it sounds: without case and marks; the marks where there is nothing else."""
    return "".join(one for one in word.casefold() if one.isalnum()) or word
