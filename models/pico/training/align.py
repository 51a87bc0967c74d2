"""Alignment of steps with units, and the window of units around a pointer. Pure."""

import numpy as np

from models.pico.training.common import FRAMES_PER_STEP, MAX_ADVANCE, STAY_CAP, WINDOW


def pointers(durations: np.ndarray, n_steps: int, shift: int = 0) -> np.ndarray | None:
    """Return the prompt index spoken at the centre of each step, or None if the end is missed.

    Args:
        durations: frames of each prompt index but the last (boa).
        n_steps: steps of four frames.
        shift: frames cut from the start, 0..3.
    """
    ends = np.cumsum(durations)
    centres = shift + FRAMES_PER_STEP * np.arange(n_steps) + FRAMES_PER_STEP // 2
    wanted = np.searchsorted(ends, centres, side="right").clip(max=len(durations) - 1)
    found = np.empty(n_steps, np.int16)
    pointer = 0
    for step, target in enumerate(wanted):
        pointer = min(int(target), pointer + MAX_ADVANCE)
        found[step] = pointer
    return found if pointer == len(durations) - 1 else None


def stays(pointer: np.ndarray) -> np.ndarray:
    """Return how many steps the pointer has already stayed where it is: 0 on arrival.

    The start (bos, before any step) counts as an arrival at the first step.
    """
    found = np.zeros(len(pointer), np.int16)
    for step in range(1, len(pointer)):
        if pointer[step] == pointer[step - 1]:
            found[step] = found[step - 1] + 1
    return found


def stay_ids(stay: np.ndarray) -> np.ndarray:
    """Return stays as embedding ids."""
    ids: np.ndarray = np.minimum(stay, STAY_CAP).astype(np.int16)
    return ids


def window(prompt: np.ndarray, pointer: np.ndarray) -> np.ndarray:
    """Return unit ids (n_steps, 5) at the window's offsets from each pointer; 0 is outside."""
    places = pointer[:, None].astype(np.int64) + np.array(WINDOW)
    inside = (places >= 0) & (places < len(prompt))
    return np.where(inside, prompt[places.clip(0, len(prompt) - 1)], 0)
