"""A small random Qwen3-TTS checkpoint folder, made by the library that the real one comes from."""

from __future__ import annotations

from pathlib import Path

from tests.parity.oracle import ask


def make_checkpoint(folder: Path) -> Path:
    """LM and tokenizer in `folder`, the codec in the folder within that it is looked for."""
    ask("qwen_lm", folder, apart="qwen")
    return folder


def make_design_checkpoint(folder: Path) -> Path:
    """The same of the kind that is told its voice in words."""
    ask("qwen_design", folder, apart="qwen")
    return folder


def make_base_checkpoint(folder: Path) -> Path:
    """The same of the kind that speaks with the voices of recordings."""
    ask("qwen_base", folder, apart="qwen")
    return folder
