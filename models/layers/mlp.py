"""Feed-forward layers."""

from __future__ import annotations

from torch import Tensor, nn

from models.layers.fused import kernels_for


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` with gate and up in one matrix, gate rows first.

    Source: Shazeer 2020, equation 6.
    """

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    @property
    def rows(self) -> tuple[int, int]:
        """Of `gate_up`: those of the gate, and the others."""
        return self.down.in_features, self.down.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Map `(..., hidden)` to the same shape."""
        out: Tensor = self.down(gated(self.gate_up(x)))
        return out


def gated(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` `(..., inner)` of `(..., 2 * inner)`, gate first."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        fused: Tensor = kernels.silu_and_mul(gate_up)
        return fused
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up
