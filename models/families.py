"""The table of families: how each is recognised and reached. Its module is imported when asked for.

To add one: an entry in `FAMILIES`, with a function that gives its spec (no weights read) and one
that loads it; for a published checkpoint, `_published` and a module with `FACTS`, `is_in`,
`read_spec` and `load`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from models.base import SpeechModel
from models.errors import WeightError
from models.hub import Needs, Part
from models.spec import FamilyFacts, ModelSpec

TRIED = "as it is, on a CPU; not on a GPU"
UNTRIED = "small random checkpoints in the published layout, on a CPU; no real weights, no GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
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
) -> Family:
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

    return Family(
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


def _cosyvoice2_needs(folder: Path) -> Needs:
    from models.cosyvoice2.config import needs

    return needs(folder)


def _chatterbox_needs(folder: Path) -> Needs:
    from models.chatterbox.english import needs

    return needs(folder)


def _multilingual_needs(folder: Path) -> Needs:
    from models.chatterbox.multilingual import needs

    return needs(folder)


def _step_audio2_needs(folder: Path) -> Needs:
    from models.step_audio2.config import needs

    return needs(folder)


def _turbo_needs(folder: Path) -> Needs:
    from models.chatterbox.turbo import needs

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
FAMILIES = {
    "pico": Family(
        spec=_pico_spec,
        load=_load_pico,
        runs_on="any two CPU cores",
        tried=TRIED,
        is_in=partial(_holds, "lm.json"),
        wants="lm.json",
    ),
    "smollm2-135m": Family(
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
    "chatterbox": _published(
        "chatterbox",
        module_name="english",
        wants="a Chatterbox checkpoint: t3_cfg.safetensors, s3gen.safetensors, ve.safetensors, "
        "tokenizer.json, conds.pt",
        reads=_chatterbox_needs,
    ),
    "chatterbox-multilingual": _published(
        "chatterbox",
        module_name="multilingual",
        wants="a multilingual Chatterbox checkpoint: t3_mtl*.safetensors, s3gen.safetensors, "
        "ve.safetensors, grapheme_mtl_merged_expanded_v1.json, conds.pt",
        reads=_multilingual_needs,
    ),
    "chatterbox-turbo": _published(
        "chatterbox",
        module_name="turbo",
        wants="a Chatterbox Turbo or Nano checkpoint: t3_turbo*.safetensors or "
        "t3_nano*.safetensors, s3gen_meanflow.safetensors, ve.safetensors, tokenizer files, "
        "conds.pt",
        reads=_turbo_needs,
    ),
    # Before Bagpiper, which reads any YAML file, and this one's is of another kind.
    "cosyvoice2": _published(
        "cosyvoice2",
        wants="a CosyVoice 2 checkpoint: cosyvoice2.yaml, CosyVoice-BlankEN/, llm.pt, flow.pt, "
        "hift.pt, speech_tokenizer_v2.onnx, campplus.onnx",
        reads=_cosyvoice2_needs,
    ),
    "bagpiper": _published(
        "bagpiper",
        wants="a Bagpiper checkpoint: one train*.yaml, inference*.yaml, one *.pt, and the configs "
        "of its backbone and its codec, in folders called like their repositories",
        reads=_bagpiper_needs,
    ),
    "glm4-voice": _published(
        "glm4_voice",
        wants="a GLM-4-Voice checkpoint: config.json, model.safetensors, tokenizer.model, "
        "tokenizer_config.json, glm-4-voice-tokenizer/, glm-4-voice-decoder/",
        reads=_files(
            Part(folder="glm-4-voice-tokenizer", repository="zai-org/glm-4-voice-tokenizer"),
            Part(
                folder="glm-4-voice-decoder",
                repository="zai-org/glm-4-voice-decoder",
                weights=("flow.pt", "hift.pt"),
            ),
        ),
    ),
    "step-audio2": _published(
        "step_audio2",
        wants="a Step-Audio 2 checkpoint: config.json, model-*.safetensors, tokenizer.json, "
        "token2wav/, and for a voice without a recording assets/default_female.wav",
        reads=_step_audio2_needs,
    ),
    **{
        name: Family(
            spec=partial(_toy_spec, name),
            load=partial(_load_toy, name),
            runs_on=runs_on,
            tried=TRIED,
        )
        for name, runs_on in _TOYS.items()
    },
}
