"""Files, shape and facts of a `chatterbox` checkpoint. Shapes of tensors are read, no weights.

The published folders have no config. What follows from the shapes of tensors is read from them; the
rest is what the published code fixes: the width of a head, the rotary embedding, eps, the heads of
the perceiver, and that the ids that begin and end the speech follow the speech tokens.

Source: resemble-ai/chatterbox, `models/t3/` and `tts.py` (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from models import checkpoint
from models.audio.reference import REFERENCE_AUDIO
from models.errors import WeightError
from models.hugging_face import Llama3Scaling, LlamaConfig
from models.options import number_option
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    GuidanceSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

ENGLISH_LM: Final = "t3_cfg.safetensors"
MULTILINGUAL_LMS: Final = "t3_mtl*.safetensors"
CODEC: Final = "s3gen.safetensors"
VOICE_ENCODER: Final = "ve.safetensors"
DEFAULT_VOICE: Final = "conds.pt"
ENGLISH_TOKENIZER: Final = "tokenizer.json"
MULTILINGUAL_TOKENIZER: Final = "grapheme_mtl_merged_expanded_v1.json"
CANGJIE: Final = "Cangjie5_TC.json"
"""How Chinese characters are spelled; without it Chinese is not read."""

HEAD_DIM: Final = 64
EPS: Final = 1e-5
THETA: Final = 500_000.0
SCALING: Final = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
N_PERCEIVER_HEADS: Final = 4
LM_HEARS_S: Final = 6
"""Seconds of a recording that the LM looks at."""
MAX_FRAMES: Final = 1000
"""Of one stream, as in the reference: 40 s."""
N_MARKS: Final = 2
"""Ids that follow the speech tokens: one begins the speech, one ends it."""
N_OPENING: Final = 2
"""Rows of the id that begins the speech: the reference feeds it twice, both times at the start."""

FRAME_RATE_HZ: Final = 25
SAMPLE_RATE_HZ: Final = 24_000
SAMPLES_PER_FRAME: Final = SAMPLE_RATE_HZ // FRAME_RATE_HZ

SPEECH, PLACE = "speech", "place"
"""Columns: the speech token, and which row of the speech it is in; the position has a table."""
ROW: Final = 1
"""Place in a stream's state of the rows generated."""

EXAGGERATION: Final = number_option(
    "exaggeration", 0.5, 0.0, 2.0, "how strongly feelings show; 0.5 is as usual"
)
CFG_WEIGHT: Final = number_option(
    "cfg_weight", 0.5, 0.0, 2.0, "how closely to follow the text; 0 turns guidance off"
)
TEMPERATURE: Final = number_option(
    "temperature", 0.8, 0.0, 5.0, "of the speech tokens; 0 takes the likeliest"
)
MIN_P: Final = number_option(
    "min_p", 0.05, 0.0, 1.0, "tokens less likely than this part of the likeliest are not drawn"
)
TOP_P: Final = number_option(
    "top_p", 1.0, 0.01, 1.0, "share of the probability that may be drawn from"
)
REPETITION_PENALTY: Final = number_option("repetition_penalty", 1.2, 1.0, 2.0, "against loops")
REPETITION_WINDOW: Final = 256
"""Rows that the penalty looks back: 10 s. The reference looks back to the start."""

MULTILINGUAL: Final = (
    *("en", "ar", "da", "de", "el", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl"),
    *("no", "pl", "pt", "ru", "sv", "sw", "tr", "zh"),
)
"""Languages that the published weights were trained for; the first is taken where none is named."""

FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=("en",),
    options=(
        EXAGGERATION,
        CFG_WEIGHT,
        TEMPERATURE,
        MIN_P,
        TOP_P,
        REPETITION_PENALTY,
        REFERENCE_AUDIO,
    ),
    weights_licence="MIT",
    weights_source="ResembleAI/chatterbox",
)
MULTILINGUAL_FACTS: Final = FamilyFacts(
    tasks=FACTS.tasks,
    voices=FACTS.voices,
    languages=MULTILINGUAL,
    options=FACTS.options,
    weights_licence=FACTS.weights_licence,
    weights_source=FACTS.weights_source,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LmConfig:
    """Shape of the LM ("T3"), and of what stands around its decoder.

    Args:
        decoder: of the LM; its `n_ids` are those of the speech table.
        n_text_ids: rows of the text table.
        n_text_positions: places that a text can have.
        n_speech_positions: places that speech can have.
        n_queries: rows that tell of the reference's speech.
        speaker_size: numbers that a voice is told by.
        n_codes: speech tokens; the ids that begin and end the speech follow them.
    """

    decoder: LlamaConfig
    n_text_ids: int
    n_text_positions: int
    n_speech_positions: int
    n_queries: int
    speaker_size: int
    n_codes: int

    @property
    def start(self) -> int:
        """The id that begins the speech."""
        return self.n_codes

    @property
    def stop(self) -> int:
        """The id that ends it."""
        return self.n_codes + 1

    @property
    def n_settings(self) -> int:
        """Rows before the text: the speaker, the speech of the reference, the feeling."""
        return self.n_queries + 2

    @property
    def max_frames(self) -> int:
        """Of one stream."""
        return min(MAX_FRAMES, self.n_speech_positions - 1)


def lm_config(tensors: Mapping[str, Tensor], *, n_codes: int, source: str) -> LmConfig:
    """The shape in a file of the LM.

    Args:
        tensors: of the file.
        n_codes: speech tokens that the codec knows.
        source: the file, for messages.

    Raises:
        WeightError: a tensor is missing, or is of a shape that no such LM has; it is named.
    """

    def size(key: str, axis: int) -> int:
        return size_of(tensors, key, axis, source)

    hidden = size("tfmr.norm.weight", 0)
    layer = "tfmr.layers.0."
    heads = [size(f"{layer}self_attn.{one}_proj.weight", 0) for one in "qk"]
    if any(n % HEAD_DIM for n in heads):
        raise WeightError(f"{source}: {layer}self_attn gives {heads}, no multiples of {HEAD_DIM}")
    n_text, n_speech = size("text_pos_emb.emb.weight", 0), size("speech_pos_emb.emb.weight", 0)
    n_queries = size("cond_enc.perceiver.pre_attention_query", 1)
    n_ids = size("speech_emb.weight", 0)
    if n_ids < n_codes + N_MARKS:
        raise WeightError(f"{source}: speech_emb.weight has {n_ids} rows for {n_codes} tokens")
    decoder = LlamaConfig(
        backbone=BackboneSpec(
            n_layers=len({key.split(".")[2] for key in tensors if key.startswith("tfmr.layers.")}),
            n_query_heads=heads[0] // HEAD_DIM,
            n_kv_heads=heads[1] // HEAD_DIM,
            head_dim=HEAD_DIM,
            hidden=hidden,
            # The longest text and the longest speech: every prompt leaves room for it.
            max_positions=n_queries + 2 + n_text + N_OPENING + min(MAX_FRAMES, n_speech),
        ),
        inner=size(f"{layer}mlp.gate_proj.weight", 0),
        n_ids=n_ids,
        eps=EPS,
        theta=THETA,
        scaling=SCALING,
    )
    return LmConfig(
        decoder=decoder,
        n_text_ids=size("text_emb.weight", 0),
        n_text_positions=n_text,
        n_speech_positions=n_speech,
        n_queries=n_queries,
        speaker_size=size("cond_enc.spkr_enc.weight", 1),
        n_codes=n_codes,
    )


def size_of(tensors: Mapping[str, Tensor], key: str, axis: int, source: str) -> int:
    """How long a tensor is along an axis. Raises: `WeightError`, it names the tensor."""
    return checkpoint.size_of(tensors, key, axis, source=source, kind="Chatterbox")


def model_spec(
    name: str, config: LmConfig, codec: CodecSpec, languages: tuple[str, ...]
) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    sampling = SamplingParams(
        temperature=float(TEMPERATURE.default or 0.0),
        min_p=float(MIN_P.default or 0.0),
        top_p=float(TOP_P.default or 1.0),
        repetition_penalty=float(REPETITION_PENALTY.default or 1.0),
        repetition_window=REPETITION_WINDOW,
    )
    n_codes, stop = config.n_codes, config.stop
    return ModelSpec(
        name=name,
        tasks=FACTS.tasks,
        columns=(
            ColumnSpec(name=SPEECH, role="semantic", ids=(0, stop + 1), pad_id=stop),
            ColumnSpec(name=PLACE, role="control", ids=(0, config.n_speech_positions), pad_id=0),
        ),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=FRAME_RATE_HZ,
            sample_rate_hz=SAMPLE_RATE_HZ,
            samples_per_frame=SAMPLES_PER_FRAME,
        ),
        backbone=config.decoder.backbone,
        phases=(
            PhaseSpec(
                name="speech",
                columns=(
                    PhaseColumn(
                        fill="sampled",
                        allowed=((0, n_codes), (stop, stop + 1)),
                        sampling=sampling,
                    ),
                    PhaseColumn(fill="derived"),
                ),
                feeds_codec=True,
            ),
        ),
        guidance=GuidanceSpec(
            scale=1.0 + float(CFG_WEIGHT.default or 0.0),
            phases=("speech",),
            columns=(SPEECH,),
            companion="own_rows",
            entry="start",
        ),
        codec=codec,
        state_size=ROW + 1,
        voices=FACTS.voices,
        languages=languages,
        options=FACTS.options,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )
