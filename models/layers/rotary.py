"""Rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.layers.fused import HEAD_DIMS, kernels_for


@dataclass(frozen=True, slots=True)
class Angles:
    """Where rows stand: `positions` (N,), and the cosines and sines `(N, 1, n_frequencies)` there.

    Looked up once a step, for all layers.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor


class Rotary(nn.Module):
    """Rotate query and key pairs by an angle that grows with position.

    Source: Su et al. 2021, section 3.4. The pairs are (i, i + half), as in Llama checkpoints, or
    neighbours (2i, 2i + 1) where `is_interleaved`.

    Args:
        head_dim: channels of a head.
        max_positions: rows of the table.
        theta: base of the frequencies.
        is_interleaved: neighbours are turned together.
        inv_freq: frequencies in place of those of `theta`: stretched ones (Llama 3), or fewer than
            half the channels (GLM), which turn only the first of them.
    """

    table: Tensor
    """Cosines, then sines: `(max_positions, 2 * n_frequencies)` float32."""

    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        theta: float,
        *,
        is_interleaved: bool = False,
        inv_freq: Tensor | None = None,
    ) -> None:
        super().__init__()
        if inv_freq is None:
            inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), inv_freq)
        table = torch.cat([angles.cos(), angles.sin()], dim=1).float()
        self.register_buffer("table", table, persistent=False)
        self.is_interleaved = is_interleaved

    def angles(self, positions: Tensor) -> Angles:
        """The angles at `positions` `(N,)`; one look-up a step."""
        cos, sin = self.table[positions].unsqueeze(1).chunk(2, dim=-1)
        return Angles(positions, cos, sin)

    def rotate(self, x: Tensor, angles: Angles) -> Tensor:
        """Rotate `x` `(N, heads, head_dim)`; queries and keys may come as heads of one tensor.

        `x` may be overwritten.
        """
        kernels = kernels_for(x)
        if kernels is not None and x.shape[1] > 1 and x.shape[2] in HEAD_DIMS:
            return self._rotate_in_place(x, angles.positions, kernels)
        n_turned = self.table.shape[1]
        turned = self._turned(x[..., :n_turned], angles.cos, angles.sin).to(x.dtype)
        return turned if n_turned == x.shape[2] else torch.cat([turned, x[..., n_turned:]], dim=-1)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.is_interleaved:
            first, second = x[..., 0::2], x[..., 1::2]
        else:
            first, second = x.chunk(2, dim=-1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        if self.is_interleaved:
            return torch.stack(rotated, dim=-1).flatten(-2)
        return torch.cat(rotated, dim=-1)

    def _rotate_in_place(self, x: Tensor, positions: Tensor, kernels: Any) -> Tensor:  # noqa: ANN401
        # The kernel wants queries and keys apart and turns both alike: which heads it calls so is
        # nothing to it. Views, never copies: it is the storage of `x` that turns.
        rows, _, head_dim = x.shape
        kernels.apply_rope_with_cos_sin_cache_inplace(
            positions,
            x[:, :1].view(rows, head_dim),
            x[:, 1:].view(rows, -1),
            head_dim,
            self.table,
            is_neox=not self.is_interleaved,
        )
        return x

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `x` `(N, heads, head_dim)` at `positions` `(N,)`."""
        return self.rotate(x, self.angles(positions))
