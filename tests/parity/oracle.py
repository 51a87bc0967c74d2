"""Runs a reference implementation in a process of its own: its imports and settings stay there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SCRIPTS = Path(__file__).parent / "oracles"
APART = Path(sys.prefix) / "oracles"
"""Libraries that do not go together with ours; `make test` installs them (see the Makefile)."""
PATIENCE_S = 300


def ask(
    script: str,
    folder: Path,
    inputs: Mapping[str, torch.Tensor] | None = None,
    *,
    apart: str | None = None,
) -> dict[str, torch.Tensor]:
    """What `oracles/<script>.py folder` makes of `inputs`; it may leave a checkpoint there.

    Args:
        script: its name.
        folder: to work in.
        inputs: tensors for it.
        apart: name of the libraries that it needs beside ours, `oracles/<apart>.txt`.
    """
    environment = dict(os.environ)
    if apart is not None:
        assert (APART / apart).is_dir(), f"{APART / apart} is missing: run the tests by `make test`"
        environment["PYTHONPATH"] = str(APART / apart)
    save_file({k: v.contiguous() for k, v in (inputs or {}).items()}, folder / "inputs.safetensors")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{script}.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return load_file(folder / "outputs.safetensors")
