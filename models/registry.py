"""Families of models by name. A family's module is imported only when it is asked for.

To add one: a line in `_FAMILIES`, with a function that gives its spec (no weights read) and one
that loads it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from models.base import SpeechModel
from models.errors import ModelError
from models.spec import ModelSpec, OptionSpec


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
    """

    name: str
    tasks: tuple[Literal["speak", "converse", "text"], ...]
    weights_licence: str
    weights_source: str
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    options: tuple[OptionSpec, ...]
    runs_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How to reach a family: both functions import it."""

    spec: Callable[[], ModelSpec]
    load: Callable[[], SpeechModel]
    runs_on: str


def families() -> list[FamilyInfo]:
    """All families, the default one first. Imports them, reads no weights."""
    return [_info(name, family) for name, family in _FAMILIES.items()]


def load(name: str) -> SpeechModel:
    """Load a family's model on the CPU.

    Raises:
        UnknownModelError: no family has exactly this name.
        WeightError: its weights are missing or damaged.
    """
    return _family(name).load()


def read_spec(name: str) -> ModelSpec:
    """A family's facts, without its weights. Raises: `UnknownModelError`."""
    return _family(name).spec()


def _family(name: str) -> _Family:
    family = _FAMILIES.get(name)
    if family is None:
        close = difflib.get_close_matches(name, _FAMILIES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UnknownModelError(
            f"no model is called {name[:80]!r}; {hint}there are: {', '.join(_FAMILIES)}"
        )
    return family


def _info(name: str, family: _Family) -> FamilyInfo:
    spec = family.spec()
    return FamilyInfo(
        name=name,
        tasks=spec.tasks,
        weights_licence=spec.weights_licence,
        weights_source=spec.weights_source,
        voices=spec.voices,
        languages=spec.languages,
        options=spec.options,
        runs_on=family.runs_on,
    )


def _pico_spec() -> ModelSpec:
    from models.pico import model

    return model.read_spec()


def _load_pico() -> SpeechModel:
    from models.pico import model

    return model.load()


def _toy_spec(name: str) -> ModelSpec:
    from models.toy.catalogue import TOYS

    return TOYS[name][0]


def _load_toy(name: str) -> SpeechModel:
    from models.toy.catalogue import TOYS

    return TOYS[name][1]()


_TOYS = {
    "toy-tone": "any CPU; a sine tone, for benchmarks of the gateway",
    "toy-interleaved": "any CPU; noise, for tests",
    "toy-delayed": "any CPU; noise, for tests",
    "toy-depth": "any CPU; noise, for tests",
    "toy-mixed": "any CPU; noise and letters, for tests",
    "toy-audio-in": "any CPU; noise and letters, for tests",
    "toy-streamed": "any CPU; noise, for tests",
    "toy-faulty": "any CPU; noise and faults to order, for tests",
}
_FAMILIES = {
    "pico": _Family(spec=_pico_spec, load=_load_pico, runs_on="one CPU core for each stream"),
    **{
        name: _Family(spec=partial(_toy_spec, name), load=partial(_load_toy, name), runs_on=runs_on)
        for name, runs_on in _TOYS.items()
    },
}
