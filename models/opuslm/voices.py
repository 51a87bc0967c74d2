"""Voices of `opuslm`: recordings as ESPnet's tokenizer codes them, one file each.

A voice is the unit of XEUS and the codes of the DAC for some seconds of speech. Neither network of
the first comes with a checkpoint, so that the files are made elsewhere, by ESPnet's `codec_ssl`
tokenizer: rows of one unit and one code a codebook, numbered through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from models.errors import WeightError
from models.opuslm.config import OpusLmConfig

VOICES_FOLDER: Final = "voices"
PLAIN: Final = "any"
"""The voice's name where none is asked for: the model takes one of its own."""


def voice_names(folder: Path) -> tuple[str, ...]:
    """Names of a checkpoint's voices: those of their files. Without any there is no choice."""
    names = sorted(path.stem for path in (folder / VOICES_FOLDER).glob("*.npy"))
    return (PLAIN, *names) if names else ()


def read_voices(folder: Path, config: OpusLmConfig) -> dict[str, Tensor]:
    """Prompt rows `(config.n_voice_rows, K)` of each voice, without delay.

    Raises:
        WeightError: a file is damaged, or holds what no column can; it is named.
    """
    paths = sorted((folder / VOICES_FOLDER).glob("*.npy"))
    return {path.stem: _rows(path, config) for path in paths}


def _rows(path: Path, config: OpusLmConfig) -> Tensor:
    """The first rows, and blanks up to the length that the model was trained with.

    Source: ESPnet's preprocessor: cut or padded; a 0, which is the first unit, becomes a blank.
    """
    try:
        held = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise WeightError(f"{path} cannot be read as codes ({error})") from error
    spans = (config.units, *config.code_ranges)
    if held.dtype.kind not in "iu" or held.ndim != 2 or held.shape[1] != len(spans):
        found = f"{held.dtype} {held.shape}"
        raise WeightError(f"{path} holds {found}, must be whole numbers (rows, {len(spans)})")
    rows = torch.from_numpy(held.astype(np.int64)) + config.units[0]
    for column, (low, high) in enumerate(spans):
        ids = rows[:, column]
        if bool(((ids < low) | (ids >= high)).any()):
            first, end = low - config.units[0], high - config.units[0]
            raise WeightError(f"{path} has codes in column {column} that are not {first} to {end}")
    rows = rows.masked_fill(rows == config.units[0], config.ids.pad)[: config.n_voice_rows]
    voice = torch.full((config.n_voice_rows, len(spans)), config.ids.pad)
    voice[: len(rows)] = rows
    return voice
