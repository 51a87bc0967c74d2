"""`toy-streamed`: text that still arrives is fed one id a row beside the codes (as Qwen3-TTS).

Row t carries text id t; then one end mark; then pads. A row whose text has not come is starved:
nothing of that `advance` counts, and the engine makes the same call again when text has come.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.base import Advance, PromptPlan, TextFeed
from models.errors import PlanError
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
    TEXT_LOW,
    WANTED,
    ToyModel,
    check_request,
    frame_limit,
    mask_logits,
    start_state,
    text_ids,
)
from models.toy.codec import HISTORY

N_CODEBOOKS = 2
N_CODES = 32
END_CODE = N_CODES
NO_CODE = N_CODES + 1
"""Pad of the codebook columns: outside their ids."""
N_TAIL = 3
"""Frames spoken after the last text id."""
TEXT_CAPACITY = 512
BY_TEXT = -1
"""Value of `WANTED` when the text decides the length."""

_SAMPLED = PhaseColumn(fill="sampled", sampling=SamplingParams(temperature=0.9, top_k=16))
SPEC = ModelSpec(
    name="toy-streamed",
    tasks=("speak",),
    columns=(
        ColumnSpec(name="text", role="text", ids=(0, TEXT_HIGH), pad_id=PAD, bos_id=BOS),
        ColumnSpec(name="codebook0", role="semantic", ids=(0, N_CODES + 1), pad_id=NO_CODE),
        ColumnSpec(name="codebook1", role="acoustic", ids=(0, N_CODES), pad_id=NO_CODE),
    ),
    frame=FrameSpec(
        n_codebooks=N_CODEBOOKS, frame_rate_hz=12.5, sample_rate_hz=24_000, samples_per_frame=1920
    ),
    backbone=SMALL_BACKBONE,
    phases=(
        PhaseSpec(
            name="audio",
            columns=(PhaseColumn(fill="derived"), _SAMPLED, _SAMPLED),
            feeds_codec=True,
        ),
    ),
    codec=CodecSpec(chunk_frames=(1, 2, 4, 8), state=(HISTORY,)),
    state_size=3,
    text_capacity=TEXT_CAPACITY,
    voices=("erik", "flora"),
    languages=("en",),
    options=(FRAMES_OPTION,),
    weights_licence="none: random",
    weights_source="made at load",
)


class StreamedToy(ToyModel):
    """Two codebooks sampled together, text beside them."""

    def __init__(self) -> None:
        super().__init__(SPEC, n_codes=N_CODES, seed=127)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Voice mark and start mark; the text goes to the feed."""
        text = text_ids(request.text, may_be_empty=not request.is_text_final)
        _check_capacity(len(text))
        options, voice_idx = check_request(SPEC, request)
        ids = torch.full((2, SPEC.n_columns), NO_CODE)
        ids[:, 0] = torch.tensor([TEXT_LOW + voice_idx, BOS])
        wanted = int(options.get("frames", BY_TEXT))
        return PromptPlan(
            ids=ids,
            state=start_state(SPEC, phase="audio", wanted=wanted),
            max_frames=frame_limit(SPEC, request, len(ids)),
            text_ids=torch.tensor(text, dtype=torch.int64),
            is_text_final=request.is_text_final,
        )

    def extend(self, plan: object, text: str, *, is_final: bool) -> Tensor:
        """Ids of the bytes: the same wherever the text is cut."""
        ids = text_ids(text, may_be_empty=True)
        _check_capacity(len(ids))
        return torch.tensor(ids, dtype=torch.int64)

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """The end code when all wanted frames are there, or when the text and its tail are."""
        row, wanted = state[:, ROW], state[:, WANTED]
        is_text_over = feed.is_final & (row >= feed.n_ids + N_TAIL)
        is_over = torch.where(wanted == BY_TEXT, is_text_over, row >= wanted).unsqueeze(1)
        is_end = torch.arange(N_CODES + 1, device=state.device) == END_CODE
        return [mask_logits(logits[0], is_end == is_over), logits[1]]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Every row is a frame; the next one carries the text id of the same number."""
        row = state[:, ROW]
        is_end = ids[:, 1] == END_CODE
        has_text = row < feed.n_ids
        at = row.clamp(max=TEXT_CAPACITY - 1).unsqueeze(1)
        ending = torch.where(feed.is_final & (row == feed.n_ids), EOS, PAD)
        text = torch.where(has_text, feed.ids.gather(1, at).squeeze(1), ending)
        return Advance(
            rows=torch.cat([text.unsqueeze(1), ids[:, 1:]], dim=1),
            state=torch.stack([state[:, 0], row + 1, state[:, WANTED]], dim=1),
            frames=ids[:, 1:].clamp(0, N_CODES - 1),
            emits=~is_end,
            text_ids=torch.full_like(text, -1),
            is_finished=is_end,
            is_starved=~has_text & ~feed.is_final & ~is_end,
        )


def load() -> StreamedToy:
    """Make the model."""
    return StreamedToy()


def _check_capacity(n_ids: int) -> None:
    if n_ids > TEXT_CAPACITY:
        message = f"the text has {n_ids} bytes, at most {TEXT_CAPACITY} are accepted"
        raise PlanError("text_too_long", message, "text")
