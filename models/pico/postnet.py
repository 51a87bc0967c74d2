"""The post-net of `pico`: codes, text window and stay of each step to latent frames, streamed.

Formula: `models/pico/training/FORMAT.md`, sections Post-net and Latents. One call brings the same
number of steps for every stream; outputs are late by the look-ahead of the blocks.

It computes in float64 and hands float32 from block to block. Its sum y reaches 700, `mu` takes most
of that away again, `Li` magnifies what is left, and at some places the vocoder turns 1e-5 in a
latent into 1e-5 of audio: rounded in float32, streaming differed from whole decoding by up to 1e-5.
Rounded after float64, it hardly ever differs at all. The net is small: 1.3 M products a step,
against 91 M in the vocoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.conv import ContextLayout, Grid, Span, keep_context, silence
from models.pico.config import PicoConfig

_EPS: Final = 1e-5


class Block(nn.Module):
    """Residual block: norm, dilated convolution that looks `ahead` steps ahead, SiLU, 1x1."""

    gain: Tensor
    taps: Tensor
    taps_bias: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, *, dilation: int, ahead: int
    ) -> None:
        super().__init__()
        taps = weights[f"{name}.a.weight"]
        self.kernel = taps.shape[2]
        self.dilation = dilation
        self.ahead = ahead
        self.n_context = dilation * (self.kernel - 1)
        _register(
            self,
            gain=weights[f"{name}.n"],
            taps=taps.permute(0, 2, 1).flatten(1),
            taps_bias=weights[f"{name}.a.bias"],
            weight=weights[f"{name}.b.weight"].squeeze(2),
            bias=weights[f"{name}.b.bias"],
        )

    def forward(self, window: Tensor) -> Tensor:
        """Map float32 `(B, n_context + n, width)` to `(B, n, width)`, late by `ahead`.

        Zero rows stay zero in the norm, so silence outside the utterance needs no mask here.
        """
        n = window.shape[1] - self.n_context
        x = window.double()
        normed = functional.rms_norm(x, x.shape[-1:], self.gain, _EPS)
        heard = [normed[:, tap * self.dilation :][:, :n] for tap in range(self.kernel)]
        inner = functional.silu(functional.linear(torch.cat(heard, 2), self.taps, self.taps_bias))
        begin = self.n_context - self.ahead
        out = x[:, begin : begin + n] + functional.linear(inner, self.weight, self.bias)
        return out.float()


class Postnet(nn.Module):
    """Frames to latent frames; weights by the names of `post.safetensors`, `codec.safetensors`."""

    units: Tensor
    stays: Tensor
    centroids: Tensor
    scale: Tensor
    in_weight: Tensor
    in_bias: Tensor
    gain: Tensor
    out_weight: Tensor
    out_bias: Tensor
    latent_weight: Tensor
    latent_bias: Tensor
    book_starts: Tensor

    def __init__(
        self,
        config: PicoConfig,
        weights: Mapping[str, Tensor],
        latent_weights: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.n_books = config.n_books
        self.absent = config.absent_code
        self.n_frames = config.latents.frames
        self.lookahead = config.post.lookahead_steps
        latent_weight, latent_bias = _fold_latents(latent_weights, self.n_frames)
        _register(
            self,
            units=weights["uemb.weight"],
            stays=weights["semb.weight"],
            centroids=weights["C"].flatten(0, 1),
            scale=weights["sc"],
            in_weight=weights["inp.weight"],
            in_bias=weights["inp.bias"],
            gain=weights["nf"],
            out_weight=weights["out.weight"],
            out_bias=weights["out.bias"],
            latent_weight=latent_weight,
            latent_bias=latent_bias,
        )
        self.register_buffer("book_starts", torch.arange(self.n_books) * weights["C"].shape[1])
        shapes = zip(config.post.dilation, config.post.ahead, strict=True)
        self.blocks = tuple(
            Block(weights, f"blocks.{idx}", dilation=dilation, ahead=ahead)
            for idx, (dilation, ahead) in enumerate(shapes)
        )
        self.registered = nn.ModuleList(self.blocks)
        width, dims = config.post.width, config.post.dims
        self.layout = ContextLayout(
            (*((block.n_context, width) for block in self.blocks), (self.lookahead, dims))
        )

    def forward(
        self, frames: Tensor, contexts: list[Tensor], span: Span
    ) -> tuple[Tensor, list[Tensor]]:
        """Run a call.

        Args:
            frames: `(B, n, Q)` int64: codes, text window, stay id; any valid ids outside of the
                utterance.
            contexts: see `layout`.
            span: of the call, in steps.

        Returns:
            Latent frames `(B, n * frames a step, latent)`, `lookahead` steps late, and the new
            contexts, all float32.
        """
        n = frames.shape[1]
        codes = frames[..., : self.n_books]
        summed = self.centroids[codes + self.book_starts].sum(2)
        features = self._features(frames, codes, summed)
        x = functional.linear(features, self.in_weight, self.in_bias).float()
        grid, kept = Grid(), []
        for block, context in zip(self.blocks, contexts[:-1], strict=True):
            window = torch.cat([context, silence(x, span, grid)], dim=1)
            kept.append(keep_context(window, block.n_context, span))
            x = block(window)
            grid = grid.later(block.ahead)
        window = torch.cat([contexts[-1], summed.float()], dim=1)
        kept.append(keep_context(window, self.lookahead, span))
        normed = functional.rms_norm(x.double(), x.shape[-1:], self.gain, _EPS)
        correction = functional.linear(normed, self.out_weight, self.out_bias)
        y = window[:, :n].double() + self.scale * correction
        latents = functional.linear(y, self.latent_weight, self.latent_bias).float()
        return latents.reshape(latents.shape[0], n * self.n_frames, -1), kept

    def _features(self, frames: Tensor, codes: Tensor, summed: Tensor) -> Tensor:
        """Input of the first layer: text window, stay, centroid sum, and which books are there."""
        units = self.units[frames[..., self.n_books : -1]].flatten(2)
        stays = self.stays[frames[..., -1]]
        present = (codes != self.absent).to(summed.dtype)
        return torch.cat([units, stays, summed / self.scale, present], dim=2)


def _register(module: nn.Module, **weights: Tensor) -> None:
    """Keep weights as float64 buffers."""
    for name, weight in weights.items():
        module.register_buffer(name, weight.double().contiguous())


def _fold_latents(weights: Mapping[str, Tensor], n_frames: int) -> tuple[Tensor, Tensor]:
    """`((y P^T + mu) as frames) Li + zm` as one linear layer, in float64."""
    basis, mean, unwhiten, latent_mean = (
        weights[name].double() for name in ("P", "mu", "Li", "zm")
    )
    by_frame = basis.view(n_frames, -1, basis.shape[1])
    weight = torch.einsum("fld,lm->fmd", by_frame, unwhiten).flatten(0, 1)
    bias = mean.view(n_frames, -1) @ unwhiten + latent_mean
    return weight, bias.flatten()
