"""`toy-interleaved`: one column, seven rows a frame, as Orpheus has it. The codec is stateless.

The ids of the seven slots lie in seven ranges, one after another, and the codes of a frame are
ordered by level (1, 2 and 4 codes), not by slot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.base import Advance, PromptPlan, TextFeed
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
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
    WANTED,
    ToyModel,
    check_request,
    frame_limit,
    mask_logits,
    start_state,
    text_ids,
)

N_SLOTS = 7
N_CODES = 16
CODE_LOW = TEXT_HIGH
CODE_HIGH = CODE_LOW + N_SLOTS * N_CODES
SLOT_ORDER = (0, 1, 4, 2, 3, 5, 6)
"""Slot of each code of a frame. Source: SNAC's three levels in Orpheus's row order."""
CODES = 3
"""Place in the state of the codes of the unfinished frame."""
VOICE_ROWS = 40

SPEC = ModelSpec(
    name="toy-interleaved",
    tasks=("speak",),
    columns=(ColumnSpec(name="ids", role="semantic", ids=(0, CODE_HIGH), pad_id=PAD, bos_id=BOS),),
    frame=FrameSpec(
        n_codebooks=N_SLOTS,
        rows_per_frame=N_SLOTS,
        frame_rate_hz=24_000 / 2048,
        sample_rate_hz=24_000,
        samples_per_frame=2048,
    ),
    backbone=SMALL_BACKBONE,
    phases=(
        PhaseSpec(
            name="audio",
            columns=(
                PhaseColumn(
                    fill="sampled",
                    allowed=((EOS, EOS + 1), (CODE_LOW, CODE_HIGH)),
                    sampling=SamplingParams(temperature=0.6, top_p=0.9, repetition_penalty=1.1),
                ),
            ),
            feeds_codec=True,
        ),
    ),
    codec=CodecSpec(chunk_frames=(1, 2, 4), left_context_frames=3),
    state_size=CODES + N_SLOTS,
    voices=("alba", "bruno"),
    languages=("en",),
    options=(FRAMES_OPTION,),
    weights_licence="none: random",
    weights_source="made at load",
)


class InterleavedToy(ToyModel):
    """Seven rows of one column make a frame of seven codes."""

    def __init__(self) -> None:
        super().__init__(SPEC, n_codes=N_CODES, seed=101)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """A voice's own rows (the same for every request), the text, a start mark."""
        text = text_ids(request.text)
        options, voice_idx = check_request(SPEC, request)
        voice = SPEC.voices[voice_idx]
        # Long enough to fill pages, so that streams of one voice can share them.
        prefix = text_ids((voice + " ") * VOICE_ROWS)[:VOICE_ROWS]
        ids = torch.tensor([*prefix, *text, BOS]).unsqueeze(1)
        wanted = int(options.get("frames", len(text)))
        return PromptPlan(
            ids=ids,
            state=start_state(SPEC, phase="audio", wanted=wanted),
            max_frames=frame_limit(SPEC, request, len(ids)),
            prefix_key=f"{SPEC.name}/{voice}",
            prefix_rows=VOICE_ROWS,
        )

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Only the slot's own range; at the start of a frame past the last one, only the end."""
        ids = torch.arange(CODE_HIGH, device=state.device)
        slot = state[:, ROW] % N_SLOTS
        in_slot = (ids - CODE_LOW).div(N_CODES, rounding_mode="floor") == slot.unsqueeze(1)
        is_over = state[:, ROW] >= N_SLOTS * state[:, WANTED]
        is_allowed = torch.where(is_over.unsqueeze(1), ids == EOS, in_slot)
        return [mask_logits(logits[0], is_allowed)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Keep the code of the slot; the seventh completes the frame."""
        is_end = ids[:, 0] == EOS
        slot = state[:, ROW] % N_SLOTS
        code = ids[:, 0] - CODE_LOW - slot * N_CODES
        here = torch.arange(N_SLOTS, device=state.device) == slot.unsqueeze(1)
        codes = torch.where(here, code.unsqueeze(1), state[:, CODES:])
        moved = torch.cat([state[:, :ROW], state[:, ROW : ROW + 1] + 1, state[:, WANTED:CODES]], 1)
        return Advance(
            rows=ids,
            state=torch.cat([moved, codes], dim=1),
            frames=torch.stack([codes[:, at] for at in SLOT_ORDER], dim=1).clamp(0, N_CODES - 1),
            emits=(slot == N_SLOTS - 1) & ~is_end,
            text_ids=torch.full_like(slot, -1),
            is_finished=is_end,
            is_starved=torch.zeros_like(is_end),
        )


def load() -> InterleavedToy:
    """Make the model."""
    return InterleavedToy()
