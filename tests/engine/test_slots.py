"""Slots are handed out once and come back once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.slots import SlotTable


def test_lowest_free_slot_comes_first():
    table = SlotTable(3)
    assert [table.allocate() for _ in range(4)] == [0, 1, 2, None]
    table.free(1)
    table.free(0)
    assert table.allocate() == 0


@pytest.mark.parametrize("slot", [0, 2, 7, -1])
def test_freeing_a_slot_that_is_not_held_is_a_broken_invariant(slot):
    table = SlotTable(3)
    assert table.allocate() == 0
    table.free(0)
    with pytest.raises(AssertionError, match="not held"):
        table.free(slot)


@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=60))
def test_any_order_of_taking_and_giving_back_loses_nothing(n_slots, choices):
    table = SlotTable(n_slots)
    held: list[int] = []
    for choice in choices:
        if choice < 5 or not held:
            slot = table.allocate()
            assert (slot is None) == (len(held) == n_slots)
            if slot is not None:
                assert slot not in held
                held.append(slot)
        else:
            table.free(held.pop(choice % len(held)))
        table.check()
        assert (table.n_used, table.n_free) == (len(held), n_slots - len(held))
