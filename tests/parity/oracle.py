"""Runs a reference implementation in a process of its own: its imports and settings stay there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SCRIPTS = Path(__file__).parent / "oracles"
PATIENCE_S = 300


def ask(
    script: str, folder: Path, inputs: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """What `oracles/<script>.py folder` makes of `inputs`; it may leave a checkpoint there."""
    save_file({k: v.contiguous() for k, v in (inputs or {}).items()}, folder / "inputs.safetensors")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{script}.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return load_file(folder / "outputs.safetensors")
