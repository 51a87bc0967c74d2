"""The post-net of `pico`: codes, text window and stay of each step to latent frames, streamed.

Formula: `models/pico/training/FORMAT.md`, sections Post-net and Latents. One call brings the same
number of steps for every stream; outputs are late by the look-ahead of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.layers.conv import ContextLayout, Grid, Span, StreamConv, keep_context, silence
from models.layers.norm import RMSNorm
from models.pico.config import PicoConfig

_EPS = 1e-5


class Block(nn.Module):
    """Residual block: norm, dilated convolution that looks `ahead` steps ahead, SiLU, 1x1."""

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, *, dilation: int, ahead: int
    ) -> None:
        super().__init__()
        self.norm = _norm(weights[f"{name}.n"])
        self.conv = StreamConv(weights[f"{name}.a.weight"], weights[f"{name}.a.bias"], dilation)
        self.ahead = ahead
        self.register_buffer("weight", weights[f"{name}.b.weight"].squeeze(2))
        self.register_buffer("bias", weights[f"{name}.b.bias"])

    weight: Tensor
    bias: Tensor

    def forward(self, window: Tensor) -> Tensor:
        """Map `(B, n_context + n, width)` to `(B, n, width)`, late by `ahead`.

        Zero rows stay zero in the norm, so silence outside the utterance needs no mask here.
        """
        inner = nn.functional.silu(self.conv(self.norm(window)))
        stop = window.shape[1] - self.ahead
        x = window[:, stop - inner.shape[1] : stop]
        return x + nn.functional.linear(inner, self.weight, self.bias)


class Postnet(nn.Module):
    """Frames to latent frames; weights by the names of `post.safetensors`, `codec.safetensors`."""

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
        scale = weights["sc"]
        self.register_buffer("units", weights["uemb.weight"])
        self.register_buffer("stays", weights["semb.weight"])
        self.register_buffer("centroids", weights["C"].flatten(0, 1))
        self.register_buffer("book_starts", torch.arange(self.n_books) * weights["C"].shape[1])
        self.register_buffer("scale", scale)
        self.register_buffer("in_weight", weights["inp.weight"])
        self.register_buffer("in_bias", weights["inp.bias"])
        shapes = zip(config.post.dilation, config.post.ahead, strict=True)
        self.blocks = tuple(
            Block(weights, f"blocks.{idx}", dilation=dilation, ahead=ahead)
            for idx, (dilation, ahead) in enumerate(shapes)
        )
        self.registered = nn.ModuleList(self.blocks)
        self.norm = _norm(weights["nf"])
        self.register_buffer("out_weight", weights["out.weight"] * scale)
        self.register_buffer("out_bias", weights["out.bias"] * scale)
        latent_weight, latent_bias = _fold_latents(latent_weights, self.n_frames)
        self.register_buffer("latent_weight", latent_weight)
        self.register_buffer("latent_bias", latent_bias)
        width, dims = config.post.width, config.post.dims
        self.layout = ContextLayout(
            (
                *((block.conv.n_context, width) for block in self.blocks),
                (self.lookahead, dims),
            )
        )

    units: Tensor
    stays: Tensor
    centroids: Tensor
    book_starts: Tensor
    scale: Tensor
    in_weight: Tensor
    in_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor
    latent_weight: Tensor
    latent_bias: Tensor

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
            contexts.
        """
        n = frames.shape[1]
        codes = frames[..., : self.n_books]
        summed = self.centroids[codes + self.book_starts].sum(2)
        x = nn.functional.linear(
            self._features(frames, codes, summed), self.in_weight, self.in_bias
        )
        grid, kept = Grid(), []
        for block, context in zip(self.blocks, contexts[:-1], strict=True):
            window = torch.cat([context, silence(x, span, grid)], dim=1)
            kept.append(keep_context(window, block.conv.n_context, span))
            x = block(window)
            grid = grid.later(block.ahead)
        window = torch.cat([contexts[-1], summed], dim=1)
        kept.append(keep_context(window, self.lookahead, span))
        y = window[:, :n] + nn.functional.linear(self.norm(x), self.out_weight, self.out_bias)
        latents = nn.functional.linear(y, self.latent_weight, self.latent_bias)
        return latents.reshape(latents.shape[0], n * self.n_frames, -1), kept

    def _features(self, frames: Tensor, codes: Tensor, summed: Tensor) -> Tensor:
        """Input of the first layer: text window, stay, centroid sum, and which books are there."""
        units = self.units[frames[..., self.n_books : -1]].flatten(2)
        stays = self.stays[frames[..., -1]]
        present = (codes != self.absent).to(summed.dtype)
        return torch.cat([units, stays, summed / self.scale, present], dim=2)


def _norm(weight: Tensor) -> RMSNorm:
    norm = RMSNorm(weight.shape[0], _EPS)
    norm.load_state_dict({"weight": weight})
    return norm


def _fold_latents(weights: Mapping[str, Tensor], n_frames: int) -> tuple[Tensor, Tensor]:
    """`((y P^T + mu) as frames) Li + zm` as one linear layer, folded in float64."""
    basis, mean, unwhiten, latent_mean = (
        weights[name].double() for name in ("P", "mu", "Li", "zm")
    )
    by_frame = basis.view(n_frames, -1, basis.shape[1])
    weight = torch.einsum("fld,lm->fmd", by_frame, unwhiten).flatten(0, 1)
    bias = mean.view(n_frames, -1) @ unwhiten + latent_mean
    return weight.float(), bias.flatten().float()
