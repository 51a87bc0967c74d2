"""What most models answer to the parts of the contract that are not theirs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from models.base import Decoded, DepthCache, PromptPlan, TextFeed
from models.errors import PlanError
from models.spec import ModelSpec


class ModelModule(nn.Module):
    """Base of the families: no streamed text, no text output, no depth model, nothing to constrain.

    A family overrides what it has; the engine asks only for what the spec states.
    """

    spec: ModelSpec

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """Refuse: the text is taken whole. Raises: `PlanError`."""
        raise PlanError("text_not_streamed", f"{self.spec.name} takes its text whole", "text")

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """Only models that give text are asked."""
        raise NotImplementedError(f"{self.spec.name} gives no text")

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Nothing depends on the state: the phases say which ids there are."""
        return logits

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """Only models with a depth spec are asked."""
        raise NotImplementedError(f"{self.spec.name} has no depth model")

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """Only models with a depth spec are asked."""
        raise NotImplementedError(f"{self.spec.name} has no depth model")

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """Only models with a depth spec are asked."""
        raise NotImplementedError(f"{self.spec.name} has no depth model")

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """Only models with a phase that feeds the codec are asked."""
        raise NotImplementedError(f"{self.spec.name} gives no audio")
