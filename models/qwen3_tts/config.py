"""Shape, ids and facts of a `qwen3_tts` checkpoint. Everything is read from its files; no weights.

Source: `qwen-tts` 0.1.1 (Apache-2.0), `configuration_qwen3_tts.py` and `modeling_qwen3_tts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.audio.reference import REFERENCE_AUDIO, REFERENCE_TEXT
from models.checkpoint import Config, read_config
from models.codecs.mimi_config import MimiConfig, mimi_config
from models.codecs.qwen import QwenCodecConfig, qwen_codec_config
from models.hugging_face import LlamaConfig, depth_spec, llama_config
from models.layers.transformer import BlockStyle
from models.options import integer_option, number_option
from models.qwen3_tts.speaker import SpeakerConfig, speaker_config
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

QWEN3: Final = BlockStyle(qk_norm="head")
CODEC_FOLDER: Final = "speech_tokenizer"
MAX_POSITIONS: Final = 4096
"""Rows of a stream: five minutes. The checkpoint was trained for 32768."""
MAX_FRAMES: Final = 2048
"""Most speech of a stream. Source: the reference's default."""
TEXT_CAPACITY: Final = 2048
N_MARKS: Final = 1024
"""Ids at the end of the first codebook's vocabulary that are marks and never drawn, but the end."""
TEXT_COLUMN: Final = "text"
STEP, IS_TOLD = 1, 2
"""Places in a stream's state: rows generated; 1 where all of the text and its end stand in the
prompt."""
STATE_SIZE: Final = 3
BASE: Final = "base"
AUTO: Final = "auto"
"""The language that leaves the choice to the model."""

TEMPERATURE: Final = number_option(
    "temperature", 0.9, 0.0, 2.0, "of the codes; 0 takes the likeliest"
)
TOP_K: Final = integer_option(
    "top_k", 50, 0, 2048, "codes that may be drawn, the likeliest first; 0: all"
)
REPETITION_PENALTY: Final = number_option(
    "repetition_penalty", 1.05, 1.0, 2.0, "of the first codebook, against loops"
)
INSTRUCTIONS: Final = OptionSpec(
    name="instructions",
    kind="string",
    default=None,
    description="how to speak, or the voice to make up, in words",
)
WHOLE_TEXT: Final = OptionSpec(
    name="whole_text",
    kind="boolean",
    default=False,
    description="all of the text stands before the speech, and is not fed a row at a time",
)
"""As `qwen-tts` does by default for checkpoints with voices of their own."""
REPETITION_WINDOW: Final = 256
"""Rows that the penalty looks back: 20 s. The reference looks back to the start."""
DRAWING: Final = (TEMPERATURE, TOP_K, REPETITION_PENALTY)
OF_BASE: Final = (*DRAWING, REFERENCE_AUDIO, REFERENCE_TEXT)
"""Options of checkpoints that speak with the voices of recordings."""
OF_OTHERS: Final = (*DRAWING, INSTRUCTIONS, WHOLE_TEXT)
"""Options of checkpoints with voices of their own."""
FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=(AUTO,),
    options=(*OF_BASE, INSTRUCTIONS, WHOLE_TEXT),
    weights_licence="Apache-2.0",
    weights_source="Qwen/Qwen3-TTS-12Hz-*-Base, *-CustomVoice and *-VoiceDesign",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecMarks:
    """Ids of the first codebook's column with a meaning."""

    pad: int
    bos: int
    eos: int
    think: int
    no_think: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceConfig:
    """What a Base checkpoint hears the reference audio with.

    Args:
        speaker: gives a vector of the voice.
        listener: gives the codes of the recording; it has more levels than count.
    """

    speaker: SpeakerConfig
    listener: MimiConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenTtsConfig:
    """A checkpoint.

    Args:
        talker: the model over frames; its `n_ids` are those of the first codebook's column.
        predictor: the model over the other codes of a frame.
        codec: the detokenizer.
        marks: ids of the first codebook's column.
        n_text_ids: of the text table.
        text_hidden: of its rows.
        tts_pad: text id of a row that has no text left.
        tts_bos: text id that opens the text.
        tts_eos: text id that closes it.
        speakers: ids of the voices, by name.
        dialects: languages that voices speak where Chinese is asked for, by voice.
        languages: ids of the languages, by name.
        voice: of Base checkpoints, which speak with the voices of recordings.
    """

    talker: LlamaConfig
    predictor: LlamaConfig
    codec: QwenCodecConfig
    marks: CodecMarks
    n_text_ids: int
    text_hidden: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    languages: Mapping[str, int]
    voice: VoiceConfig | None

    @property
    def n_codebooks(self) -> int:
        """Codes in a frame."""
        return self.codec.n_codebooks

    @property
    def no_text(self) -> int:
        """Stands in the text column of a row without text."""
        return self.n_text_ids

    def no_code(self, codebook: int) -> int:
        """Stands in a code column of a row without a code there."""
        return self.talker.n_ids if codebook == 0 else self.predictor.n_ids


def is_qwen3_tts(folder: Path) -> bool:
    """Whether a folder holds this family."""
    path = folder / "config.json"
    return path.is_file() and read_config(path).optional("model_type") == "qwen3_tts"


def read_qwen3_tts_config(folder: Path) -> QwenTtsConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key."""
    config = read_config(folder / "config.json")
    talker = config.part("talker_config")
    predictor = talker.part("code_predictor_config")
    stated = read_config(folder / CODEC_FOLDER / "config.json")
    codec = qwen_codec_config(stated)
    for part in (talker, predictor):
        part.expect("num_code_groups", codec.n_codebooks)
    predictor.expect("vocab_size", codec.n_codes)
    return QwenTtsConfig(
        talker=llama_config(talker, max_positions=MAX_POSITIONS, style=QWEN3),
        predictor=llama_config(predictor, max_positions=codec.n_codebooks + 1, style=QWEN3),
        codec=codec,
        marks=_marks(talker),
        n_text_ids=talker.integer("text_vocab_size"),
        text_hidden=talker.integer("text_hidden_size"),
        tts_pad=config.integer("tts_pad_token_id"),
        tts_bos=config.integer("tts_bos_token_id"),
        tts_eos=config.integer("tts_eos_token_id"),
        speakers=_ids(talker.part("spk_id")),
        dialects=_dialects(talker),
        languages=_ids(talker.part("codec_language_id")),
        voice=_voice(config, stated, codec) if config.text("tts_model_type") == BASE else None,
    )


def model_spec(config: QwenTtsConfig, codec: CodecSpec) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    names = [f"codebook{n}" for n in range(config.n_codebooks)]
    drawn = SamplingParams(
        temperature=float(TEMPERATURE.default or 0.0), top_k=int(TOP_K.default or 0)
    )
    n_first, eos = config.talker.n_ids, config.marks.eos
    return ModelSpec(
        name="qwen3-tts",
        tasks=FACTS.tasks,
        columns=(
            ColumnSpec(
                name=TEXT_COLUMN, role="text", ids=(0, config.n_text_ids), pad_id=config.no_text
            ),
            *(
                ColumnSpec(
                    name=name,
                    role="acoustic" if idx else "semantic",
                    ids=(0, config.no_code(idx)),
                    pad_id=config.no_code(idx),
                )
                for idx, name in enumerate(names)
            ),
        ),
        frame=FrameSpec(
            n_codebooks=config.n_codebooks,
            frame_rate_hz=config.codec.sample_rate_hz / config.codec.samples_per_frame,
            sample_rate_hz=config.codec.sample_rate_hz,
            samples_per_frame=config.codec.samples_per_frame,
        ),
        backbone=config.talker.backbone,
        depth=depth_spec(config.predictor, names),
        phases=(
            PhaseSpec(
                name="speech",
                columns=(
                    PhaseColumn(fill="derived"),
                    PhaseColumn(
                        fill="sampled",
                        allowed=((0, n_first - N_MARKS), (eos, eos + 1)),
                        sampling=drawn,
                    ),
                    *(PhaseColumn(fill="depth", sampling=drawn),) * (config.n_codebooks - 1),
                ),
                feeds_codec=True,
            ),
        ),
        codec=codec,
        state_size=STATE_SIZE,
        text_capacity=TEXT_CAPACITY,
        # The words stand beside the codes of the recording, and the text right behind them: there
        # it is all in the prompt.
        whole_text_options=((WHOLE_TEXT if config.voice is None else REFERENCE_TEXT).name,),
        voices=tuple(config.speakers),
        languages=(AUTO, *(name for name in config.languages if "dialect" not in name)),
        options=OF_OTHERS if config.voice is None else OF_BASE,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def _marks(talker: Config) -> CodecMarks:
    return CodecMarks(
        pad=talker.integer("codec_pad_id"),
        bos=talker.integer("codec_bos_id"),
        eos=talker.integer("codec_eos_token_id"),
        think=talker.integer("codec_think_id"),
        no_think=talker.integer("codec_nothink_id"),
        think_bos=talker.integer("codec_think_bos_id"),
        think_eos=talker.integer("codec_think_eos_id"),
    )


def _voice(config: Config, stated: Config, codec: QwenCodecConfig) -> VoiceConfig:
    """What a Base checkpoint adds; `stated` is the codec's file."""
    speaker = speaker_config(config.part("speaker_encoder_config"))
    listener = mimi_config(stated.part("encoder_config"))
    config.part("talker_config").expect("hidden_size", speaker.size)
    stated.expect("encoder_valid_num_quantizers", codec.n_codebooks)
    stated.expect("encode_downsample_rate", listener.samples_per_frame)
    stated.expect("input_sample_rate", listener.sample_rate_hz)
    stated.part("encoder_config").expect("codebook_size", codec.n_codes)
    config.part("speaker_encoder_config").expect("sample_rate", listener.sample_rate_hz)
    return VoiceConfig(speaker=speaker, listener=listener)


def _ids(config: Config) -> dict[str, int]:
    return {name.lower(): config.integer(name) for name in config.values}


def _dialects(talker: Config) -> dict[str, str]:
    """The dialect of each voice that has one; the file says false for the others."""
    stated = talker.part("spk_is_dialect").values
    return {name.lower(): dialect for name, dialect in stated.items() if isinstance(dialect, str)}
