"""`chatterbox-multilingual`: the model of 23 languages. The same; see `models.chatterbox.model`."""

from __future__ import annotations

from pathlib import Path

from models.chatterbox import files
from models.chatterbox.config import MULTILINGUAL_FACTS as FACTS
from models.chatterbox.config import MULTILINGUAL_LMS
from models.chatterbox.model import ChatterboxModel
from models.hub import Needs
from models.spec import ModelSpec

__all__ = ["FACTS", "is_in", "load", "needs", "read_spec"]

NAME = "chatterbox-multilingual"


def is_in(folder: Path) -> bool:
    """Whether a folder holds this model: it knows English too, and goes before the English one."""
    return any(folder.glob(MULTILINGUAL_LMS))


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub. Raises: `WeightError`."""
    return files.needs(files.multilingual_files(folder))


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return files.read_spec(NAME, files.multilingual_files(folder))


def load(folder: Path) -> ChatterboxModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    return files.load(NAME, files.multilingual_files(folder))
