"""Shape, ids and facts of a `cosyvoice2` checkpoint. Everything is read from its files; no weights.

All ids are of one space: those of the text, two marks, speech tokens, and three more, which end the
speech. Of `cosyvoice2.yaml` nothing is run (`models.hyperpyyaml`).

Source: CosyVoice (Apache-2.0), `llm/llm.py`, class `Qwen2LM`, and `cosyvoice2.yaml`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from models.audio.reference import REFERENCE_AUDIO, REFERENCE_TEXT
from models.checkpoint import Config, read_config
from models.cosyvoice2.vocoder import FLOW_FILE, HIFT_FILE, VocoderConfig, vocoder_config
from models.errors import WeightError
from models.hub import Needs, Part
from models.hugging_face import LlamaConfig, llama_config
from models.hyperpyyaml import class_of, read_hyperpyyaml
from models.layers.transformer import BlockStyle
from models.options import integer_option, number_option
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

QWEN2: Final = BlockStyle(has_bias=True)
YAML_FILES: Final = ("cosyvoice2.yaml", "cosyvoice3.yaml", "cosyvoice.yaml")
"""The last is how CosyVoice 1 calls its own, and how early copies of CosyVoice 2 did."""
LM_CLASS: Final = "Qwen2LM"
OTHER_LMS: Final = {"TransformerLM": "CosyVoice 1", "CosyVoice3LM": "CosyVoice 3"}
TEXT_FOLDER: Final = "CosyVoice-BlankEN"
LM_FILE: Final = "llm.pt"
TOKENIZER_FILE: Final = "speech_tokenizer_v2.onnx"
SPEAKER_FILE: Final = "campplus.onnx"
WEIGHTS: Final = (LM_FILE, FLOW_FILE, HIFT_FILE, TOKENIZER_FILE, SPEAKER_FILE)
VOICES_FILE: Final = "spk2info.pt"

COLUMN: Final = "ids"
SPEECH, WORDS = range(2)
PHASES: Final = ("speech", "words")
N_CODES, IN_GROUP, N_WORDS, IS_OPEN, N_LEAST = range(1, 6)
"""Places in a stream's state: speech tokens drawn; of these, since the last words; ids of streamed
text that were fed; 1 as long as more may follow; speech tokens before an end may be drawn, beside
those that follow from the streamed text."""
STATE_SIZE: Final = 6
N_ENDS: Final = 3
"""Ids behind the speech tokens: the end, one that is spare, one that asks for more text."""
LEAST_RATIO, MOST_RATIO = 2, 20
"""Speech tokens for each of the text. Source: `Qwen2LM.inference`."""
MAX_POSITIONS: Final = 4096
"""Rows of a stream: two minutes and a half. The checkpoint was trained for 32768."""
TEXT_CAPACITY: Final = 512
"""Of a text that streams in: half a minute of speech, as long as what the LM was trained on."""
STREAMED_FRAMES: Final = 2000
"""Most speech of such a text: a stream keeps room for it from the start."""

TEMPERATURE: Final = number_option(
    "temperature", 1.0, 0.0, 2.0, "of the speech tokens; 0 takes the likeliest and soon repeats"
)
TOP_P: Final = number_option("top_p", 0.8, 0.01, 1.0, "share of the probability to draw from")
TOP_K: Final = integer_option(
    "top_k", 25, 0, 4096, "speech tokens that may be drawn, the likeliest first; 0: all"
)
INSTRUCTIONS: Final = OptionSpec(
    name="instructions",
    kind="string",
    default=None,
    description="how to speak, in words; reference_text does not count then",
)
SOUND_TAGS: Final = (
    "breath",
    "quick_breath",
    "laughter",
    "cough",
    "clucking",
    "hissing",
    "sigh",
    "lipsmack",
)
"""Sounds that the published checkpoint was tuned on; it has them in square brackets."""

AUTO: Final = "auto"
"""The model is told no language: it takes that of the text."""

FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=(AUTO, "zh", "en", "ja", "ko"),
    options=(TEMPERATURE, TOP_P, TOP_K, REFERENCE_AUDIO, REFERENCE_TEXT, INSTRUCTIONS),
    weights_licence="Apache-2.0",
    weights_source="FunAudioLLM/CosyVoice2-0.5B",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleave:
    """How streamed text and speech stand in one line: ids of text, then speech tokens, in turn."""

    n_words: int
    n_codes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CosyVoiceConfig:
    """A checkpoint.

    Args:
        llama: the LM; its `n_ids` are those of the text.
        vocoder: everything behind it.
        interleave: of streamed text.
        sampling: of speech tokens.
    """

    llama: LlamaConfig
    vocoder: VocoderConfig
    interleave: Interleave
    sampling: SamplingParams

    @property
    def start_mark(self) -> int:
        """Opens every prompt."""
        return self.llama.n_ids

    @property
    def speech_mark(self) -> int:
        """Stands where the text is over."""
        return self.llama.n_ids + 1

    @property
    def first_code(self) -> int:
        """Id of speech token 0."""
        return self.llama.n_ids + 2

    @property
    def n_codes(self) -> int:
        """Speech tokens."""
        return self.vocoder.n_codes

    @property
    def n_drawn(self) -> int:
        """Ids that the LM may draw, from `first_code` on."""
        return self.n_codes + N_ENDS


def is_cosyvoice2(folder: Path) -> bool:
    """Whether a folder holds this family, or one of the same house, which is refused by name."""
    path = _yaml_file(folder)
    if path is None:
        return False
    lm = read_hyperpyyaml(path).optional("llm")
    return isinstance(lm, dict) and class_of(Config(lm, path.name)) != ""


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub; voices with names only where it has some."""
    voices = (VOICES_FILE,) if (folder / VOICES_FILE).is_file() else ()
    return Needs(weights=(*WEIGHTS, *voices), parts=(Part(folder=TEXT_FOLDER, weights=()),))


def read_cosyvoice2_config(folder: Path) -> CosyVoiceConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key."""
    path = _yaml_file(folder)
    if path is None:
        raise WeightError(f"{folder} has no {YAML_FILES[0]}: fetch the checkpoint's files again")
    config = read_hyperpyyaml(path)
    lm = config.part("llm")
    if (kind := class_of(lm)) != LM_CLASS:
        name = OTHER_LMS.get(kind, "another model")
        raise WeightError(f"{path.name}: {kind or 'llm'} is {name}; CosyVoice 2 is known here")
    llama = _llama(folder)
    for key in ("llm_input_size", "llm_output_size"):
        lm.expect(key, llama.backbone.hidden)
    vocoder = vocoder_config(config)
    lm.expect("speech_token_size", vocoder.n_codes)
    return CosyVoiceConfig(
        llama=llama, vocoder=vocoder, interleave=_interleave(lm), sampling=_sampling(lm)
    )


def model_spec(
    config: CosyVoiceConfig, codec: CodecSpec, voices: tuple[str, ...] = ()
) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    first = config.first_code
    ids = (first, first + config.n_drawn)
    mel = config.vocoder.mel
    n_samples = config.vocoder.frames_per_code * mel.hop
    return ModelSpec(
        name="cosyvoice2",
        tasks=FACTS.tasks,
        columns=(ColumnSpec(name=COLUMN, role="semantic", ids=ids, pad_id=first),),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=mel.rate_hz / n_samples,
            sample_rate_hz=mel.rate_hz,
            samples_per_frame=n_samples,
        ),
        backbone=config.llama.backbone,
        phases=(
            PhaseSpec(
                name=PHASES[SPEECH],
                columns=(PhaseColumn(fill="sampled", sampling=config.sampling),),
                feeds_codec=True,
            ),
            PhaseSpec(name=PHASES[WORDS], columns=(PhaseColumn(fill="derived"),)),
        ),
        codec=codec,
        state_size=STATE_SIZE,
        text_capacity=TEXT_CAPACITY,
        # Prompts with words of their own have the text behind them, all of it.
        whole_text_options=(REFERENCE_TEXT.name, INSTRUCTIONS.name),
        sound_tags=SOUND_TAGS,
        voices=voices,
        languages=FACTS.languages,
        options=_options(config.sampling),
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def _yaml_file(folder: Path) -> Path | None:
    return next((folder / name for name in YAML_FILES if (folder / name).is_file()), None)


def _llama(folder: Path) -> LlamaConfig:
    stated = read_config(folder / TEXT_FOLDER / "config.json")
    stated.expect("model_type", "qwen2")
    # The rule of the library for files that do not state it.
    head_dim = stated.count("hidden_size") // stated.count("num_attention_heads")
    values = {"head_dim": head_dim, **stated.values}
    return llama_config(Config(values, stated.source), max_positions=MAX_POSITIONS, style=QWEN2)


def _interleave(lm: Config) -> Interleave:
    """As stated; in early files it is not, and what the class has by itself stands."""
    ratio = (5, 15) if lm.optional("mix_ratio") is None else lm.integers("mix_ratio")
    if len(ratio) != 2 or min(ratio) < 1:
        raise WeightError(f"{lm.source} has llm.mix_ratio = {list(ratio)}, must be two numbers")
    return Interleave(n_words=ratio[0], n_codes=ratio[1])


def _sampling(lm: Config) -> SamplingParams:
    stated = lm.part("sampling")
    if (kind := class_of(stated)) != "ras_sampling":
        raise WeightError(f"{lm.source} has llm.sampling = {kind!r}, ras_sampling is known here")
    window = stated.integer("win_size")
    return SamplingParams(
        top_p=stated.number("top_p"),
        top_k=stated.integer("top_k"),
        is_top_p_of_all=True,
        redraw_window=window,
        # At least once; and what is a whole number but for rounding is that number.
        redraw_count=max(1, math.ceil(window * stated.number("tau_r") - 1e-6)),
    )


def _options(sampling: SamplingParams) -> tuple[OptionSpec, ...]:
    """Those of the family, with the checkpoint's own defaults."""
    own = {TOP_P.name: sampling.top_p, TOP_K.name: sampling.top_k}
    return tuple(
        replace(option, default=own.get(option.name, option.default)) for option in FACTS.options
    )
