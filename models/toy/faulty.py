"""A model with faults to order, around any other: for tests of what the engine does about them.

The request's option `fault` picks the fault, `fault_at` the moment, so that one stream of a batch
fails while its neighbours are sound:

- `plan`: `plan` raises an error that is not a `PlanError`;
- `nan`: logits of generated row `fault_at` (1 or later) are NaN, by way of a NaN input row;
- `step`: running the input row of generated row `fault_at` raises;
- `decode`: detokenizing the chunk with frame `fault_at` raises;
- `endless`: the model never stops; only the cap on frames ends the stream.

A marked row is marked by its phase: every phase of the model has a twin for `nan` and one for
`step`, so that ids and state stay legal all the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from models.base import Advance, Attention, Decoded, DepthCache, PromptPlan, SpeechModel, TextFeed
from models.options import check_options
from models.spec import ModelSpec, OptionSpec, PlanRequest, StateSpec

FAULTS = ("none", "plan", "nan", "step", "decode", "endless")
MARKS = ("nan", "step")
"""Faults that mark a row; the twin of phase p for mark m is `p + (1 + m) * n_phases`."""
FRAMES_LEFT = StateSpec(name="frames_left", shape=(1,), dtype="int64")
"""Codec state: 1 + frames until `decode` raises; 0 where it never does."""
MANY_FRAMES = 1_000_000


class ToyFaultError(RuntimeError):
    """The fault that was ordered."""


class FaultyModel:
    """`inner`, with the faults of the module docstring."""

    def __init__(self, inner: SpeechModel, *, name: str | None = None) -> None:
        self.inner = inner
        self.spec = faulty_spec(inner.spec, name=name or f"{inner.spec.name}-faulty")
        self.n_phases = len(inner.spec.phases)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """The inner plan, with two more integers of state: which mark, and rows until it."""
        options = check_options(self.spec, request.options)
        fault, at = str(options.pop("fault")), int(options.pop("fault_at"))
        if fault == "plan":
            raise ToyFaultError("ordered: plan")
        if fault == "endless":
            options["frames"] = MANY_FRAMES
        plan = self.inner.plan(replace(request, options=options))
        mark = 1 + MARKS.index(fault) if fault in MARKS else 0
        seeds = dict(plan.codec_state)
        seeds[FRAMES_LEFT.name] = torch.tensor([1 + at if fault == "decode" else 0])
        state = torch.cat([plan.state, torch.tensor([mark, at])])
        companion = plan.companion and replace(plan.companion, state=state)
        return replace(plan, state=state, codec_state=seeds, companion=companion)

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """As `inner`."""
        return self.inner.extend(plan, text, is_final=is_final)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """As `inner`."""
        return self.inner.detokenize_text(ids)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """NaN rows, or an error, where the phase is a twin."""
        # Floor division keeps -1, the phase of prompt rows, apart from every mark.
        mark = phase.div(self.n_phases, rounding_mode="floor")
        if bool((mark == 1 + MARKS.index("step")).any()):
            raise ToyFaultError("ordered: step")
        x = self.inner.embed(ids, torch.where(phase < 0, phase, phase % self.n_phases))
        return torch.where((mark == 1 + MARKS.index("nan")).unsqueeze(1), torch.nan, x)

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """As `inner`."""
        return self.inner.backbone(x, positions, attention)

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """As `inner`."""
        return self.inner.heads(hidden)

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """As `inner`."""
        return self.inner.constrain(self._inner_state(state), logits, feed)

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """As `inner`."""
        return self.inner.depth_embed(position, hidden, ids)

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """As `inner`."""
        return self.inner.depth_step(x, position, cache)

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """As `inner`."""
        return self.inner.depth_head(position, hidden)

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """As `inner`, and count down to the marked row."""
        out = self.inner.advance(self._inner_state(state), ids, feed)
        mark, left = state[:, -2], state[:, -1] - 1
        phase = out.state[:, 0] + torch.where(left == 0, mark, 0) * self.n_phases
        parts = [phase.unsqueeze(1), out.state[:, 1:], mark.unsqueeze(1), left.unsqueeze(1)]
        return replace(out, state=torch.cat(parts, dim=1))

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """As `inner`, but raise for the marked frame, whoever else is in the batch."""
        left = state[FRAMES_LEFT.name]
        n_new = n_valid.unsqueeze(1)
        if bool(((left > 0) & (left <= n_new)).any()):
            raise ToyFaultError("ordered: decode")
        inner_state = {name: part for name, part in state.items() if name != FRAMES_LEFT.name}
        out = self.inner.decode(frames, n_valid, inner_state, is_first, is_last)
        new_left = torch.where(left > 0, left - n_new, left)
        return replace(out, state={**out.state, FRAMES_LEFT.name: new_left})

    def _inner_state(self, state: Tensor) -> Tensor:
        return torch.cat([state[:, :1] % self.n_phases, state[:, 1:-2]], dim=1)


def faulty_spec(inner: ModelSpec, *, name: str) -> ModelSpec:
    """The spec of `inner` with the twins of its phases, the options and the state of the faults."""
    twins = [
        replace(phase, name=f"{phase.name}-{mark}") for mark in MARKS for phase in inner.phases
    ]
    guidance = inner.guidance
    if guidance is not None:
        names = [f"{phase}-{mark}" for mark in MARKS for phase in guidance.phases]
        guidance = replace(guidance, phases=(*guidance.phases, *names))
    options = (
        OptionSpec(
            name="fault",
            kind="string",
            default="none",
            description="what shall go wrong",
            choices=FAULTS,
        ),
        OptionSpec(
            name="fault_at",
            kind="integer",
            default=1,
            description="generated row (nan, step) or frame (decode) at which it goes wrong",
            minimum=0,
        ),
    )
    return replace(
        inner,
        name=name,
        phases=(*inner.phases, *twins),
        guidance=guidance,
        codec=replace(inner.codec, state=(*inner.codec.state, FRAMES_LEFT)),
        state_size=inner.state_size + 2,
        options=(*inner.options, *options),
    )
