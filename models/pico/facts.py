"""The facts of `pico` for the engine and the gateway: its `ModelSpec`. No weights are read."""

from __future__ import annotations

from typing import Final

from models.pico.config import N_ADVANCES, N_STAYS, PicoConfig
from models.pico.grammar import MAX_PROMPT, Grammar
from models.pico.stretch import MAX_SPEED, MIN_SPEED, UNIT_SPEED
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
)

ADVANCE_COLUMN: Final = "advance"
MAX_STEPS_PER_UNIT: Final = 4
SPARE_STEPS: Final = 40

SPEED: Final = OptionSpec(
    name="speed",
    kind="number",
    default=1.0,
    description="how fast to speak; the pitch stays",
    minimum=MIN_SPEED / UNIT_SPEED,
    maximum=MAX_SPEED / UNIT_SPEED,
)
TEMPERATURE: Final = OptionSpec(
    name="temperature",
    kind="number",
    default=None,
    description="how freely pitch and colour vary; 0 always takes the likeliest sound",
    minimum=0.0,
    maximum=1.5,
)
TIMING_TEMPERATURE: Final = OptionSpec(
    name="timing_temperature",
    kind="number",
    default=None,
    description="how freely the rhythm varies; 0 always takes the likeliest",
    minimum=0.0,
    maximum=1.5,
)


def max_steps(n_units: int) -> int:
    """Cap on the steps of a text: the teacher takes about 1.4 a unit, 2.5 in its slowest lines."""
    return MAX_STEPS_PER_UNIT * n_units + SPARE_STEPS


def code_column(book: int) -> str:
    """Name of the column of one book."""
    return f"code{book}"


def backbone_spec(config: PicoConfig) -> BackboneSpec:
    """Shape of the decoder stack."""
    return BackboneSpec(
        n_layers=config.n_layers,
        n_query_heads=config.n_heads,
        n_kv_heads=config.n_heads,
        head_dim=config.head_dim,
        hidden=config.hidden,
        max_positions=MAX_PROMPT + max_steps(MAX_PROMPT - 2) + config.n_books,
    )


def model_spec(config: PicoConfig, grammar: Grammar, codec: CodecSpec) -> ModelSpec:
    """The spec of a model of this config, with the detokenizer's own part."""
    return ModelSpec(
        name="pico",
        tasks=("speak",),
        columns=_columns(config),
        frame=FrameSpec(
            n_codebooks=grammar.frame_width,
            frame_rate_hz=config.vocoder.sample_rate / config.step_samples,
            sample_rate_hz=config.vocoder.sample_rate,
            samples_per_frame=config.step_samples,
        ),
        backbone=backbone_spec(config),
        phases=(PhaseSpec(name="speak", columns=_phase_columns(config), feeds_codec=True),),
        codec=codec,
        state_size=grammar.state_size,
        voices=("joe",),
        languages=("en", "en-US"),
        options=(SPEED, TEMPERATURE, TIMING_TEMPERATURE),
        weights_licence="Apache-2.0; the vocoder and its teacher voice: see models/pico/NOTICE",
        weights_source="in the repository, made by models/pico/training",
    )


def _columns(config: PicoConfig) -> tuple[ColumnSpec, ...]:
    """Advance, the text window, the stay, the codes."""
    window = (
        ColumnSpec(name=f"unit{place:+d}", role="text", ids=(0, config.n_units), pad_id=0)
        for place in config.window
    )
    codes = (
        ColumnSpec(
            name=code_column(book),
            role="acoustic",
            ids=(0, config.n_codes),
            pad_id=config.absent_code,
            delay_rows=1 + book,
        )
        for book in range(config.n_books)
    )
    return (
        ColumnSpec(name=ADVANCE_COLUMN, role="control", ids=(0, N_ADVANCES), pad_id=0),
        *window,
        ColumnSpec(name="stay", role="control", ids=(0, N_STAYS), pad_id=0),
        *codes,
    )


def _phase_columns(config: PicoConfig) -> tuple[PhaseColumn, ...]:
    derived = PhaseColumn(fill="derived")
    return (
        PhaseColumn(fill="sampled", sampling=config.advance_sampling),
        *(derived for _ in config.window),
        derived,
        *(PhaseColumn(fill="sampled", sampling=sampling) for sampling in config.code_sampling),
    )
