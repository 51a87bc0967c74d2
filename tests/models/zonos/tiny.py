"""A small random Zonos checkpoint folder in the layout of the hub."""

from __future__ import annotations

from pathlib import Path

from tests.parity.oracle import ask


def make_checkpoint(folder: Path) -> Path:
    """LM in `folder`, the detokenizer in the folder within that it is looked for."""
    ask("zonos_lm", folder)
    return folder


def add_speaker_encoder(folder: Path) -> Path:
    """Its two files, in the folder within the checkpoint's that they are looked for."""
    ask("zonos_speaker", folder)
    return folder


def spell(text: str, language: str) -> str:
    """In place of eSpeak: every letter sounds as itself."""
    assert language
    return text
