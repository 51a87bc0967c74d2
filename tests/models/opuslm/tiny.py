"""Small random OpusLM checkpoint folders, with all that must lie beside ESPnet's files."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.parity.oracle import ask

N_UNITS, N_CODES = 60, 64
VOICE = "ann"


def voice_codes(n_rows: int) -> np.ndarray:
    """Rows as ESPnet's tokenizer gives them: a unit, then codes, numbered through."""
    draw = np.random.default_rng(n_rows)
    units = draw.integers(0, N_UNITS, (n_rows, 1))
    codes = draw.integers(0, N_CODES, (n_rows, 8)) + N_UNITS + N_CODES * np.arange(8)
    return np.concatenate([units, codes], axis=1)


def make_checkpoint(folder: Path, *, is_dialogue: bool = False) -> Path:
    """LM, backbone config, tokenizer, a voice, and the detokenizer where it is looked for."""
    shutil.copytree(_lm(is_dialogue), folder, dirs_exist_ok=True)
    shutil.copytree(_dac(), folder / "espnet_codec_dac_large")
    (folder / "voices").mkdir()
    np.save(folder / "voices" / f"{VOICE}.npy", voice_codes(30))
    return folder


def make_dialogue_checkpoint(folder: Path) -> Path:
    """The kind that answers."""
    return make_checkpoint(folder, is_dialogue=True)


@functools.cache
def _lm(is_dialogue: bool) -> Path:
    """Made once: a reference takes seconds to start."""
    folder = _place()
    ask("opuslm_lm", folder, {"is_dialogue": torch.tensor(is_dialogue)})
    return folder


@functools.cache
def _dac() -> Path:
    folder = _place()
    ask("opuslm_dac", folder, apart="espnet")
    return folder


def _place() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="parley-opuslm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
