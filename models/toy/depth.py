"""`toy-depth`: a text column, codebook 0 by the backbone, the others by a depth model (as in CSM).

A frame of all-zero codes ends the speech. The depth model carries a flag "the code before was 0"
through its rows, so that a zero in codebook 0 makes the whole frame zero, and nothing else does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.base import Advance, DepthCache, PromptPlan, TextFeed
from models.layers.transformer import Decoder
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    DepthSpec,
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
from models.toy.codec import HISTORY, held_codes

N_CODEBOOKS = 4
N_CODES = 16
NO_CODE = N_CODES
"""Pad of the codebook columns: outside their ids, so never sampled."""
CERTAIN = 1e4
"""A logit that no sampling setting overrules, and that half precision can hold."""

_CODE_SAMPLING = SamplingParams(temperature=0.9, top_k=10)
SPEC = ModelSpec(
    name="toy-depth",
    tasks=("speak",),
    columns=(
        ColumnSpec(name="text", role="text", ids=(0, TEXT_HIGH), pad_id=PAD, bos_id=BOS),
        *(
            ColumnSpec(
                name=f"codebook{n}",
                role="semantic" if n == 0 else "acoustic",
                ids=(0, N_CODES),
                pad_id=NO_CODE,
            )
            for n in range(N_CODEBOOKS)
        ),
    ),
    frame=FrameSpec(
        n_codebooks=N_CODEBOOKS, frame_rate_hz=12.5, sample_rate_hz=24_000, samples_per_frame=1920
    ),
    backbone=SMALL_BACKBONE,
    depth=DepthSpec(
        first_column="codebook0",
        columns=("codebook1", "codebook2", "codebook3"),
        n_layers=2,
        n_query_heads=2,
        n_kv_heads=1,
        head_dim=8,
        hidden=24,
    ),
    phases=(
        PhaseSpec(
            name="audio",
            columns=(
                PhaseColumn(fill="forced", forced_id=PAD),
                PhaseColumn(fill="sampled", sampling=_CODE_SAMPLING),
                *(PhaseColumn(fill="depth", sampling=_CODE_SAMPLING),) * (N_CODEBOOKS - 1),
            ),
            feeds_codec=True,
        ),
    ),
    codec=CodecSpec(
        chunk_frames=(2, 5, 10), lookahead_frames=1, state=(HISTORY, held_codes(N_CODEBOOKS))
    ),
    state_size=3,
    voices=("cara", "dieter"),
    languages=("en",),
    options=(FRAMES_OPTION,),
    weights_licence="none: random",
    weights_source="made at load",
)


class DepthToy(ToyModel):
    """Codebook 0 over time, codebooks 1 to 3 over depth."""

    def __init__(self) -> None:
        super().__init__(SPEC, n_codes=N_CODES, seed=103)
        assert SPEC.depth is not None, "stated above"
        width = SPEC.depth.hidden
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(104)
            self.depth_decoder = Decoder(_depth_backbone(SPEC.depth), inner=48, theta=10_000.0)
            self.depth_input = nn.Linear(SPEC.backbone.hidden, width, bias=False)
            self.depth_table = nn.Parameter(torch.randn(N_CODEBOOKS, N_CODES, width))
            self.depth_output = nn.Parameter(0.3 * torch.randn(N_CODEBOOKS, N_CODES, width))
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Voice mark, text, start mark in the text column; no codes yet."""
        text = text_ids(request.text)
        options, voice_idx = check_request(SPEC, request)
        column = [TEXT_LOW + voice_idx, *text, EOS, BOS]
        ids = torch.full((len(column), SPEC.n_columns), NO_CODE)
        ids[:, 0] = torch.tensor(column)
        wanted = int(options.get("frames", len(text)))
        return PromptPlan(
            ids=ids,
            state=start_state(SPEC, phase="audio", wanted=wanted),
            max_frames=frame_limit(SPEC, request, len(ids)),
        )

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """Channel 0 is the flag: 1 after a code 0."""
        if position == 0:
            x: Tensor = self.depth_input(hidden)
            return torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], dim=1)
        assert ids is not None, "later positions come from an id"
        x = self.depth_table[position - 1][ids.clamp(0, N_CODES - 1)]
        return torch.cat([(ids == 0).to(x.dtype).unsqueeze(1), x[:, 1:]], dim=1)

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """One depth row; the flag goes through untouched."""

        def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return cache(layer_idx, position, q, k, v)

        positions = torch.full_like(x[:, 0], position, dtype=torch.int64)
        hidden = self.depth_decoder(x, positions, attention)
        return torch.cat([x[:, :1], hidden[:, 1:]], dim=1)

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """Code 0 is certain after a code 0, and impossible otherwise."""
        logits = hidden[:, 1:] @ self.depth_output[position][:, 1:].T
        zero = CERTAIN * (2.0 * hidden[:, :1] - 1.0)
        return torch.cat([zero, logits[:, 1:]], dim=1)

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Codebook 0 is 0 when all wanted frames are there, and only then."""
        is_over = (state[:, ROW] >= state[:, WANTED]).unsqueeze(1)
        is_zero = torch.arange(N_CODES, device=state.device) == 0
        return [mask_logits(logits[0], is_zero == is_over)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Each row is a frame, but the all-zero one is the end."""
        codes = ids[:, 1:]
        is_end = (codes == 0).all(dim=1)
        row = state[:, ROW : ROW + 1] + 1
        return Advance(
            rows=torch.cat([torch.full_like(ids[:, :1], PAD), codes], dim=1),
            state=torch.cat([state[:, :ROW], row, state[:, WANTED:]], dim=1),
            frames=codes,
            emits=~is_end,
            text_ids=torch.full_like(ids[:, 0], -1),
            is_finished=is_end,
            is_starved=torch.zeros_like(is_end),
        )


def load() -> DepthToy:
    """Make the model."""
    return DepthToy()


def _depth_backbone(depth: DepthSpec) -> BackboneSpec:
    return BackboneSpec(
        n_layers=depth.n_layers,
        n_query_heads=depth.n_query_heads,
        n_kv_heads=depth.n_kv_heads,
        head_dim=depth.head_dim,
        hidden=depth.hidden,
        max_positions=depth.n_positions,
    )
