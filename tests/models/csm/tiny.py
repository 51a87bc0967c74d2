"""A small random CSM checkpoint folder, made by the library that the real one is read with."""

from __future__ import annotations

from pathlib import Path

from tests.parity.oracle import ask


def make_checkpoint(folder: Path) -> Path:
    """LM, codec and tokenizer in `folder`."""
    ask("csm_lm", folder)
    return folder
