"""A conformer that sees tokens by blocks, and a regulator that lays its rows out over mel frames.

Before flow matching in CosyVoice's first form, where a token has no whole number of mel frames. A
token sees its own block and those before it. The regulator repeats each row over the frames that
begin within its token, and smooths by convolutions whose norms are over time: so frames depend on
all others, and neither is streamed but in windows (`models.codecs.block_flow`).

Source: Gulati et al. 2020 (Conformer); CosyVoice and zai-org/GLM-4-Voice, `transformer/encoder.py`,
`BlockConformerEncoder`, and `flow/length_regulator.py` (Apache-2.0). Keys of the modules are those
of `flow.pt`, under `encoder.` and `length_regulator.`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.relative import RelativeLayer, Sight, relative_table
from models.codecs.wide_unet import GroupNorm, silent

_LAYER_EPS: Final = 1e-5
_KERNEL: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConformerConfig:
    """Shape of a checkpoint.

    Args:
        n_in: channels of a token.
        size: channels of a row.
        n_heads: of the attention.
        inner: of the feed-forward parts.
        n_layers: of them.
        block_tokens: tokens that see one another.
    """

    n_in: int
    size: int
    n_heads: int
    inner: int
    n_layers: int
    block_tokens: int


class BlockConformer(nn.Module):
    """The encoder.

    Args:
        config: its shape.
    """

    def __init__(self, config: BlockConformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.ModuleDict(
            {"out": nn.ModuleList([nn.Linear(config.n_in, config.size), nn.LayerNorm(config.size)])}
        )
        self.encoders = nn.ModuleList(
            RelativeLayer(config.size, config.n_heads, config.inner, _LAYER_EPS)
            for _ in range(config.n_layers)
        )
        self.after_norm = nn.LayerNorm(config.size)

    def forward(self, tokens: Tensor, n_valid: Tensor) -> Tensor:
        """Rows `(B, n, size)` of tokens `(B, n, n_in)` from the border of a block on.

        Args:
            tokens: of each row the first ones count.
            n_valid: `(B,)` of them.
        """
        out = self.embed["out"]
        x = out[1](out[0](tokens)) * math.sqrt(self.config.size)  # type: ignore[index] # a ModuleList
        n_tokens = tokens.shape[1]
        time = torch.arange(n_tokens, device=tokens.device)
        block = time // self.config.block_tokens
        seen = (time < n_valid.unsqueeze(1)).unsqueeze(1) & (block <= block.unsqueeze(1))
        # What does not count sees itself at least: attention to nothing has no value.
        mask = (seen | (time == time.unsqueeze(1))).unsqueeze(1)
        table = relative_table(n_tokens, 0, self.config.size, tokens.device)
        sight = Sight(mask=mask, table=table.to(x.dtype))
        for layer in self.encoders:
            x = layer(x, sight, None, 0)
        rows: Tensor = self.after_norm(x)
        return rows


class Regulator(nn.Module):
    """Rows of tokens to rows of mel frames.

    Args:
        n_channels: of a row.
        n_smooth: convolutions.
    """

    def __init__(self, n_channels: int, n_smooth: int) -> None:
        super().__init__()
        parts: dict[str, nn.Module] = {}
        for idx in range(n_smooth):
            conv = nn.Conv1d(n_channels, n_channels, _KERNEL, padding=_KERNEL // 2)
            # The third of each is a rectifier.
            parts |= {str(3 * idx): conv, str(3 * idx + 1): GroupNorm(1, n_channels)}
        parts[str(3 * n_smooth)] = nn.Conv1d(n_channels, n_channels, 1)
        self.model = nn.ModuleDict(parts)

    def forward(self, rows: Tensor, source: Tensor, valid: Tensor) -> Tensor:
        """Frames `(B, n_channels, n)`, zeros where they do not count.

        Args:
            rows: `(B, m, n_channels)`.
            source: `(B, n)` int64, the row of each frame.
            valid: `(B, n)` bool, the frames that count: the first ones.
        """
        x = rows.gather(1, source.unsqueeze(2).expand(-1, -1, rows.shape[2])).transpose(1, 2)
        for part in self.model.values():
            if isinstance(part, GroupNorm):
                x = functional.mish(part(x, valid))
            else:
                x = part(silent(x, valid))
        return silent(x, valid)
