"""`chatterbox`: the English model; see `models.chatterbox.model`."""

from __future__ import annotations

from pathlib import Path

from models.chatterbox import files, multilingual
from models.chatterbox.config import ENGLISH_LM, FACTS
from models.chatterbox.model import ChatterboxModel
from models.hub import Needs
from models.spec import ModelSpec

__all__ = ["FACTS", "is_in", "load", "needs", "read_spec"]

NAME = "chatterbox"


def is_in(folder: Path) -> bool:
    """Whether a folder holds this model, and not the multilingual one as well."""
    return (folder / ENGLISH_LM).is_file() and not multilingual.is_in(folder)


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub."""
    return files.needs(files.english_files(folder))


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return files.read_spec(NAME, files.english_files(folder))


def load(folder: Path) -> ChatterboxModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    return files.load(NAME, files.english_files(folder))
