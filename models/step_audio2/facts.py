"""What the engine and the gateway may know of `step-audio2`: phases, options, state. No weights.

Behind `<tts_start>` text and codes come mixed, in one line of ids, as the model draws them. What
follows `<tts_end>` is heard and shown nowhere; the message ends with `<|EOT|>`.

Source: stepfun-ai/Step-Audio2 (Apache-2.0), `stepaudio2.py` (messages, sampling).
"""

from __future__ import annotations

from typing import Final

from models.audio.reference import REFERENCE_AUDIO
from models.audio.spoken import spoken_option
from models.options import number_option
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)
from models.step_audio2.config import StepConfig
from models.step_audio2.vocoder import HIFT

SPEECH, CLOSING = range(2)
"""Phase indices."""
STATE_SIZE: Final = 1
"""The phase alone."""
COLUMN: Final = "ids"
SAMPLES_PER_FRAME: Final = 960
"""Of a code: two mel frames of 480 samples."""
MAX_ROWS: Final = 4096
"""That the reference generates at most."""
PENALTY: Final = 1.05
PENALTY_ROWS: Final = 256

TEMPERATURE: Final = number_option(
    "temperature", 0.7, 0.0, 2.0, "of text and codes; 0 takes the likeliest"
)
TOP_P: Final = number_option(
    "top_p", 0.9, 0.05, 1.0, "share of the likeliest that may be drawn from; 1: all"
)
MOST_HEARD_S: Final = 120.0
OPTIONS: Final = (TEMPERATURE, TOP_P, REFERENCE_AUDIO, spoken_option(MOST_HEARD_S))

FACTS: Final = FamilyFacts(
    tasks=("speak", "converse"),
    voices=(),
    languages=("en", "zh", "ja"),
    options=OPTIONS,
    weights_licence="Apache-2.0",
    weights_source="stepfun-ai/Step-Audio-2-mini",
)


def sampling(temperature: float, top_p: float) -> SamplingParams:
    """How every id is drawn."""
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        repetition_penalty=PENALTY,
        repetition_window=PENALTY_ROWS,
    )


def model_spec(config: StepConfig, codec: CodecSpec, voices: tuple[str, ...] = ()) -> ModelSpec:
    """The facts of a checkpoint with these voices."""
    ids = config.ids
    drawn = sampling(float(TEMPERATURE.default or 0.0), float(TOP_P.default or 1.0))
    return ModelSpec(
        name="step-audio2",
        tasks=FACTS.tasks,
        columns=(
            ColumnSpec(name=COLUMN, role="semantic", ids=(0, config.n_used_ids), pad_id=ids.patch),
        ),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=HIFT.sample_rate_hz / SAMPLES_PER_FRAME,
            sample_rate_hz=HIFT.sample_rate_hz,
            samples_per_frame=SAMPLES_PER_FRAME,
        ),
        backbone=config.decoder.backbone,
        phases=(
            PhaseSpec(
                name="speech",
                columns=(PhaseColumn(fill="sampled", sampling=drawn),),
                feeds_codec=True,
                feeds_text=True,
            ),
            PhaseSpec(
                name="closing",
                columns=(
                    PhaseColumn(fill="sampled", allowed=((0, ids.first_code),), sampling=drawn),
                ),
            ),
        ),
        codec=codec,
        state_size=STATE_SIZE,
        takes_audio=True,
        gives_text=True,
        voices=voices,
        languages=FACTS.languages,
        options=FACTS.options,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )
