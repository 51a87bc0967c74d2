"""What the engine and the gateway may know of `opuslm` and `opuslm-dialogue`. No weights, no I/O.

Source: ESPnet's `decode_default.yaml` of the published checkpoint: sampling and lengths.
"""

from __future__ import annotations

from typing import Final

from models.codecs.espnet_dac import espnet_dac_codec
from models.options import integer_option, number_option
from models.opuslm.config import DAC_SOURCE, OpusLmConfig
from models.spec import (
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

AUDIO, DRAIN, TEXT, BRIDGE = range(4)
"""Phase indices. The last two are those of an answer: its text, and the rows between that and its
frames."""
FIRST: Final = "first"
"""The column of units, and of text."""
ROW, END, MOST, MOST_TEXT, PAST = 1, 2, 3, 4, 5
"""Places in a stream's state: rows of the segment, number of frames once the end has come, rows
after which speech and text are ended, and the last rows of codes."""

LEAST_FRAMES: Final = 3
LEAST_TEXT: Final = 1
"""Rows before which a segment cannot end."""
MAX_ROWS: Final = 2048
"""Of a segment, with those in which its last frame is completed."""

TEMPERATURE: Final = number_option(
    "temperature", 0.8, 0.0, 2.0, "of speech; 0 takes the likeliest and soon repeats"
)
TOP_K: Final = integer_option("top_k", 30, 1, 1024, "how many codes may be drawn from")
TEXT_SAMPLING: Final = SamplingParams(temperature=0.0)

LICENCE: Final = "the LM as its card states, its backbone Apache-2.0; CC-BY-4.0 (codec)"
FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=("en",),
    options=(TEMPERATURE, TOP_K),
    weights_licence=LICENCE,
    weights_source=f"espnet/OpusLM_7B_Anneal or OpusLM_1.7B_Anneal, and {DAC_SOURCE}",
)
DIALOGUE_FACTS: Final = FamilyFacts(
    tasks=("converse",),
    voices=(),
    languages=("en",),
    options=(TEMPERATURE, TOP_K),
    weights_licence=LICENCE,
    weights_source=f"espnet/multi_turn_SDS_RLAIF, and {DAC_SOURCE}",
)


def model_spec(config: OpusLmConfig, voices: tuple[str, ...] = ()) -> ModelSpec:
    """The facts of a checkpoint with these voices."""
    facts = DIALOGUE_FACTS if config.is_dialogue else FACTS
    dac = config.dac
    n_books = dac.n_codebooks
    return ModelSpec(
        name="opuslm-dialogue" if config.is_dialogue else "opuslm",
        tasks=facts.tasks,
        columns=_columns(config),
        frame=FrameSpec(
            n_codebooks=n_books,
            frame_rate_hz=dac.sample_rate_hz / dac.samples_per_frame,
            sample_rate_hz=dac.sample_rate_hz,
            samples_per_frame=dac.samples_per_frame,
        ),
        backbone=config.decoder.backbone,
        phases=_speaking(config) + (_answering(config) if config.is_dialogue else ()),
        codec=espnet_dac_codec(dac),
        state_size=PAST + (n_books - 1) * n_books,
        gives_text=config.is_dialogue,
        voices=voices,
        languages=facts.languages,
        options=facts.options,
        weights_licence=facts.weights_licence,
        weights_source=facts.weights_source,
    )


def speech_sampling(temperature: float, top_k: int) -> SamplingParams:
    """How all columns of a frame are drawn."""
    return SamplingParams(temperature=temperature, top_k=top_k)


def _columns(config: OpusLmConfig) -> tuple[ColumnSpec, ...]:
    pad = config.ids.pad
    high = config.text[1] if config.is_dialogue else config.units[1]
    first = ColumnSpec(name=FIRST, role="semantic", ids=(config.ids.end, high), pad_id=pad)
    return (
        first,
        *(
            ColumnSpec(
                name=f"codebook{idx}", role="acoustic", ids=ids, pad_id=pad, delay_rows=idx + 1
            )
            for idx, ids in enumerate(config.code_ranges)
        ),
    )


def _speaking(config: OpusLmConfig) -> tuple[PhaseSpec, ...]:
    sampling = speech_sampling(float(TEMPERATURE.default or 0.0), int(TOP_K.default or 0))
    end = (config.ids.end, config.ids.end + 1)
    code = PhaseColumn(fill="sampled", sampling=sampling)
    codes = (code,) * config.dac.n_codebooks
    unit = PhaseColumn(fill="sampled", allowed=(end, config.units), sampling=sampling)
    blank = PhaseColumn(fill="forced", forced_id=config.ids.pad)
    return (
        PhaseSpec(name="audio", columns=(unit, *codes), feeds_codec=True),
        PhaseSpec(name="drain", columns=(blank, *codes), feeds_codec=True),
    )


def _answering(config: OpusLmConfig) -> tuple[PhaseSpec, ...]:
    blanks = (PhaseColumn(fill="forced", forced_id=config.ids.pad),) * config.dac.n_codebooks
    end = (config.ids.end, config.ids.end + 1)
    word = PhaseColumn(fill="sampled", allowed=(end, config.text), sampling=TEXT_SAMPLING)
    mark = PhaseColumn(fill="derived")
    return (
        PhaseSpec(name="text", columns=(word, *blanks), feeds_text=True),
        PhaseSpec(name="bridge", columns=(mark, *blanks)),
    )
