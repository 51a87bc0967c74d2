"""Root mean square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers.fused import kernels_for


class RMSNorm(nn.Module):
    """Scale each vector to unit root mean square, then by a learned weight.

    Source: Zhang and Sennrich 2019, equation 4. Computed in float32 whatever the input.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `x`; shape and dtype are kept."""
        kernels = kernels_for(x, self.weight)
        if kernels is not None and x.dim() in (2, 3):
            out: Tensor = kernels.rmsnorm(x, self.weight, self.eps)
            return out
        if x.dtype == self.weight.dtype == torch.float32:
            return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        wide = nn.functional.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps)
        return wide.to(x.dtype)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """`x + y` of `(N, size)`, and that normalised. Both may be overwritten."""
        kernels = kernels_for(x, self.weight)
        if kernels is not None and x.dim() == 2:
            kernels.fused_add_rmsnorm(y, x, self.weight, self.eps)
            return x, y
        total = x + y
        return total, self(total)
