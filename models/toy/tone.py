"""`toy-tone`: speaks a sine tone, one frame of 80 ms for each character. Next to no computing.

It goes the whole way through engine and gateway, yet leaves the machine free, so that a benchmark
of the gateway measures the gateway. The tone is continuous: a lost or doubled chunk is a click.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.errors import PlanError
from models.module import ModelModule
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
    PlanRequest,
    SamplingParams,
    StateSpec,
)
from models.toy.base import (
    BOS,
    EOS,
    FRAMES_OPTION,
    PAD,
    ROW,
    WANTED,
    check_request,
    frame_limit,
    mask_logits,
    start_state,
)

PITCH_LOW = 3
VOICE_PITCHES_HZ = {"low": 220.0, "middle": 330.0, "high": 440.0}
PITCH_HIGH = PITCH_LOW + len(VOICE_PITCHES_HZ)
PITCH = 3
"""Place in the state: the id that the voice sings."""
AMPLITUDE = 0.3
MAX_TEXT_CHARACTERS = 8000
TURNS = StateSpec(name="turns", shape=(1,))
"""Phase of the sine after the last sample, in turns, below 1."""

SPEC = ModelSpec(
    name="toy-tone",
    tasks=("speak",),
    columns=(
        ColumnSpec(name="pitch", role="semantic", ids=(0, PITCH_HIGH), pad_id=PAD, bos_id=BOS),
    ),
    frame=FrameSpec(
        n_codebooks=1, frame_rate_hz=12.5, sample_rate_hz=24_000, samples_per_frame=1920
    ),
    backbone=BackboneSpec(
        n_layers=1, n_query_heads=1, n_kv_heads=1, head_dim=2, hidden=2, max_positions=8192
    ),
    phases=(
        PhaseSpec(
            name="audio",
            columns=(
                PhaseColumn(
                    fill="sampled",
                    allowed=((EOS, EOS + 1), (PITCH_LOW, PITCH_HIGH)),
                    sampling=SamplingParams(temperature=0.0),
                ),
            ),
            feeds_codec=True,
        ),
    ),
    codec=CodecSpec(chunk_frames=(1, 2, 4, 8), state=(TURNS,), max_batch=64),
    state_size=4,
    voices=tuple(VOICE_PITCHES_HZ),
    languages=("en",),
    options=(
        FRAMES_OPTION,
        OptionSpec(
            name="speed",
            kind="number",
            default=1.0,
            description="how fast to speak",
            minimum=0.25,
            maximum=4.0,
        ),
    ),
    weights_licence="none: no weights",
    weights_source="none",
)


class ToneToy(ModelModule):
    """A model without weights: the prompt is one row, and each row repeats the voice's pitch."""

    pitches_hz: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.spec = SPEC
        pitches_hz = torch.tensor([*VOICE_PITCHES_HZ.values()], dtype=torch.float64)
        self.register_buffer("pitches_hz", pitches_hz, persistent=False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """One start row; the state knows pitch and length."""
        if not request.text.strip():
            raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
        if len(request.text) > MAX_TEXT_CHARACTERS:
            message = f"{len(request.text)} characters, at most {MAX_TEXT_CHARACTERS} are accepted"
            raise PlanError("text_too_long", f"the text has {message}", "text")
        options, voice_idx = check_request(SPEC, request)
        by_text = math.ceil(len(request.text.strip()) / float(options["speed"]))
        state = start_state(SPEC, phase="audio", wanted=int(options.get("frames", by_text)))
        state[PITCH] = PITCH_LOW + voice_idx
        return PromptPlan(
            ids=torch.tensor([[BOS]]),
            state=state,
            max_frames=frame_limit(SPEC, request, 1),
        )

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """It gives no text."""
        return ""

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """Nothing: rows do not matter."""
        return torch.zeros(len(ids), SPEC.backbone.hidden, device=ids.device)

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The rows as they are."""
        return x

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """All ids alike; `constrain` leaves one."""
        return [torch.zeros(len(hidden), PITCH_HIGH, device=hidden.device)]

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """The voice's pitch, or the end."""
        only = torch.where(state[:, ROW] >= state[:, WANTED], EOS, state[:, PITCH]).unsqueeze(1)
        ids = torch.arange(PITCH_HIGH, device=state.device)
        return [mask_logits(logits[0], ids == only)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Each row is a frame, but the end mark."""
        is_end = ids[:, 0] == EOS
        return Advance(
            rows=ids,
            state=torch.stack([state[:, 0], state[:, ROW] + 1, *state[:, WANTED:].unbind(1)], 1),
            frames=(ids - PITCH_LOW).clamp(min=0),
            emits=~is_end,
            text_ids=torch.full_like(ids[:, 0], -1),
            is_finished=is_end,
            is_starved=torch.zeros_like(is_end),
        )

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """A sine of each frame's pitch, in phase with what was played before."""
        n_samples = n_valid * SPEC.frame.samples_per_frame
        step = self.pitches_hz[frames[:, :, 0].clamp(0, 2)] / SPEC.frame.sample_rate_hz
        step = step.repeat_interleave(SPEC.frame.samples_per_frame, dim=1)
        at = torch.arange(1, step.shape[1] + 1, device=frames.device)
        step = torch.where(at <= n_samples.unsqueeze(1), step, 0.0)
        turns = state["turns"].double() + step.cumsum(dim=1)
        pcm = AMPLITUDE * torch.sin(2 * math.pi * turns).float()
        pcm = torch.where(at <= n_samples.unsqueeze(1), pcm, 0.0)
        return Decoded(pcm=pcm, n_samples=n_samples, state={"turns": (turns[:, -1:] % 1.0).float()})


def load() -> ToneToy:
    """Make the model."""
    return ToneToy()
