"""`toy-delayed`: four delayed codebooks in one id space, always guided by a companion of its own.

Warm-up and drain are forced. The end mark in column 0 is followed by a drain phase that completes
the frames under way. The voice seeds the codec's state.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from models.base import Advance, PromptPlan, TextFeed
from models.layers.delay import NEVER, blank_outside, completed_frame, join_history
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    GuidanceSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
    PlanRequest,
    SamplingParams,
)
from models.toy.base import (
    BOS,
    EOS,
    FRAMES_OPTION,
    PAD,
    ROW,
    SMALL_BACKBONE,
    TEXT_HIGH,
    TEXT_LOW,
    WANTED,
    ToyModel,
    check_request,
    frame_limit,
    mask_logits,
    start_state,
    text_ids,
)
from models.toy.codec import GAIN, HISTORY

DELAYS = (0, 1, 2, 3)
N_CODEBOOKS = len(DELAYS)
MAX_DELAY = max(DELAYS)
N_CODES = 16
CODE_LOW = TEXT_HIGH
END, PAST = 3, 4
"""Places in the state: number of frames once the end is known, and the last `MAX_DELAY` rows."""
VOICE_GAINS = {"loud": 1.0, "soft": 0.5}

_NAMES = tuple(f"codebook{n}" for n in range(N_CODEBOOKS))
_SAMPLING = SamplingParams(temperature=1.0, min_p=0.05, repetition_penalty=1.2, repetition_window=8)
_SAMPLED = PhaseColumn(fill="sampled", sampling=_SAMPLING)

SPEC = ModelSpec(
    name="toy-delayed",
    tasks=("speak",),
    columns=tuple(
        ColumnSpec(
            name=name,
            role="semantic" if n == 0 else "acoustic",
            ids=(0 if n == 0 else CODE_LOW + n * N_CODES, CODE_LOW + (n + 1) * N_CODES),
            pad_id=PAD,
            bos_id=BOS if n == 0 else None,
            delay_rows=DELAYS[n],
        )
        for n, name in enumerate(_NAMES)
    ),
    frame=FrameSpec(
        n_codebooks=N_CODEBOOKS,
        frame_rate_hz=44_100 / 512,
        sample_rate_hz=44_100,
        samples_per_frame=512,
    ),
    backbone=SMALL_BACKBONE,
    phases=(
        PhaseSpec(
            name="audio",
            columns=(
                PhaseColumn(
                    fill="sampled",
                    allowed=((EOS, EOS + 1), (CODE_LOW, CODE_LOW + N_CODES)),
                    sampling=_SAMPLING,
                ),
                *(_SAMPLED,) * (N_CODEBOOKS - 1),
            ),
            feeds_codec=True,
        ),
        PhaseSpec(
            name="drain",
            columns=(
                PhaseColumn(fill="forced", forced_id=PAD),
                *(_SAMPLED,) * (N_CODEBOOKS - 1),
            ),
            feeds_codec=True,
        ),
    ),
    guidance=GuidanceSpec(
        scale=3.0,
        phases=("audio", "drain"),
        columns=_NAMES,
        companion="own_rows",
        entry="start",
    ),
    codec=CodecSpec(chunk_frames=(4, 8, 16, 32), state=(HISTORY, GAIN)),
    state_size=PAST + MAX_DELAY * N_CODEBOOKS,
    voices=tuple(VOICE_GAINS),
    languages=("en", "fr"),
    options=(
        FRAMES_OPTION,
        OptionSpec(
            name="guidance",
            kind="number",
            default=3.0,
            description="guidance scale; 1 turns guidance off",
            minimum=1.0,
            maximum=10.0,
        ),
        OptionSpec(
            name="temperature",
            kind="number",
            default=1.0,
            description="of every codebook; 0 takes the most likely code",
            minimum=0.0,
            maximum=2.0,
        ),
    ),
    weights_licence="none: random",
    weights_source="made at load",
)


class DelayedToy(ToyModel):
    """Rows of four codes, each column one row later than the one before."""

    delays: Tensor
    code_lows: Tensor

    def __init__(self) -> None:
        super().__init__(SPEC, n_codes=N_CODES, seed=107, shares_table=True)
        self.register_buffer("delays", torch.tensor(DELAYS), persistent=False)
        code_lows = CODE_LOW + N_CODES * torch.arange(N_CODEBOOKS)
        self.register_buffer("code_lows", code_lows, persistent=False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Voice mark, text, start mark in column 0; the companion has no text."""
        text = text_ids(request.text)
        options, voice_idx = check_request(SPEC, request)
        mark = TEXT_LOW + voice_idx
        ids = _column0_rows([mark, *text, BOS])
        state = start_state(SPEC, phase="audio", wanted=int(options.get("frames", len(text))))
        state[END] = NEVER
        max_frames = frame_limit(SPEC, request, len(ids))
        scale = float(options["guidance"])
        blind = PromptPlan(ids=_column0_rows([mark, BOS]), state=state, max_frames=max_frames)
        sampling = replace(_SAMPLING, temperature=float(options["temperature"]))
        return PromptPlan(
            ids=ids,
            state=state,
            max_frames=max_frames,
            codec_state={GAIN.name: torch.tensor([VOICE_GAINS[SPEC.voices[voice_idx]]])},
            companion=None if scale == 1.0 else blind,
            guidance_scale=scale,
            sampling=dict.fromkeys(_NAMES, sampling),
        )

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Column 0 ends when all wanted frames have begun, and only then."""
        is_over = (state[:, ROW] >= state[:, WANTED]).unsqueeze(1)
        is_end = torch.arange(SPEC.columns[0].n_ids, device=state.device) == EOS
        return [mask_logits(logits[0], is_end == is_over), *logits[1:]]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Blank what warms up or drains; give the frame that this row completes."""
        row, old_end = state[:, ROW], state[:, END]
        end = torch.where((ids[:, 0] == EOS) & (old_end == NEVER), row, old_end)
        rows = blank_outside(ids, row, end, self.delays, PAD)
        rows = torch.where((row == end).unsqueeze(1) & (self.delays == 0), EOS, rows)
        past = join_history(state[:, PAST:], rows)
        frame_idx = row - MAX_DELAY
        frames = (completed_frame(past, self.delays) - self.code_lows).clamp(0, N_CODES - 1)
        phase = torch.where(end == NEVER, SPEC.phase_idx("audio"), SPEC.phase_idx("drain"))
        head = torch.stack([phase, row + 1, state[:, WANTED], end], dim=1)
        return Advance(
            rows=rows,
            state=torch.cat([head, past[:, 1:].flatten(1)], dim=1),
            frames=frames,
            emits=(frame_idx >= 0) & (frame_idx < end),
            text_ids=torch.full_like(row, -1),
            is_finished=frame_idx >= end - 1,
            is_starved=torch.zeros_like(row, dtype=torch.bool),
        )


def load() -> DelayedToy:
    """Make the model."""
    return DelayedToy()


def _column0_rows(column: list[int]) -> Tensor:
    """Prompt rows: `column` in column 0, blanks elsewhere."""
    ids = torch.full((len(column), N_CODEBOOKS), PAD)
    ids[:, 0] = torch.tensor(column)
    return ids
