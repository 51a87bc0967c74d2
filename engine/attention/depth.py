"""KV of the depth model for the frame at hand: small, contiguous, written anew every frame."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.spec import DepthSpec


class DepthKV:
    """Buffers `(n_layers, 2, max_batch, n_kv_heads, n_positions, head_dim)`, reused every frame.

    Nothing is cleared between frames: position p is written before anything reads it, and reads
    stop at the position being written.
    """

    def __init__(
        self, spec: DepthSpec, max_batch: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (spec.n_layers, 2, max_batch, spec.n_kv_heads, spec.n_positions, spec.head_dim)
        self._buffer = torch.zeros(shape, device=device, dtype=dtype)
        self._is_grouped = spec.n_query_heads != spec.n_kv_heads

    @property
    def n_bytes(self) -> int:
        """Of all buffers."""
        return self._buffer.nbytes

    def __call__(self, layer_idx: int, position: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store `k`, `v` `(B, heads, head_dim)` at `position` and attend over 0..position."""
        keys, values = self._buffer[layer_idx, :, : q.shape[0]]
        keys[:, :, position] = k
        values[:, :, position] = v
        context = scaled_dot_product_attention(
            q.unsqueeze(2),
            keys[:, :, : position + 1].to(q.dtype),
            values[:, :, : position + 1].to(q.dtype),
            enable_gqa=self._is_grouped,
        )
        return context.squeeze(2)
