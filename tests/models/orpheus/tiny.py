"""A small random Orpheus checkpoint folder, made by the libraries that the real one comes from."""

from __future__ import annotations

from pathlib import Path

import torch

from models.codecs.snac import noise_table
from tests.parity.oracle import ask


def make_checkpoint(folder: Path) -> Path:
    """LM and tokenizer in `folder`, the detokenizer in the folder within that it is looked for."""
    ask("orpheus_lm", folder)
    snac = folder / "snac_24khz"
    snac.mkdir()
    codes = {f"level{n}": torch.zeros(1, 2**n, dtype=torch.int64) for n in range(3)}
    ask("snac_decode", snac, {**codes, "noise": noise_table()})
    return folder
