"""Which letter makes which sound: chunks of 0 to 3 units a letter, by Viterbi re-estimation.

Build time only, pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

MAX_CHUNK: Final = 3
_UNSEEN: Final = -12.0
"""Log probability of a pair that was never seen: any word can be aligned."""

Pair = tuple[str, str]
Scores = dict[Pair, float]


def align(word: str, says: str, scores: Scores) -> list[str]:
    """The best chunk of `says` (one character a unit) for each letter of `word`.

    Empty where the word has too few letters for its units.
    """
    n, m = len(word), len(says)
    best = [[-math.inf] * (m + 1) for _ in range(n + 1)]
    size = [[0] * (m + 1) for _ in range(n + 1)]
    best[0][0] = 0.0
    for row, letter in enumerate(word):
        for column in range(max(0, m - MAX_CHUNK * (n - row)), min(m, MAX_CHUNK * row) + 1):
            here = best[row][column]
            if here == -math.inf:
                continue
            for width in range(min(MAX_CHUNK, m - column) + 1):
                chunk = says[column : column + width]
                score = here + scores.get((letter, chunk), _UNSEEN - 2 * width)
                if score > best[row + 1][column + width]:
                    best[row + 1][column + width] = score
                    size[row + 1][column + width] = width
    if best[n][m] == -math.inf:
        return []
    chunks: list[str] = []
    column = m
    for row in range(n, 0, -1):
        width = size[row][column]
        chunks.append(says[column - width : column])
        column -= width
    return chunks[::-1]


def estimate(pairs: Sequence[tuple[str, str]], n_rounds: int) -> Scores:
    """Scores of (letter, chunk) pairs, starting from chance co-occurrence near the diagonal."""
    counts = _near_diagonal(pairs)
    for _ in range(n_rounds):
        scores = _log(counts)
        counts = Counter()
        for word, says in pairs:
            counts.update(zip(word, align(word, says, scores), strict=False))
    return _log(counts)


def _near_diagonal(pairs: Sequence[tuple[str, str]]) -> Counter[Pair]:
    """Counts to start from: single units opposite a letter at about the same place."""
    counts: Counter[Pair] = Counter()
    for word, says in pairs:
        for place, letter in enumerate(word):
            middle = place * len(says) / len(word)
            for one in range(max(0, int(middle) - 1), min(len(says), int(middle) + 2)):
                counts[letter, says[one]] += 1
            counts[letter, ""] += 1
    return counts


def _log(counts: Counter[Pair]) -> Scores:
    totals: dict[str, int] = defaultdict(int)
    for (letter, _), count in counts.items():
        totals[letter] += count
    return {pair: math.log(count / totals[pair[0]]) for pair, count in counts.items()}
