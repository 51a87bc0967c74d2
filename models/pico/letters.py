# ruff: noqa: RUF001 -- stress marks look like quotes
"""Letters to sound for words that no dictionary knows: a small two-layer bidirectional GRU.

Each letter of a word is read in the light of the whole word and yields a chunk of 0 to 3 units.
Built by `models.pico.training.letters`. Plain numpy, read-only after load, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from models.errors import WeightError
from models.pico import units
from models.pico.lexicon import decode_units

LETTERS_PATH: Final = Path(__file__).parent / "weights" / "letters.safetensors"
ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz"
MAX_LETTERS: Final = 40
"""Longer words are cut here: no English word is longer, and the sequence stays bounded."""
N_LAYERS: Final = 2

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterModel:
    """Weights (float32) by name, and the chunk of unit ids that each output class stands for."""

    weights: dict[str, Array]
    chunks: tuple[tuple[int, ...], ...]

    def sound(self, word: str) -> tuple[int, ...]:
        """Unit ids of a word of letters a to z, with one primary stress; others are skipped.

        At most `MAX_LETTERS` letters are read, so 2000 times `a` gives a bounded sequence.
        Empty only where every letter was silent or there was none.
        """
        letters = [ALPHABET.index(one) + 1 for one in word if one in ALPHABET][:MAX_LETTERS]
        if not letters:
            return ()
        states = self.weights["embed"][letters]
        for layer in range(N_LAYERS):
            forward = self._run(states, f"gru.{layer}.forward")
            backward = self._run(states[::-1], f"gru.{layer}.backward")[::-1]
            states = np.concatenate([forward, backward], axis=1)
        scores = states @ self.weights["out.weight"].T + self.weights["out.bias"]
        found = [one for choice in scores.argmax(axis=1) for one in self.chunks[int(choice)]]
        return with_one_stress(found)

    def _run(self, inputs: Array, name: str) -> Array:
        """One GRU direction over (n_letters, d_in): (n_letters, d), gates in order r, z, n."""
        weights = self.weights
        gates_in = inputs @ weights[f"{name}.w_in"].T + weights[f"{name}.b_in"]
        w_state, b_state = weights[f"{name}.w_state"].T, weights[f"{name}.b_state"]
        size = w_state.shape[0]
        state = np.zeros(size, np.float32)
        rows: list[Array] = []
        for gate_in in gates_in:
            gate = state @ w_state + b_state
            reset_update = _sigmoid(gate_in[: 2 * size] + gate[: 2 * size])
            reset, update = reset_update[:size], reset_update[size:]
            new = np.tanh(gate_in[2 * size :] + reset * gate[2 * size :])
            state = new + update * (state - new)
            rows.append(state)
        return np.stack(rows)


def with_one_stress(ids: list[int]) -> tuple[int, ...]:
    """The same units with exactly one primary stress, where there is a vowel to carry it."""
    primary = [place for place, one in enumerate(ids) if units.UNITS[one].startswith("ˈ")]
    if not primary:
        vowels = [place for place, one in enumerate(ids) if units.is_vowel(one)]
        secondary = [place for place in vowels if units.UNITS[ids[place]].startswith("ˌ")]
        full = [place for place in vowels if units.UNITS[ids[place]] not in _WEAK_VOWELS]
        primary = (secondary or full or vowels)[:1]
    marked = list(ids)
    for place in primary[:1]:
        marked[place] = units.restress(ids[place], "ˈ")
    for place in primary[1:]:
        marked[place] = units.restress(ids[place], "ˌ")
    return tuple(marked)


_WEAK_VOWELS: Final = ("ə", "ɚ", "ɐ", "ᵻ", "i", "iə")


def _sigmoid(values: Array) -> Array:
    half = np.float32(0.5)
    result: Array = half + half * np.tanh(half * values)
    return result


def read_letter_model(path: Path) -> LetterModel:
    """Load and check a weight file.

    Raises:
        WeightError: missing, damaged or of another layout.
    """
    try:
        tensors = load_file(path)
        with safe_open(path, framework="numpy") as file:
            chunks = (file.metadata() or {})["chunks"].split("\n")
    except (OSError, SafetensorError, KeyError) as error:
        raise WeightError(f"cannot read the letter model {path.name}: {error}") from error
    weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    if "out.bias" not in weights or len(weights["out.bias"]) != len(chunks):
        raise WeightError(f"the letter model {path.name} has another layout: rebuild it")
    return LetterModel(weights=weights, chunks=tuple(map(decode_units, chunks)))


@lru_cache(maxsize=1)
def shipped_letter_model() -> LetterModel:
    """The model in `weights/`, loaded once a process."""
    return read_letter_model(LETTERS_PATH)
