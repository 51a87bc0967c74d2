"""A model that speaks, with a mark in its sound: to the engine a model like any other.

Only its codec differs: a mark reads ahead, so more frames are held back, and a stream carries the
last samples from chunk to chunk. Everything else is the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from models.base import Advance, Attention, Decoded, DepthCache, PromptPlan, SpeechModel, TextFeed
from models.spec import ModelSpec, PlanRequest
from models.watermark.spectra import Mark
from models.watermark.stage import Stage


def marked_spec(spec: ModelSpec, stage: Stage) -> ModelSpec:
    """The facts of a model with a mark."""
    codec = replace(
        spec.codec,
        lookahead_frames=spec.codec.lookahead_frames + stage.lookahead_frames,
        state=(*spec.codec.state, *stage.states),
    )
    return replace(spec, codec=codec, watermark=stage.mark.name)


class Marked(nn.Module):
    """The functions of a model, with a mark in what it decodes.

    Args:
        model: that speaks.
        mark: that is put in its sound.
    """

    def __init__(self, model: SpeechModel, mark: Mark) -> None:
        super().__init__()
        # A model without weights is no module, and is kept all the same.
        self.model = model
        self.stage = Stage(mark, model.spec.frame)
        self.spec = marked_spec(model.spec, self.stage)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """The model's own."""
        return self.model.plan(request)

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """The model's own."""
        return self.model.extend(plan, text, is_final=is_final)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """The model's own."""
        return self.model.detokenize_text(ids)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """The model's own."""
        return self.model.embed(ids, phase)

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The model's own."""
        return self.model.backbone(x, positions, attention)

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """The model's own."""
        return self.model.heads(hidden)

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """The model's own."""
        return self.model.constrain(state, logits, feed)

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """The model's own."""
        return self.model.depth_embed(position, hidden, ids)

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """The model's own."""
        return self.model.depth_step(x, position, cache)

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """The model's own."""
        return self.model.depth_head(position, hidden)

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """The model's own."""
        return self.model.advance(state, ids, feed)

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """What the model decodes, marked; see `models.base.SpeechModel.decode`."""
        own = {part.name: state[part.name] for part in self.model.spec.codec.state}
        spoken = self.model.decode(frames, n_valid, own, is_first, is_last)
        at = torch.arange(spoken.pcm.shape[1], device=spoken.pcm.device)
        is_void = at >= spoken.n_samples.unsqueeze(1)
        pcm = spoken.pcm.float().masked_fill(is_void, 0.0)
        pcm, n_samples, after = self.stage(pcm, spoken.n_samples, state, is_last)
        return Decoded(pcm=pcm, n_samples=n_samples, state={**spoken.state, **after})
