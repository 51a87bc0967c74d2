"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Angles = tuple[Tensor, Tensor]


class Rotary(nn.Module):
    """Rotate query and key pairs by an angle that grows with position.

    Source: Su et al. 2021, section 3.4. The pairs are (i, i + half), as in Llama checkpoints, or
    neighbours (2i, 2i + 1) where `is_interleaved`.
    """

    cos: Tensor
    sin: Tensor

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
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.is_interleaved = is_interleaved

    def angles(self, positions: Tensor) -> Angles:
        """Cosines and sines `(N, 1, head_dim / 2)` of `positions` `(N,)`; one look-up a step."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

    def rotate(self, x: Tensor, angles: Angles) -> Tensor:
        """Rotate `x` `(N, heads, head_dim)`; queries and keys may come as heads of one tensor."""
        cos, sin = angles
        if self.is_interleaved:
            first, second = x[..., 0::2], x[..., 1::2]
        else:
            first, second = x.chunk(2, dim=-1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        if self.is_interleaved:
            return torch.stack(rotated, dim=-1).flatten(-2).to(x.dtype)
        return torch.cat(rotated, dim=-1).to(x.dtype)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `x` `(N, heads, head_dim)` at `positions` `(N,)`."""
        return self.rotate(x, self.angles(positions))
