"""`pico`: the embedded speech model, put together to the contract of `models.base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from models.base import Advance, Attention, Decoded, DepthCache, PromptPlan, TextFeed
from models.errors import PlanError
from models.pico import prompt
from models.pico.backbone import Backbone
from models.pico.codec import Detokenizer
from models.pico.config import WEIGHTS, PicoConfig, read_config
from models.pico.facts import model_spec
from models.pico.grammar import Grammar
from models.pico.postnet import Postnet
from models.pico.vocoder import Vocoder
from models.pico.weights import empty_weights, read_weights
from models.spec import ModelSpec, PlanRequest


class PicoModel(nn.Module):
    """The functions of the model; computes in float32 on the device it is moved to.

    Args:
        config: shape of the weights.
        weights: float32 tensors by file stem and key, see `models.pico.weights.read_weights`.
    """

    def __init__(self, config: PicoConfig, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.config = config
        self.grammar = Grammar(config)
        self.lm = Backbone(config, weights["lm"])
        self.detokenizer = Detokenizer(
            config,
            Postnet(config, weights["post"], weights["codec"]),
            Vocoder(config.vocoder, weights["vocoder"]),
        )
        self.spec = model_spec(config, self.grammar, self.detokenizer.spec())
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread. Raises: `PlanError`, see `models.pico.prompt.plan`."""
        return prompt.plan(request, self.spec, self.config, self.grammar)

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """Refuse: a text is planned whole, because the pointer must know its last unit."""
        raise PlanError("text_not_streamed", "pico takes its text whole, a sentence a plan", "text")

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """Give nothing: the model has no text output."""
        return ""

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        return self.lm.embed(ids, phase)

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        out: Tensor = self.lm(x, positions, attention)
        return out

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the advance, then of each book."""
        return self.lm.heads(hidden)

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Apply the grammar to the advance; codes are free."""
        return [self.grammar.constrain(state, logits[0]), *logits[1:]]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """See `models.pico.grammar.Grammar.advance`."""
        return self.grammar.advance(state, ids)

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.base.SpeechModel.decode`; a first call is known by its zero state."""
        return self.detokenizer.decode(frames, n_valid, state, is_last)

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """Only models with a depth spec are asked."""
        raise NotImplementedError("pico has no depth model")

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """Only models with a depth spec are asked."""
        raise NotImplementedError("pico has no depth model")

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """Only models with a depth spec are asked."""
        raise NotImplementedError("pico has no depth model")


def read_spec(folder: Path | None = None) -> ModelSpec:
    """The model's facts, from `lm.json` alone. Raises: `WeightError`."""
    config = read_config(folder or WEIGHTS)
    return PicoModel(config, empty_weights(config)).spec


def load(folder: Path | None = None) -> PicoModel:
    """The model with its weights, checked by SHA-256, on the CPU.

    Raises:
        WeightError: a file is missing, changed, or of another layout.
    """
    folder = folder or WEIGHTS
    config = read_config(folder)
    return PicoModel(config, read_weights(folder, config))
