"""Models by name or folder: what there is, what a folder holds, and loading it.

The families themselves stand in `models.families`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.base import SpeechModel
from models.errors import ModelError, WeightError
from models.families import FAMILIES, Family
from models.hub import Needs
from models.spec import FamilyFacts, ModelSpec, OptionSpec


class UnknownModelError(ModelError):
    """No family has this name. The message names the ones that exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyInfo:
    """What there is to know about a family before its weights are loaded.

    Args:
        name: what `load` takes.
        tasks: what it does.
        weights_licence: of the weights.
        weights_source: where the weights come from.
        voices: names.
        languages: codes.
        options: typed request options.
        runs_on: the machine that it needs, in words.
        tried: what has been run on what.
        needs: what a folder of its weights holds, where the package has none.
        fault: why it cannot be used here; the fields that its spec would fill are empty then.
    """

    name: str
    runs_on: str
    tried: str
    needs: str = ""
    tasks: tuple[Literal["speak", "converse", "text"], ...] = ()
    weights_licence: str = ""
    weights_source: str = ""
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    options: tuple[OptionSpec, ...] = ()
    fault: str = ""


def families() -> list[FamilyInfo]:
    """All families, the default one first. Imports them, reads no weights."""
    return [_info(name, family) for name, family in FAMILIES.items()]


def read_spec(name_or_path: str | Path) -> ModelSpec:
    """A model's facts, without its weights. Raises: `UnknownModelError`, `WeightError`."""
    family, folder = _find(name_or_path)
    return family.spec(folder)


def load(name_or_path: str | Path) -> SpeechModel:
    """Load a model on the CPU: a family by name, or a folder of weights.

    Raises:
        UnknownModelError: no family has exactly this name, and there is no such folder.
        WeightError: the weights are missing or damaged, or the folder is of no known family.
    """
    family, folder = _find(name_or_path)
    return family.load(folder)


def needs(folder: Path) -> Needs:
    """What the family reads whose configs a folder holds. Raises: `WeightError`: none is known."""
    family = _family_of(folder)
    if family.reads is None:
        raise WeightError(f"{folder} is of a family that comes with the package: name that")
    return family.reads(folder)


def is_of_cpu(name_or_path: str | Path) -> bool:
    """A model computes on a CPU alone. Raises: as `load`, but for weights."""
    return _find(name_or_path)[0].is_of_cpu


def _find(name_or_path: str | Path) -> tuple[Family, Path | None]:
    family = FAMILIES.get(str(name_or_path))
    if family is not None:
        return family, None
    folder = Path(name_or_path)
    if not str(name_or_path) or not folder.is_dir():
        raise _unknown_model(str(name_or_path))
    return _family_of(folder), folder


def _unknown_model(name: str) -> UnknownModelError:
    close = difflib.get_close_matches(name[:80], FAMILIES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    there = f"{hint}there are: {', '.join(FAMILIES)}, or a folder or hub repository of weights"
    return UnknownModelError(f"no model is called {name[:80]!r}; {there}")


def _family_of(folder: Path) -> Family:
    wanted = []
    for family in FAMILIES.values():
        if family.is_in is not None:
            wanted.append(family.wants)
            if family.is_in(folder):
                return family
    known = "; or ".join(wanted)
    raise WeightError(f"{folder} holds no model that is known here, which would be {known}")


def _info(name: str, family: Family) -> FamilyInfo:
    facts: FamilyFacts | ModelSpec
    try:
        facts = family.spec(None) if family.facts is None else family.facts()
    except ModelError as error:
        return FamilyInfo(name=name, runs_on=family.runs_on, tried=family.tried, fault=str(error))
    return FamilyInfo(
        name=name,
        runs_on=family.runs_on,
        tried=family.tried,
        needs="" if family.facts is None else family.wants,
        tasks=facts.tasks,
        weights_licence=facts.weights_licence,
        weights_source=facts.weights_source,
        voices=facts.voices,
        languages=facts.languages,
        options=facts.options,
    )
