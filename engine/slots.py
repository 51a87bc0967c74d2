"""Slots: row indices of streams in the device tensors. No torch; engine thread only.

A slot is taken at admission and given back at a drain, never under a launched step.
"""

from __future__ import annotations

import heapq


class SlotTable:
    """Hands out the numbers `0 .. n_slots - 1`, lowest first, so that batches stay dense.

    Args:
        n_slots: streams that can hold device state at once.
    """

    def __init__(self, n_slots: int) -> None:
        assert n_slots >= 1, "EngineConfig refuses fewer than one stream"
        self.n_slots = n_slots
        self._free = list(range(n_slots))
        self._used: set[int] = set()

    @property
    def n_used(self) -> int:
        """Slots that are held."""
        return len(self._used)

    @property
    def n_free(self) -> int:
        """Slots that can be allocated."""
        return len(self._free)

    def allocate(self) -> int | None:
        """Take the lowest free slot; None when all are held."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._used.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a held slot back."""
        assert slot in self._used, f"slot {slot} is not held: freed twice or never allocated"
        self._used.remove(slot)
        heapq.heappush(self._free, slot)

    def check(self) -> None:
        """Assert that every slot is either free or held, once."""
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
        assert self._used.isdisjoint(self._free), "a slot is free and held"
        assert self._used.union(self._free) == set(range(self.n_slots)), "a slot is lost"
