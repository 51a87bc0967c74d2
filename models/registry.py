"""Families of models by name. A family's module is imported only when it is asked for.

To add one: an entry in `_FAMILIES`, with a function that gives its spec (no weights read) and one
that loads it; for a published checkpoint, `_published` and a module with `is_in`, `read_spec` and
`load`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

from models.base import SpeechModel
from models.errors import ModelError, WeightError
from models.hub import Needs, Part
from models.spec import FamilyFacts, ModelSpec, OptionSpec

TRIED = "as it is, on a CPU; not on a GPU"
UNTRIED = "small random checkpoints in the published layout, on a CPU; no real weights, no GPU"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How to reach a family: `spec` and `load` import it; both take a folder, None is the package.

    `is_in` tells a folder of this family's weights by what its files state, if it can have its
    weights elsewhere than in the package. `wants`: what such a folder holds, in words. `facts`:
    what holds for every folder, where the package has no weights. `reads`: the files, for one that
    is fetched from the hub. `tried`: what has been run on what. `is_of_cpu`: its layers compute on
    a CPU alone.
    """

    spec: Callable[[Path | None], ModelSpec]
    load: Callable[[Path | None], SpeechModel]
    runs_on: str
    tried: str
    is_in: Callable[[Path], bool] | None = None
    wants: str = ""
    facts: Callable[[], FamilyFacts] | None = None
    reads: Callable[[Path], Needs] | None = None
    is_of_cpu: bool = False


def families() -> list[FamilyInfo]:
    """All families, the default one first. Imports them, reads no weights."""
    return [_info(name, family) for name, family in _FAMILIES.items()]


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


def _find(name_or_path: str | Path) -> tuple[_Family, Path | None]:
    family = _FAMILIES.get(str(name_or_path))
    if family is not None:
        return family, None
    folder = Path(name_or_path)
    if not str(name_or_path) or not folder.is_dir():
        raise _unknown_model(str(name_or_path))
    return _family_of(folder), folder


def _unknown_model(name: str) -> UnknownModelError:
    close = difflib.get_close_matches(name[:80], _FAMILIES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    there = f"{hint}there are: {', '.join(_FAMILIES)}, or a folder or hub repository of weights"
    return UnknownModelError(f"no model is called {name[:80]!r}; {there}")


def _family_of(folder: Path) -> _Family:
    wanted = []
    for family in _FAMILIES.values():
        if family.is_in is not None:
            wanted.append(family.wants)
            if family.is_in(folder):
                return family
    known = "; or ".join(wanted)
    raise WeightError(f"{folder} holds no model that is known here, which would be {known}")


def _info(name: str, family: _Family) -> FamilyInfo:
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


def _pico_spec(folder: Path | None) -> ModelSpec:
    from models.pico import model

    return model.read_spec(folder)


def _load_pico(folder: Path | None) -> SpeechModel:
    from models.pico import model

    return model.load(folder)


def _smollm_spec(folder: Path | None) -> ModelSpec:
    from models.smollm import model

    return model.read_spec(folder)


def _load_smollm(folder: Path | None) -> SpeechModel:
    from models.smollm import model

    return model.load(folder)


def _published(
    package: str,
    *,
    wants: str,
    reads: Callable[[Path], Needs],
    tried: str = UNTRIED,
    module_name: str = "model",
) -> _Family:
    """A family whose weights are published elsewhere: `models.<package>.model` reads a folder."""

    def module() -> ModuleType:
        return import_module(f"models.{package}.{module_name}")

    def of(folder: Path | None) -> Path:
        if folder is None:
            raise WeightError(f"the package has no weights of it: name the folder of {wants}")
        return folder

    def spec(folder: Path | None) -> ModelSpec:
        found: ModelSpec = module().read_spec(of(folder))
        return found

    def load(folder: Path | None) -> SpeechModel:
        loaded: SpeechModel = module().load(of(folder))
        return loaded

    def is_in(folder: Path) -> bool:
        return bool(module().is_in(folder))

    def facts() -> FamilyFacts:
        stated: FamilyFacts = module().FACTS
        return stated

    return _Family(
        spec=spec,
        load=load,
        is_in=is_in,
        runs_on="a GPU in real time, a CPU slowly",
        tried=tried,
        wants=wants,
        facts=facts,
        reads=reads,
    )


def _files(*parts: Part) -> Callable[[Path], Needs]:
    """What a family reads whatever the configs say."""
    return lambda folder: Needs(parts=parts)


def _opuslm_needs(folder: Path) -> Needs:
    from models.opuslm.config import needs

    return needs(folder)


def _bagpiper_needs(folder: Path) -> Needs:
    from models.bagpiper.config import needs

    return needs(folder)


def _holds(file: str, folder: Path) -> bool:
    return (folder / file).is_file()


def _toy_spec(name: str, folder: Path | None) -> ModelSpec:
    from models.toy.catalogue import TOYS

    assert folder is None, "no folder is known as a toy's"
    return TOYS[name][0]


def _load_toy(name: str, folder: Path | None) -> SpeechModel:
    from models.toy.catalogue import TOYS

    assert folder is None, "no folder is known as a toy's"
    return TOYS[name][1]()


OPUSLM_FILES = "config.yaml, *.pth, backbone/, tokenizer/, espnet_codec_dac_large/"
SMOLLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
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
    "pico": _Family(
        spec=_pico_spec,
        load=_load_pico,
        runs_on="any two CPU cores",
        tried=TRIED,
        is_in=partial(_holds, "lm.json"),
        wants="lm.json",
    ),
    "smollm2-135m": _Family(
        spec=_smollm_spec,
        load=_load_smollm,
        runs_on="any two CPU cores",
        tried=TRIED,
        is_in=partial(_holds, SMOLLM_FILE),
        wants=SMOLLM_FILE,
        is_of_cpu=True,
    ),
    "orpheus": _published(
        "orpheus",
        wants="an Orpheus checkpoint: config.json, model.safetensors, tokenizer.json, snac_24khz/",
        reads=_files(
            Part(
                folder="snac_24khz",
                repository="hubertsiuzdak/snac_24khz",
                weights=("pytorch_model.bin",),
            )
        ),
    ),
    "csm": _published(
        "csm",
        wants="a CSM checkpoint: config.json, model.safetensors, tokenizer.json",
        reads=_files(),
    ),
    "zonos": _published(
        "zonos",
        wants="a Zonos transformer checkpoint: config.json, model.safetensors, dac_44khz/, and for "
        "voices of recordings speaker_embedding/",
        reads=_files(
            Part(folder="dac_44khz", repository="descript/dac_44khz"),
            Part(
                folder="speaker_embedding",
                repository="Zyphra/Zonos-v0.1-speaker-embedding",
                weights=(
                    "ResNet293_SimAM_ASP_base.pt",
                    "ResNet293_SimAM_ASP_base_LDA-128.pt",
                ),
            ),
        ),
    ),
    "qwen3-tts": _published(
        "qwen3_tts",
        wants="a Qwen3-TTS 12 Hz checkpoint: config.json, model.safetensors, tokenizer files, "
        "speech_tokenizer/",
        reads=_files(Part(folder="speech_tokenizer")),
    ),
    "opuslm": _published(
        "opuslm",
        wants=f"an OpusLM checkpoint: {OPUSLM_FILES}",
        reads=_opuslm_needs,
    ),
    "opuslm-dialogue": _published(
        "opuslm",
        module_name="dialogue",
        wants=f"an OpusLM checkpoint trained by preferences: {OPUSLM_FILES}",
        reads=_opuslm_needs,
    ),
    "bagpiper": _published(
        "bagpiper",
        wants="a Bagpiper checkpoint: one train*.yaml, inference*.yaml, one *.pt, and the configs "
        "of its backbone and its codec, in folders called like their repositories",
        reads=_bagpiper_needs,
    ),
    **{
        name: _Family(
            spec=partial(_toy_spec, name),
            load=partial(_load_toy, name),
            runs_on=runs_on,
            tried=TRIED,
        )
        for name, runs_on in _TOYS.items()
    },
}
