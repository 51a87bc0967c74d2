"""The U-Net estimator of CosyVoice's first form, which sees all frames of a call.

Convolutions look to both sides, norms are over time, and each level is half as fine as the one
above it. So it remembers nothing, and is given windows (`models.codecs.block_flow`). The frames of
a row that count come first; what lies behind them is silent in every layer.

Source: Mehta et al. 2024 (Matcha-TTS), `components/decoder.py` (MIT); CosyVoice, `flow/decoder.py`,
`ConditionalDecoder` (Apache-2.0). Keys of the modules are those of its checkpoints (`flow.pt`,
under `decoder.estimator.`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.flow_memory import Sight
from models.codecs.unet import AttentionLayer, UnetConfig, moment

_GROUPS: Final = 8
_TAPS: Final = 3
_FACTOR: Final = 2
"""Positions of a level for each of the level below."""


class WideUnet(nn.Module):
    """The speed of the flow. Implements `models.codecs.flow_memory.Estimator`.

    Args:
        config: its shape.
        n_levels: of the U.
    """

    contexts: tuple[tuple[int, int], ...] = ()

    def __init__(self, config: UnetConfig, n_levels: int) -> None:
        super().__init__()
        width, n_in = config.n_channels, 4 * config.n_mels
        self.n_layers = config.n_layers * (config.n_middle + 2 * n_levels)
        self.kept_size = width
        self.time_mlp = nn.ModuleDict(
            {
                "linear_1": nn.Linear(n_in, 4 * width),
                "linear_2": nn.Linear(4 * width, 4 * width),
            }
        )
        levels = range(n_levels)
        self.down_blocks = nn.ModuleList(
            _Block(config, width if level else n_in, _Down if level + 1 < n_levels else _Same)
            for level in levels
        )
        self.mid_blocks = nn.ModuleList(_Block(config, width, None) for _ in range(config.n_middle))
        self.up_blocks = nn.ModuleList(
            _Block(config, 2 * width, _Up if level else _Same) for level in reversed(levels)
        )
        self.final_block = _Conv(width, width)
        self.final_proj = nn.Conv1d(width, config.n_mels, 1)

    def forward(self, x: Tensor, time: float, sight: Sight) -> Tensor:
        """See `Estimator.__call__`."""
        told = moment(self.time_mlp, time, x)
        levels = [_Level(sight.bias)]
        for _ in self.down_blocks[1:]:
            levels.append(levels[-1].coarser())
        x, skips = x.transpose(1, 2), []
        for block, level in zip(self.down_blocks, levels, strict=True):
            skips.append(block(x, told, level))
            x = _resized(block, skips[-1], level)
        for block in self.mid_blocks:
            x = block(x, told, levels[-1])
        for block, level in zip(self.up_blocks, reversed(levels), strict=True):
            skip = skips.pop()
            x = block(torch.cat([x[:, :, : skip.shape[2]], skip], dim=1), told, level)
            x = _resized(block, x, level)
        out: Tensor = self.final_proj(self.final_block(x, levels[0].valid))
        return out.transpose(1, 2)


class _Level:
    """What frames of one level see. Implements `models.codecs.flow_memory.Sight`.

    Args:
        bias: `(R, 1, n, n)`; frames that count are seen by all, others by themselves alone.
    """

    def __init__(self, bias: Tensor) -> None:
        self.bias = bias
        self.valid = bias[:, 0, 0] == 0
        """`(R, n)` bool; the first frame always is."""

    def coarser(self) -> _Level:
        """The level below."""
        return _Level(self.bias[:, :, ::_FACTOR, ::_FACTOR])

    def context(self, x: Tensor, n_context: int) -> Tensor:
        """Nothing here looks back."""
        raise NotImplementedError("the layers of this estimator look back at nothing")

    def kept(self, x: Tensor) -> Tensor:
        """Nothing is remembered."""
        return x


class GroupNorm(nn.GroupNorm):
    """A norm over groups of channels and over the time that counts."""

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:  # type: ignore[override] # what counts
        """Map `(B, C, n)` to the same shape; `valid` `(B, n)` bool."""
        counts = valid[:, None, None].to(x.dtype)
        groups = x.view(len(x), self.num_groups, -1, x.shape[2])
        n_values = (counts.sum(dim=3, keepdim=True) * groups.shape[2]).clamp(min=1)
        mean = (groups * counts).sum(dim=(2, 3), keepdim=True) / n_values
        apart = groups - mean
        spread = (apart.square() * counts).sum(dim=(2, 3), keepdim=True) / n_values
        normed = (apart * (spread + self.eps).rsqrt()).flatten(1, 2)
        out: Tensor = normed * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)
        return out


class _Conv(nn.Module):
    """A convolution, a norm over time, a rectifier; named as in the checkpoints."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"0": _Same(n_in, n_out), "1": GroupNorm(_GROUPS, n_out)})

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        y = self.block["1"](self.block["0"](silent(x, valid)), valid)
        return silent(functional.mish(y), valid)


class _Resnet(nn.Module):
    """Two such, told between them which moment it is, beside a plain map."""

    def __init__(self, n_in: int, n_out: int, n_moment: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"1": nn.Linear(n_moment, n_out)})
        self.block1 = _Conv(n_in, n_out)
        self.block2 = _Conv(n_out, n_out)
        self.res_conv = nn.Conv1d(n_in, n_out, 1)

    def forward(self, x: Tensor, told: Tensor, valid: Tensor) -> Tensor:
        y = self.block1(x, valid) + self.mlp["1"](functional.mish(told)).unsqueeze(2)
        out: Tensor = self.block2(y, valid) + self.res_conv(silent(x, valid))
        return out


class _Block(nn.ModuleList):
    """A convolutional block, its attention layers, and a change of level behind them."""

    def __init__(
        self, config: UnetConfig, n_in: int, resize: Callable[[int], nn.Module] | None
    ) -> None:
        width = config.n_channels
        layers = nn.ModuleList(AttentionLayer(config) for _ in range(config.n_layers))
        parts: list[nn.Module] = [_Resnet(n_in, width, 4 * width), layers]
        super().__init__(parts if resize is None else [*parts, resize(width)])

    def forward(self, x: Tensor, told: Tensor, level: _Level) -> Tensor:
        """Map `(R, n_in, n)` to `(R, n_channels, n)`."""
        rows: Tensor = self[0](x, told, level.valid).transpose(1, 2)
        for layer in self[1].children():
            rows = layer(rows, level)
        return rows.transpose(1, 2)


def _resized(block: nn.Module, x: Tensor, level: _Level) -> Tensor:
    """The frames of the next level."""
    assert isinstance(block, _Block), "made so"
    resized: Tensor = block[2](silent(x, level.valid))
    return resized


class _Same(nn.Conv1d):
    """Three taps around a frame: no change of level."""

    def __init__(self, n_in: int, n_out: int | None = None) -> None:
        super().__init__(n_in, n_out or n_in, _TAPS, padding=_TAPS // 2)


class _Down(nn.Module):
    """To the level below: of n frames, those with an even number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(size, size, _TAPS, _FACTOR, padding=_TAPS // 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return out


class _Up(nn.Module):
    """To the level above: twice as many frames."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(size, size, 2 * _FACTOR, _FACTOR, padding=_FACTOR // 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return out


def silent(x: Tensor, valid: Tensor) -> Tensor:
    """`x` `(B, C, n)` where it counts, zeros elsewhere."""
    return x.masked_fill(~valid.unsqueeze(1), 0.0)
