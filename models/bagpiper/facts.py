"""What the engine and the gateway may know of `bagpiper`: phases, options, state. No weights.

An answer is a line of messages. Each begins with two bridge rows, fed one after the other: who
speaks (phase `turn` writes it), and what kind of message comes (phase `choice` decides).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from models.bagpiper.config import (
    ASSISTANT,
    AUDIO_DECODING,
    BLANK,
    EOS,
    EOT,
    MARKS,
    MOST_SEGMENTS,
    TEXT_DECODING,
    BagpiperConfig,
    Decoding,
)
from models.codecs.windowed import windowed_codec
from models.codecs.xcodec import CHUNK_FRAMES
from models.options import number_option
from models.spec import (
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    GuidanceSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

CHOICE, TEXT, TURN, AUDIO = range(4)
"""Phase indices."""
PHASES: Final = ("choice", "text", "turn", "audio")

ROW, END, SEGMENT, N_ORDERED, N_MOST, ORDER = 1, 2, 3, 4, 5, 6
"""Places in a stream's state: rows of the message, number of its frames once that is known,
messages before it, messages whose kinds are given, most messages, and the marks of those kinds."""
PAST: Final = ORDER + MOST_SEGMENTS
"""Place of the rows that still belong to an unfinished frame."""

FIRST: Final = "codebook0"
"""The column of text and marks, and of the first codebook."""

GUIDANCE: Final = number_option(
    "guidance",
    AUDIO_DECODING.guidance,
    1.0,
    10.0,
    "how closely the sound follows its description; 1 turns guidance off",
)
TEMPERATURE: Final = number_option(
    "temperature", AUDIO_DECODING.temperature, 0.0, 2.0, "of the codes; 0 takes the likeliest"
)
TEXT_TEMPERATURE: Final = number_option(
    "text_temperature",
    TEXT_DECODING.temperature,
    0.0,
    2.0,
    "of what it writes before it speaks; 0 takes the likeliest",
)
STYLE: Final = OptionSpec(
    name="style",
    kind="string",
    default="in a clear, natural voice in a quiet room",
    description="how the text is said, in words",
)
IS_SCENE: Final = OptionSpec(
    name="scene",
    kind="boolean",
    default=False,
    description="the text describes what is to be heard, in place of the words to say",
)
SEGMENTS: Final = OptionSpec(
    name="segments",
    kind="string",
    default=None,
    description="what is made: a description and then the sound, the sound alone, or as the model "
    "likes; by default as the checkpoint says",
    choices=("text,audio", "audio", "any"),
)
OPTIONS: Final = (GUIDANCE, TEMPERATURE, TEXT_TEMPERATURE, STYLE, IS_SCENE, SEGMENTS)

FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=("en",),
    options=OPTIONS,
    weights_licence="as the checkpoint's card states; Qwen3 is Apache-2.0, X-Codec MIT",
    weights_source="espnet/bagpiper-tts-sft, bagpiper-sft or bagpiper, with Qwen/Qwen3-8B-Base and "
    "hf-audio/xcodec-hubert-general",
)


def model_spec(config: BagpiperConfig, *, forces_delays: bool = True) -> ModelSpec:
    """The facts of a checkpoint.

    Args:
        config: of the checkpoint.
        forces_delays: warm-up and drain of speech follow the pattern whatever is drawn; False: as
            the reference, which leaves them to the model.
    """
    n_columns, codec = config.n_columns, config.codec
    names = tuple(f"codebook{n}" for n in range(n_columns))
    return ModelSpec(
        name="bagpiper",
        tasks=FACTS.tasks,
        columns=tuple(
            ColumnSpec(
                name=name,
                role="acoustic" if n else "semantic",
                ids=column_ids(config, n),
                pad_id=BLANK,
                delay_rows=n,
            )
            for n, name in enumerate(names)
        ),
        frame=FrameSpec(
            n_codebooks=n_columns,
            frame_rate_hz=codec.sample_rate_hz / codec.samples_per_frame,
            sample_rate_hz=codec.sample_rate_hz,
            samples_per_frame=codec.samples_per_frame,
        ),
        backbone=config.decoder.backbone,
        phases=_phases(config, forces_delays=forces_delays),
        guidance=GuidanceSpec(
            scale=config.audio.guidance,
            phases=(PHASES[AUDIO],),
            columns=names,
            companion="zero_rows",
            entry="phase",
        ),
        codec=windowed_codec(codec.reach, CHUNK_FRAMES),
        state_size=PAST + (n_columns - 1) * n_columns,
        gives_text=True,
        voices=FACTS.voices,
        languages=FACTS.languages,
        options=(
            replace(GUIDANCE, default=config.audio.guidance),
            replace(TEMPERATURE, default=config.audio.temperature),
            replace(TEXT_TEMPERATURE, default=config.text.temperature),
            STYLE,
            IS_SCENE,
            SEGMENTS,
        ),
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def column_ids(config: BagpiperConfig, column: int) -> tuple[int, int]:
    """Ids that a column can hold: its codes, and in the first one ends, marks and text as well."""
    low, high = config.code_ids[column]
    if column == 0:
        return EOS, max(high, config.text_ids[1])
    return low, high


def sampling(decoding: Decoding, temperature: float) -> SamplingParams:
    """How ids of a kind of message are drawn."""
    return SamplingParams(temperature=temperature, top_k=decoding.top_k)


def _phases(config: BagpiperConfig, *, forces_delays: bool) -> tuple[PhaseSpec, ...]:
    n_others = config.n_columns - 1
    blank = PhaseColumn(fill="forced", forced_id=BLANK)
    ends = (EOS, EOT + 1)
    speech = sampling(config.audio, config.audio.temperature)
    # A blank is an id of its own, which the model may draw, unless the pattern writes it.
    n_skipped = 1 if forces_delays else 0
    first = {
        CHOICE: PhaseColumn(
            fill="sampled",
            allowed=tuple((mark, mark + 1) for mark in MARKS.values()),
            sampling=SamplingParams(temperature=0.0),
        ),
        TEXT: PhaseColumn(
            fill="sampled",
            allowed=(ends, config.text_ids),
            sampling=sampling(config.text, config.text.temperature),
        ),
        TURN: PhaseColumn(fill="forced", forced_id=ASSISTANT),
        AUDIO: PhaseColumn(fill="sampled", allowed=(ends, config.code_ids[0]), sampling=speech),
    }
    codes = tuple(
        PhaseColumn(fill="sampled", allowed=((low + n_skipped, high),), sampling=speech)
        for low, high in config.code_ids[1:]
    )
    return tuple(
        PhaseSpec(
            name=PHASES[idx],
            columns=(first[idx], *(codes if idx == AUDIO else (blank,) * n_others)),
            feeds_codec=idx == AUDIO,
            feeds_text=idx == TEXT,
        )
        for idx in range(len(PHASES))
    )
