"""The U-Net estimator of CosyVoice 2 and Chatterbox, over rows of frames.

Causal convolutions and attention over whole chunks, at one rate throughout.

Source: CosyVoice, `flow/decoder.py` (Apache-2.0). Keys of the modules are those of its checkpoints
(`flow.pt`, under `decoder.estimator.`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.flow_memory import Sight
from models.layers.linear import linear_of

_TIME_SCALE: Final = 1000.0
_TAPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetConfig:
    """Shape of a checkpoint, and what is remembered of a frame.

    Args:
        n_mels: channels of a frame.
        n_channels: of the layers.
        n_layers: attention layers behind each convolutional block.
        n_middle: blocks between the first and the last.
        n_heads: of the attention.
        head_dim: of a head.
        remembers: inputs of the attention layers, from which keys and values are made again in
            every call; or keys and values, which take the more memory the wider the heads are.
    """

    n_mels: int
    n_channels: int
    n_layers: int
    n_middle: int
    n_heads: int
    head_dim: int
    remembers: Literal["inputs", "keys"] = "inputs"


class Unet(nn.Module):
    """The speed of the flow. Implements `models.codecs.flow_memory.Estimator`.

    Args:
        config: its shape.
    """

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        width = config.n_channels
        self.n_in = 4 * config.n_mels
        self.n_layers = config.n_layers * (config.n_middle + 2)
        inner = config.n_heads * config.head_dim
        self.kept_size = width if config.remembers == "inputs" else 2 * inner
        self.time_mlp = nn.ModuleDict(
            {
                "linear_1": nn.Linear(self.n_in, 4 * width),
                "linear_2": nn.Linear(4 * width, 4 * width),
            }
        )
        self.down_blocks = nn.ModuleList([_block(config, self.n_in, has_conv=True)])
        self.mid_blocks = nn.ModuleList(
            _block(config, width, has_conv=False) for _ in range(config.n_middle)
        )
        self.up_blocks = nn.ModuleList([_block(config, 2 * width, has_conv=True)])
        self.final_block = _Conv(width, width)
        self.final_proj = RowConv(width, config.n_mels, 1)
        # They are made in the order in which they run.
        convs = [one for one in self.modules() if isinstance(one, RowConv) and one.n_context]
        self.contexts = tuple((one.n_context, one.in_channels) for one in convs)

    def forward(self, x: Tensor, time: float, sight: Sight) -> Tensor:
        """See `Estimator.__call__`."""
        told = self.told(time, x)
        skip = _run(self.down_blocks[0], x, told, sight)
        x = self.down_blocks[0][2](skip, sight)  # type: ignore[index] # a ModuleList
        for block in self.mid_blocks:
            x = _run(block, x, told, sight)
        x = _run(self.up_blocks[0], torch.cat([x, skip], dim=2), told, sight)
        x = self.up_blocks[0][2](x, sight)  # type: ignore[index] # a ModuleList
        out: Tensor = self.final_proj(self.final_block(x, sight), sight)
        return out

    def told(self, time: float, like: Tensor) -> Tensor:
        """What the layers are told of a step, `(1, width)`."""
        return moment(self.time_mlp, time, like)


class RowConv(nn.Conv1d):
    """A causal convolution over rows. Implements `models.layers.linear.Packable`.

    Args:
        n_in: channels.
        n_out: channels.
        kernel: taps: a frame, and those before it.
    """

    def __init__(self, n_in: int, n_out: int, kernel: int) -> None:
        super().__init__(n_in, n_out, kernel)
        self.n_context = kernel - 1
        self.rows: nn.Module | None = None

    def forward(self, x: Tensor, sight: Sight) -> Tensor:  # type: ignore[override] # looks back
        """Map `(R, n, n_in)` to `(R, n, n_out)`."""
        window = sight.context(x, self.n_context) if self.n_context else x
        if self.rows is None:
            mapped = functional.conv1d(window.transpose(1, 2), self.weight, self.bias)
            return mapped.transpose(1, 2)
        # The taps of a frame lie behind one another, and overlap those of the next.
        n_rows, n, _ = x.shape
        n_in = self.in_channels
        strides = (window.shape[1] * n_in, n_in, 1)
        taps = window.as_strided((n_rows, n, self.kernel_size[0] * n_in), strides)
        out: Tensor = self.rows(taps)
        return out

    def as_linear(self) -> nn.Linear | None:
        """The taps as one matrix over rows; None once it is replaced."""
        if self.rows is not None:
            return None
        return linear_of(self.weight.transpose(1, 2).flatten(1), self.bias)

    def replace_by(self, layer: nn.Module) -> None:
        """Multiply by `layer` from now on."""
        self.rows = layer
        del self.weight, self.bias


class _Conv(nn.Module):
    """A causal convolution, a norm over channels, a rectifier; named as in the checkpoints."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"0": RowConv(n_in, n_out, _TAPS), "2": nn.LayerNorm(n_out)})

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        return functional.mish(self.block["2"](self.block["0"](x, sight)))


class _Resnet(nn.Module):
    """Two such, told between them which moment it is, beside a plain map."""

    def __init__(self, n_in: int, n_out: int, n_moment: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"1": nn.Linear(n_moment, n_out)})
        self.block1 = _Conv(n_in, n_out)
        self.block2 = _Conv(n_out, n_out)
        self.res_conv = RowConv(n_in, n_out, 1)

    def forward(self, x: Tensor, moment: Tensor, sight: Sight) -> Tensor:
        y = self.block1(x, sight) + self.mlp["1"](functional.mish(moment)).unsqueeze(1)
        out: Tensor = self.block2(y, sight) + self.res_conv(x, sight)
        return out


class AttentionLayer(nn.Module):
    """Attention and a feed-forward part, each behind a norm.

    Args:
        config: its shape.
    """

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        size, inner = config.n_channels, config.n_heads * config.head_dim
        self.head_dim = config.head_dim
        self.remembers = config.remembers
        self.norm1 = nn.LayerNorm(size)
        self.attn1 = nn.ModuleDict(
            {
                "to_q": nn.Linear(size, inner, bias=False),
                "to_k": nn.Linear(size, inner, bias=False),
                "to_v": nn.Linear(size, inner, bias=False),
                "to_out": nn.ModuleList([nn.Linear(inner, size)]),
            }
        )
        self.norm3 = nn.LayerNorm(size)
        self.ff = nn.ModuleDict(
            {
                "net": nn.ModuleDict(
                    {
                        "0": nn.ModuleDict({"proj": nn.Linear(size, 4 * size)}),
                        "2": nn.Linear(4 * size, size),
                    }
                )
            }
        )

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        """Map `(R, n, size)` to the same shape."""
        y = self.norm1(x)
        keys, values = self._keys_values(y, sight)
        heads = functional.scaled_dot_product_attention(
            self._heads(self.attn1["to_q"](y)),
            self._heads(keys),
            self._heads(values),
            attn_mask=sight.bias,
        )
        x = x + self.attn1["to_out"][0](heads.transpose(1, 2).flatten(2))  # type: ignore[index]
        net = self.ff["net"]
        inner = functional.gelu(net["0"]["proj"](self.norm3(x)))  # type: ignore[index]
        out: Tensor = x + net["2"](inner)  # type: ignore[index]
        return out

    def _keys_values(self, y: Tensor, sight: Sight) -> tuple[Tensor, Tensor]:
        """Of the call's rows `(R, n, size)` and of those before."""
        to_key, to_value = self.attn1["to_k"], self.attn1["to_v"]
        if self.remembers == "inputs":
            rows = sight.kept(y)
            return to_key(rows), to_value(rows)
        keys, values = sight.kept(torch.cat([to_key(y), to_value(y)], dim=2)).chunk(2, dim=2)
        return keys, values

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


def _block(config: UnetConfig, n_in: int, *, has_conv: bool) -> nn.ModuleList:
    """A convolutional block, its attention layers, and a convolution behind them where asked."""
    width = config.n_channels
    layers = nn.ModuleList(AttentionLayer(config) for _ in range(config.n_layers))
    parts: list[nn.Module] = [_Resnet(n_in, width, 4 * width), layers]
    return nn.ModuleList([*parts, RowConv(width, width, _TAPS)] if has_conv else parts)


def _run(block: nn.Module, x: Tensor, moment: Tensor, sight: Sight) -> Tensor:
    """A block but its last convolution."""
    assert isinstance(block, nn.ModuleList), "made so"
    resnet, layers = block[0], block[1]
    assert isinstance(layers, nn.ModuleList), "made so"
    x = resnet(x, moment, sight)
    for layer in layers:
        x = layer(x, sight)
    return x


def moment(mlp: nn.ModuleDict, time: float, like: Tensor) -> Tensor:
    """What the layers are told of a `time` in [0, 1] by `mlp`, `(1, width)`: the same for all rows.

    Args:
        mlp: `linear_1` and `linear_2`.
        time: of a step.
        like: whose device and precision it has.
    """
    first, second = mlp["linear_1"], mlp["linear_2"]
    half: int = first.in_features // 2  # type: ignore[assignment, operator] # of a linear layer
    steps = torch.arange(half, device=like.device, dtype=torch.float32)
    angles = _TIME_SCALE * time * torch.exp(steps * (-math.log(10_000) / (half - 1)))
    x = torch.cat([angles.sin(), angles.cos()]).unsqueeze(0).to(like.dtype)
    told: Tensor = second(functional.silu(first(x)))
    return told
