"""Feed-forward layers."""

from __future__ import annotations

from torch import Tensor, nn


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` with gate and up in one matrix, gate rows first.

    Source: Shazeer 2020, equation 6.
    """

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(..., hidden)` to the same shape."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(nn.functional.silu(gate) * up)
        return out
