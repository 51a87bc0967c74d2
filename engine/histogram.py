"""A distribution of some quantity, as plain numbers. One thread writes, any may read; no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How often a quantity fell between bounds; and its number, sum, largest and last value.

    Args:
        bounds: ascending; the upper ends of the buckets, each of which holds its own end. A last
            bucket takes what is above all.
    """

    __slots__ = ("bounds", "counts", "largest", "last", "n", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.n = 0
        self.sum = 0.0
        self.largest = 0.0
        self.last = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.n += 1
        self.sum += value
        self.largest = max(self.largest, value)
        self.last = value
