"""A small random Bagpiper checkpoint folder, made by the reference."""

from __future__ import annotations

from pathlib import Path

from tests.parity.oracle import ask


def make_checkpoint(folder: Path) -> Path:
    """Weights and configs in `folder`; those of other repositories in folders called like them."""
    ask("bagpiper_lm", folder, apart="espnet")
    return folder
