"""Alignment of steps with units."""

import numpy as np

from models.pico.training import align


def test_pointer_is_the_unit_at_the_centre_of_each_step() -> None:
    # Frames 0-3 belong to index 0, 4-9 to index 1, 10-15 to index 2; centres are 2, 6, 10, 14.
    pointer = align.pointers(np.array([4, 6, 6]), 4)
    assert pointer is not None
    assert pointer.tolist() == [0, 1, 2, 2]


def test_shift_moves_the_centres() -> None:
    pointer = align.pointers(np.array([4, 6, 6]), 4, shift=2)
    assert pointer is not None
    assert pointer.tolist() == [1, 1, 2, 2]


def test_advance_is_clipped_to_three_units_a_step() -> None:
    pointer = align.pointers(np.array([3, 1, 1, 1, 1, 1, 12]), 4)
    assert pointer is not None
    assert np.diff(pointer, prepend=0).max() <= 3
    assert pointer[-1] == 6


def test_an_utterance_that_cannot_reach_its_end_is_refused() -> None:
    assert align.pointers(np.array([4] + [0] * 20 + [4]), 2) is None


def test_stays_count_steps_since_arrival() -> None:
    assert align.stays(np.array([0, 0, 2, 3, 3, 3])).tolist() == [0, 1, 0, 0, 1, 2]


def test_window_is_zero_outside_the_prompt() -> None:
    prompt = np.array([1, 10, 11, 2])
    found = align.window(prompt, np.array([0, 2]))
    assert found.tolist() == [[0, 1, 10, 11, 2], [10, 11, 2, 0, 0]]
