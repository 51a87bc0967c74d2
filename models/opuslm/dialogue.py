"""`opuslm-dialogue`: the checkpoint that answers. The same model; see `models.opuslm.model`."""

from __future__ import annotations

from pathlib import Path

from models.opuslm.config import is_opuslm
from models.opuslm.facts import DIALOGUE_FACTS as FACTS
from models.opuslm.model import load, read_spec

__all__ = ["FACTS", "is_in", "load", "read_spec"]


def is_in(folder: Path) -> bool:
    """Whether a folder holds a model that answers, by what its files state."""
    return is_opuslm(folder, is_dialogue=True)
