"""A diffusion transformer as the estimator of flow matching: the speed of mel frames.

Each block is attention, two causal convolutions and a feed-forward part, told by shifts, scales and
gates which moment it is. There are no positions: attention tells frames apart by what they hold,
and the convolutions by their neighbours. Of the frames before a chunk the inputs of each attention
are remembered, not its keys and values: those are twice as wide, and follow from them.

Source: Peebles and Xie 2023 (DiT); stepfun-ai/Step-Audio2, `cosyvoice2/flow/decoder_dit.py`
(Apache-2.0). Keys of the modules are those of its checkpoints (`flow.pt`, under
`decoder.estimator.`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.flow_memory import Sight
from models.codecs.unet import RowConv
from models.weights import load_weights

KERNEL: Final = 3
_EPS: Final = 1e-6
_N_WAVES: Final = 256
"""Sines and cosines that tell a moment."""
_TIME_SCALE: Final = 1000.0
_N_PARTS: Final = 3
"""Of a block; each has a shift, a scale and a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DitConfig:
    """Shape of a checkpoint.

    Args:
        n_in: channels of a frame as it comes: the noisy one, and what it is to follow from.
        n_mels: channels of a frame.
        size: channels of a row.
        n_blocks: one behind the other.
        n_heads: of the attention.
        head_dim: of a head.
        inner: of the feed-forward parts.
    """

    n_in: int
    n_mels: int
    size: int
    n_blocks: int
    n_heads: int
    head_dim: int
    inner: int


class Dit(nn.Module):
    """The estimator. Implements `models.codecs.flow_memory.Estimator`.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.n_layers, self.kept_size = config.n_blocks, config.size
        self.contexts = ((KERNEL - 1, config.size),) * (2 * config.n_blocks)
        self.t_embedder = nn.ModuleDict({"mlp": _sequence(_N_WAVES, config.size, config.size)})
        self.in_proj = nn.Linear(config.n_in, config.size)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.n_blocks))
        self.final_layer = _Final(config)

    def forward(self, x: Tensor, time: float, sight: Sight) -> Tensor:
        """Map `(R, n, n_in)` at `time` in [0, 1] to `(R, n, n_mels)`."""
        moment = self._moment(time, x)
        rows = self.in_proj(x)
        for block in self.blocks:
            rows = block(rows, moment, sight)
        out: Tensor = self.final_layer(rows, moment)
        return out

    def _moment(self, time: float, like: Tensor) -> Tensor:
        """`(1, size)`, the same for all rows."""
        half = _N_WAVES // 2
        steps = torch.arange(half, device=like.device, dtype=torch.float32)
        angles = _TIME_SCALE * time * torch.exp(steps * (-math.log(10_000) / half))
        waves = torch.cat([angles.cos(), angles.sin()]).unsqueeze(0).to(like.dtype)
        mlp = self.t_embedder["mlp"]
        assert isinstance(mlp, nn.ModuleDict), "made so"
        moment: Tensor = mlp["2"](functional.silu(mlp["0"](waves)))
        return moment


class _Block(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        size = config.size
        self.attn = _Attention(config)
        self.conv = _Convolutions(size)
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(size, config.inner), "fc2": nn.Linear(config.inner, size)}
        )
        self.adaLN_modulation = nn.ModuleDict({"1": nn.Linear(size, 3 * _N_PARTS * size)})

    def forward(self, x: Tensor, moment: Tensor, sight: Sight) -> Tensor:
        """Map `(R, n, size)` to the same shape."""
        told = self.adaLN_modulation["1"](functional.silu(moment))
        attend, feed, convolve = told.chunk(_N_PARTS, dim=-1)
        y, gate = _modulated(x, attend)
        x = x + gate * self.attn(y, sight)
        y, gate = _modulated(x, convolve)
        x = x + gate * self.conv(y, sight)
        y, gate = _modulated(x, feed)
        inner = functional.gelu(self.mlp["fc1"](y), approximate="tanh")
        out: Tensor = x + gate * self.mlp["fc2"](inner)
        return out


class _Attention(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        inner = config.n_heads * config.head_dim
        self.to_q = nn.Linear(config.size, inner)
        self.to_k = nn.Linear(config.size, inner)
        self.to_v = nn.Linear(config.size, inner)
        self.q_norm = nn.LayerNorm(config.head_dim)
        self.k_norm = nn.LayerNorm(config.head_dim)
        self.proj = nn.Linear(inner, config.size)

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        """Map `(R, n, size)` to the same shape."""
        rows = sight.kept(x)
        query = self.q_norm(self._heads(self.to_q(x)))
        key = self.k_norm(self._heads(self.to_k(rows)))
        value = self._heads(self.to_v(rows))
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=sight.bias)
        out: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)


class _Convolutions(nn.Module):
    """Two causal convolutions, between them a norm and a rectifier; named as in the checkpoints."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict(
            {
                "1": RowConv(size, size, KERNEL),
                "3": nn.LayerNorm(size),
                "6": RowConv(size, size, KERNEL),
            }
        )

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        """Map `(R, n, size)` to the same shape."""
        x = functional.mish(self.block["3"](self.block["1"](x, sight)))
        out: Tensor = self.block["6"](x, sight)
        return out


class _Final(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.adaLN_modulation = nn.ModuleDict({"1": nn.Linear(config.size, 2 * config.size)})
        self.linear = nn.Linear(config.size, config.n_mels)

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        """Map `(R, n, size)` to `(R, n, n_mels)`."""
        told = self.adaLN_modulation["1"](functional.silu(moment))
        shift, scale = told.chunk(2, dim=-1)
        out: Tensor = self.linear(_normed(x) * (1 + scale) + shift)
        return out


def _modulated(x: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
    """What a part of a block is given of `x`, and the gate of what it makes of it."""
    shift, scale, gate = told.chunk(3, dim=-1)
    return _normed(x) * (1 + scale) + shift, gate


def _normed(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=_EPS)


def _sequence(n_in: int, inner: int, n_out: int) -> nn.ModuleDict:
    return nn.ModuleDict({"0": nn.Linear(n_in, inner), "2": nn.Linear(inner, n_out)})


def make_dit(config: DitConfig, tensors: Mapping[str, Tensor], *, source: str) -> Dit:
    """The estimator with its weights, on the CPU.

    Args:
        config: their shape.
        tensors: those of `flow.pt` under `decoder.estimator.`, without that prefix.
        source: where they came from, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = Dit(config)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)
