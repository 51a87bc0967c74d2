"""Shape, ids and facts of a `glm4-voice` checkpoint. Everything is read from its files; no weights.

A folder holds the LM's files, as the hub has them (`config.json` of ChatGLM, shards, and what
`models.glm4_voice.tokenizer` reads; the code beside them is not), and two folders: what hears
(`models.glm4_voice.hearing`) and what speaks (`models.glm4_voice.decoder`).

Source: zai-org/GLM-4-Voice, `web_demo.py` (Apache-2.0): prompts, ends, sampling; zai-org/glm-4-9b,
`modeling_chatglm.py` (Apache-2.0): the words of `config.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from models.audio.spoken import MOST_S, spoken_option
from models.checkpoint import Config, read_config
from models.codecs.block_flow import BlockCodec, BlockFlow, BlockFlowConfig
from models.codecs.hift import Hift, HiftConfig
from models.errors import WeightError
from models.glm4_voice.decoder import CONFIG as DECODER_CONFIG
from models.glm4_voice.decoder import read_decoder_config
from models.glm4_voice.hearing import HearingConfig, read_hearing_config
from models.glm4_voice.tokenizer import MARKS_FILE, read_marks
from models.hugging_face import LlamaConfig
from models.layers.transformer import BlockStyle
from models.options import number_option
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

HEARING_FOLDER: Final = "glm-4-voice-tokenizer"
DECODER_FOLDER: Final = "glm-4-voice-decoder"
STYLE: Final = BlockStyle(has_bias=True, is_interleaved=True)
THETA: Final = 10_000.0
"""Base of the rotary embedding. Source: `RotaryEmbedding` of `modeling_chatglm.py`."""
FIRST_CODE: Final = "<|audio_0|>"

TEXT, SPEECH, REST = range(3)
"""Phases: a run of text, a run of speech, and speech to the end once the text is over."""
RUN, N_FRAMES = 1, 2
"""Places in a stream's state: rows of the present run, frames so far."""
STATE_SIZE: Final = 3
TEXT_RUN, SPEECH_RUN = 13, 26
"""Rows of a run. The system prompt asks the model for them."""
MOST_ROWS: Final = 2000
"""Of an answer: 106 s of speech. Source: `max_new_token` of `web_demo.py`."""
COLUMN: Final = "ids"

TEMPERATURE: Final = number_option(
    "temperature", 0.2, 0.0, 2.0, "of text and speech; 0 takes the likeliest"
)
TOP_P: Final = number_option("top_p", 0.8, 0.01, 1.0, "share of the probability to draw from")

FACTS: Final = FamilyFacts(
    tasks=("converse",),
    voices=(),
    languages=("en", "zh"),
    options=(TEMPERATURE, TOP_P, spoken_option(MOST_S)),
    weights_licence="glm-4-voice License (commercial use after registration)",
    weights_source="zai-org/glm-4-voice-9b, zai-org/glm-4-voice-tokenizer and "
    "zai-org/glm-4-voice-decoder",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmIds:
    """Ids with a meaning.

    Args:
        opening: what every prompt begins with.
        system: opens instructions.
        user: opens what the user says; an answer ends with it too.
        assistant: opens an answer.
        sound_start: opens speech tokens of the user.
        sound_end: closes them.
        ends: of an answer.
        first_code: code 0 of speech.
    """

    opening: tuple[int, int]
    system: int
    user: int
    assistant: int
    sound_start: int
    sound_end: int
    ends: tuple[int, ...]
    first_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmConfig:
    """A checkpoint.

    Args:
        llama: the LM's decoder.
        turned: leading channels of a head that the rotary embedding turns.
        n_text: ids of text, from 0 on.
        ids: with a meaning.
        hearing: of what the user says.
        flow: of speech tokens to mel frames.
        hift: of mel frames to PCM.
    """

    llama: LlamaConfig
    turned: int
    n_text: int
    ids: GlmIds
    hearing: HearingConfig
    flow: BlockFlowConfig
    hift: HiftConfig

    @property
    def n_codes(self) -> int:
        """Speech tokens."""
        return self.hearing.n_codes

    @property
    def n_ids(self) -> int:
        """Ids that can be drawn: up to the last speech token."""
        return self.ids.first_code + self.n_codes

    def inv_freq(self) -> Tensor:
        """Frequencies of the rotary embedding, `(turned / 2,)` float64."""
        steps = torch.arange(0, self.turned, 2, dtype=torch.float64) / self.turned
        return 1.0 / self.llama.theta**steps


def is_glm4_voice(folder: Path) -> bool:
    """Whether a folder holds this family: a ChatGLM whose tokenizer has speech tokens."""
    if not (folder / "config.json").is_file() or not (folder / MARKS_FILE).is_file():
        return False
    if read_config(folder / "config.json").optional("model_type") != "chatglm":
        return False
    try:
        return FIRST_CODE in read_marks(folder)
    except WeightError:
        return False


def read_glm_config(folder: Path) -> GlmConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key or the token."""
    stated, marks = read_config(folder / "config.json"), read_marks(folder)
    hearing = read_hearing_config(part_folder(folder, HEARING_FOLDER, "config.json"))
    flow, hift = read_decoder_config(part_folder(folder, DECODER_FOLDER, DECODER_CONFIG))
    llama, turned = _decoder(stated)
    config = GlmConfig(
        llama=llama,
        turned=turned,
        n_text=min(marks.values()),
        ids=_ids(stated, marks),
        hearing=hearing,
        flow=flow,
        hift=hift,
    )
    if flow.n_tokens != config.n_codes:
        raise WeightError(
            f"{HEARING_FOLDER} hears {config.n_codes} speech tokens, "
            f"{DECODER_FOLDER} speaks {flow.n_tokens}: they do not belong together"
        )
    last = f"<|audio_{config.n_codes - 1}|>"
    if marks.get(last) != config.n_ids - 1 or config.n_ids > llama.n_ids:
        raise WeightError(
            f"{MARKS_FILE} has {last} at {marks.get(last)}, must be {config.n_ids - 1}, "
            f"within padded_vocab_size {llama.n_ids}"
        )
    return config


def part_folder(folder: Path, name: str, file: str) -> Path:
    """Where a part of the checkpoint lies. Raises: `WeightError`, it says what to fetch."""
    place = folder / name
    if not (place / file).is_file():
        message = f"{folder} has no {name}/{file}: put the checkpoint zai-org/{name} into {place}"
        raise WeightError(message)
    return place


def model_spec(config: GlmConfig, *, forces_runs: bool = True) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    ids, n_ids = config.ids, config.n_ids
    width = round(config.hift.sample_rate_hz / config.flow.token_rate_hz)
    return ModelSpec(
        name="glm4-voice",
        tasks=FACTS.tasks,
        columns=(ColumnSpec(name=COLUMN, role="semantic", ids=(0, n_ids), pad_id=ids.ends[0]),),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=config.flow.token_rate_hz,
            sample_rate_hz=config.hift.sample_rate_hz,
            samples_per_frame=width,
        ),
        backbone=config.llama.backbone,
        phases=_phases(config) if forces_runs else (_phase("any", ()),),
        codec=_codec(config),
        state_size=STATE_SIZE,
        takes_audio=True,
        gives_text=True,
        keeps_turns=True,
        languages=FACTS.languages,
        options=FACTS.options,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def _phases(config: GlmConfig) -> tuple[PhaseSpec, ...]:
    ends = tuple((end, end + 1) for end in sorted(config.ids.ends))
    speech = (*ends, (config.ids.first_code, config.n_ids))
    return (
        _phase("text", ((0, config.n_text), *speech)),
        _phase("speech", speech),
        _phase("rest", speech),
    )


def _phase(name: str, allowed: tuple[tuple[int, int], ...]) -> PhaseSpec:
    """Text and speech are told apart by id: a run of text may end in speech."""
    sampling = SamplingParams(
        temperature=float(TEMPERATURE.default or 0.0), top_p=float(TOP_P.default or 1.0)
    )
    column = PhaseColumn(fill="sampled", allowed=allowed, sampling=sampling)
    return PhaseSpec(name=name, columns=(column,), feeds_codec=True, feeds_text=True)


def _codec(config: GlmConfig) -> CodecSpec:
    with torch.device("meta"):
        return BlockCodec(BlockFlow(config.flow), Hift(config.hift)).spec


def _decoder(config: Config) -> tuple[LlamaConfig, int]:
    """The LM's decoder, and how many channels of a head turn."""
    for key, value in (
        ("add_bias_linear", False),
        ("add_qkv_bias", True),
        ("apply_residual_connection_post_layernorm", False),
        ("multi_query_attention", True),
        ("original_rope", True),
        ("post_layer_norm", True),
        ("rmsnorm", True),
        ("tie_word_embeddings", False),
    ):
        config.expect(key, value)
    head_dim = config.count("kv_channels")
    llama = LlamaConfig(
        backbone=BackboneSpec(
            n_layers=config.count("num_layers"),
            n_query_heads=config.count("num_attention_heads"),
            n_kv_heads=config.count("multi_query_group_num"),
            head_dim=head_dim,
            hidden=config.count("hidden_size"),
            max_positions=config.count("seq_length"),
        ),
        inner=config.count("ffn_hidden_size"),
        n_ids=config.count("padded_vocab_size"),
        eps=config.positive("layernorm_epsilon"),
        theta=THETA * config.positive("rope_ratio"),
        scaling=None,
        style=STYLE,
    )
    return llama, head_dim // 2


def _ids(config: Config, marks: dict[str, int]) -> GlmIds:
    def named(token: str) -> int:
        if token not in marks:
            message = f"{MARKS_FILE} has no {token!r} in added_tokens_decoder"
            raise WeightError(f"{message}: this is no GLM-4-Voice")
        return marks[token]

    return GlmIds(
        opening=(named("[gMASK]"), named("<sop>")),
        system=named("<|system|>"),
        user=named("<|user|>"),
        assistant=named("<|assistant|>"),
        sound_start=named("<|begin_of_audio|>"),
        sound_end=named("<|end_of_audio|>"),
        ends=config.integers("eos_token_id"),
        first_code=named(FIRST_CODE),
    )
