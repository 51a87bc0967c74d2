"""The vocoder of `pico` (HiFi-GAN with three upsampling stages), streamed with cached context.

Latent frames in, PCM out. Formula: `models/pico/training/FORMAT.md`, section Vocoder. A call brings
the same number of latent frames for every stream and gives `hop` samples a frame, late by
`Vocoder.delay` samples; what lies outside the utterance is silenced at every layer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.layers.conv import (
    ContextLayout,
    Grid,
    Span,
    StreamConv,
    StreamUpsample,
    keep_context,
    silence,
)
from models.pico.config import VocoderConfig

_SLOPE = 0.1
_LAST_SLOPE = 0.01


class Branch(nn.Module):
    """One residual block of a stage: two dilated convolutions, each with a leaky ReLU before it.

    Branches of a stage look ahead by different amounts. Each reads its input `lag` positions
    late, so that all of them give their outputs at the same time.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, dilations: tuple[int, ...]
    ) -> None:
        super().__init__()
        first, second = dilations
        self.first = _conv(weights, f"{name}.convs.0", first)
        self.second = _conv(weights, f"{name}.convs.1", second)
        self.lag = 0

    @property
    def lookahead(self) -> int:
        """Positions after an output that it depends on."""
        return (self.first.n_context + self.second.n_context) // 2

    def forward(
        self, window: Tensor, activated: Tensor, n: int, state: Tensor, span: Span, grid: Grid
    ) -> tuple[Tensor, Tensor]:
        """Run the branch.

        Args:
            window: `(B, context + n, C)`, input of the stage's blocks with its left context.
            activated: the same after the leaky ReLU.
            n: new positions.
            state: `(B, second.n_context, C)`.
            span: of the call.
            grid: of `window`'s new positions.

        Returns:
            The output `(B, n, C)` and the new state.
        """
        stop = window.shape[1] - self.lag
        half = self.first.n_context // 2
        middle = self.first(activated[:, stop - n - self.first.n_context : stop])
        middle += window[:, stop - half - n : stop - half]
        middle = torch.cat([state, silence(middle, span, grid.later(self.lag + half))], dim=1)
        half = self.second.n_context // 2
        out = self.second(nn.functional.leaky_relu(middle, _SLOPE))
        out += middle[:, half : half + n]
        return out, keep_context(middle, self.second.n_context, span, grid.rate)


class Stage(nn.Module):
    """Leaky ReLU, upsampling, then the sum of the branches.

    The mean is taken by the next layer's weights: a leaky ReLU commutes with a positive factor.
    """

    def __init__(self, upsample: StreamUpsample, padding: int, branches: list[Branch]) -> None:
        super().__init__()
        self.upsample = upsample
        self.padding = padding
        self.branches = tuple(branches)
        self.registered = nn.ModuleList(branches)
        self.lookahead = max(branch.lookahead for branch in branches)
        for branch in branches:
            branch.lag = self.lookahead - branch.lookahead
        self.n_context = max(branch.lag + branch.first.n_context for branch in branches)

    def context_shapes(self, n_in: int) -> list[tuple[int, int]]:
        """`(n_context, channels)` of each state, in the order of `forward`."""
        n_out = self.upsample.n_out
        inner = [(branch.second.n_context, n_out) for branch in self.branches]
        return [(self.upsample.n_context, n_in), (self.n_context, n_out), *inner]

    def forward(
        self, x: Tensor, states: list[Tensor], span: Span, grid: Grid
    ) -> tuple[Tensor, list[Tensor], Grid]:
        """Map `(B, n, C_in)` on `grid` to `(B, n * stride, C_out)`, its states and its grid."""
        window = torch.cat([states[0], nn.functional.leaky_relu(x, _SLOPE)], dim=1)
        new_states = [keep_context(window, self.upsample.n_context, span, grid.rate)]
        x = self.upsample(window)
        grid = grid.finer(self.upsample.stride).later(self.padding)
        n = x.shape[1]
        window = torch.cat([states[1], silence(x, span, grid)], dim=1)
        new_states.append(keep_context(window, self.n_context, span, grid.rate))
        activated = nn.functional.leaky_relu(window, _SLOPE)
        total: Tensor | None = None
        for branch, state in zip(self.branches, states[2:], strict=True):
            out, new_state = branch(window, activated, n, state, span, grid)
            new_states.append(new_state)
            total = out if total is None else total.add_(out)
        assert total is not None, "a stage has at least one branch"
        grid = grid.later(self.lookahead)
        return silence(total, span, grid), new_states, grid


class Vocoder(nn.Module):
    """The whole vocoder; weights by the names of `vocoder.safetensors`."""

    def __init__(self, config: VocoderConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.hop = config.hop
        self.first = _conv(weights, "conv_pre", 1)
        stages, scale = [], 1.0
        for idx, (stride, kernel) in enumerate(config.ups):
            up = StreamUpsample(
                weights[f"ups.{idx}.weight"] * scale, weights[f"ups.{idx}.bias"], stride
            )
            n_branches = len(config.res_kernels)
            branches = [
                Branch(weights, f"resblocks.{idx * n_branches + place}", dilations)
                for place, dilations in enumerate(config.res_dilations)
            ]
            stages.append(Stage(up, (kernel - stride) // 2, branches))
            scale = 1.0 / n_branches
        self.stages = tuple(stages)
        self.registered = nn.ModuleList(stages)
        self.last = StreamConv(weights["conv_post.weight"] * scale, None)
        self.layout = ContextLayout(self._context_shapes(weights))
        self.delay = self._total_delay()

    def forward(
        self, latents: Tensor, contexts: list[Tensor], span: Span
    ) -> tuple[Tensor, list[Tensor]]:
        """Run a call.

        Args:
            latents: `(B, n, C)`, zero outside the utterance.
            contexts: left context of each layer, see `layout`.
            span: of the call, in latent frames.

        Returns:
            PCM `(B, n * hop)` in [-1, 1], `delay` samples late, and the new contexts.
        """
        states = iter(contexts)
        window = torch.cat([next(states), latents], dim=1)
        kept = [keep_context(window, self.first.n_context, span)]
        grid = Grid().later(self.first.n_context // 2)
        x = silence(self.first(window), span, grid)
        for stage in self.stages:
            stage_states = [next(states) for _ in range(2 + len(stage.branches))]
            x, new_states, grid = stage(x, stage_states, span, grid)
            kept += new_states
        window = torch.cat([next(states), nn.functional.leaky_relu(x, _LAST_SLOPE)], dim=1)
        kept.append(keep_context(window, self.last.n_context, span, grid.rate))
        return self.last(window).squeeze(2).tanh(), kept

    def _context_shapes(self, weights: Mapping[str, Tensor]) -> tuple[tuple[int, int], ...]:
        n_channels, n_latent, _ = weights["conv_pre.weight"].shape
        shapes = [(self.first.n_context, n_latent)]
        for stage in self.stages:
            shapes += stage.context_shapes(n_channels)
            n_channels = stage.upsample.n_out
        return (*shapes, (self.last.n_context, n_channels))

    def _total_delay(self) -> int:
        """Samples by which the PCM is late."""
        grid = Grid().later(self.first.n_context // 2)
        for stage in self.stages:
            grid = grid.finer(stage.upsample.stride).later(stage.padding + stage.lookahead)
        return grid.later(self.last.n_context // 2).delay


def _conv(weights: Mapping[str, Tensor], name: str, dilation: int) -> StreamConv:
    return StreamConv(weights[f"{name}.weight"], weights[f"{name}.bias"], dilation)
