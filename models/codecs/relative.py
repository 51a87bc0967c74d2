"""Attention by relative positions, with keys and values of rows that came before.

Source: Dai et al. 2019 (Transformer-XL), section 3.3; CosyVoice, `transformer/attention.py`,
`encoder_layer.py` and `embedding.py` (Apache-2.0), whose checkpoints name the modules so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

_LAYER_EPS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the rows of a call see, the same for all layers.

    Args:
        mask: `(B, 1, n, n_old + n)` bool, which keys a row may see.
        table: `(n_old + 2 * n - 1, size)`, waves for each distance; see `relative_table`.
        behind: `(B, n, n_old + n)`, how far each key lies behind each row, where keys do not simply
            follow one another; None: they do.
    """

    mask: Tensor
    table: Tensor
    behind: Tensor | None = None


@dataclass(slots=True)
class Past:
    """Keys and values of rows before a call, and those to keep after it, layer by layer.

    Args:
        keys: `(B, layers, n_old, size)`.
        values: the same shape.
        rows_after: `(B, n_old)`, which of the rows remembered and new ones are to be kept.
    """

    keys: Tensor
    values: Tensor
    rows_after: Tensor
    new_keys: list[Tensor] = field(default_factory=list)
    new_values: list[Tensor] = field(default_factory=list)

    def join(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, `(B, n, size)`, behind those of the past."""
        return (
            self._joined(self.keys[:, layer], keys, self.new_keys),
            self._joined(self.values[:, layer], values, self.new_values),
        )

    def _joined(self, old: Tensor, new: Tensor, after: list[Tensor]) -> Tensor:
        # New rows are rounded as old ones are: else what a row sees of an earlier chunk would
        # depend on whether both came in one call.
        rows = torch.cat([old, new.to(old.dtype)], dim=1)
        after.append(rows.gather(1, self.rows_after.unsqueeze(2).expand(-1, -1, rows.shape[2])))
        return rows.to(new.dtype)


class RelativeAttention(nn.Module):
    """Attention whose scores know contents, distances, and biases of a head.

    Args:
        size: of a row.
        n_heads: of queries, keys and values.
    """

    def __init__(self, size: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.linear_q = nn.Linear(size, size)
        self.linear_k = nn.Linear(size, size)
        self.linear_v = nn.Linear(size, size)
        self.linear_out = nn.Linear(size, size)
        self.linear_pos = nn.Linear(size, size, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(n_heads, size // n_heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(n_heads, size // n_heads))

    def forward(self, x: Tensor, sight: Sight, past: Past | None, layer: int) -> Tensor:
        """Map `(B, n, size)` to the same shape."""
        keys, values = self.linear_k(x), self.linear_v(x)
        if past is not None:
            keys, values = past.join(layer, keys, values)
        query = self._heads(self.linear_q(x))
        distances = self.linear_pos(sight.table).unflatten(1, (self.n_heads, -1)).transpose(0, 1)
        by_distance = (query + self.pos_bias_v.unsqueeze(1)) @ distances.transpose(1, 2)
        bias = by_distance.gather(3, _distance_idx(keys.shape[1], sight.behind, by_distance))
        bias = (bias / math.sqrt(query.shape[3])).masked_fill(~sight.mask, -math.inf)
        heads = functional.scaled_dot_product_attention(
            query + self.pos_bias_u.unsqueeze(1),
            self._heads(keys),
            self._heads(values),
            attn_mask=bias,
        )
        out: Tensor = self.linear_out(heads.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)


class RelativeLayer(nn.Module):
    """Such attention and a feed-forward part, each behind a norm.

    Args:
        size: of a row.
        n_heads: of the attention.
        inner: of the feed-forward part.
        eps: of the norms.
    """

    def __init__(self, size: int, n_heads: int, inner: int, eps: float = _LAYER_EPS) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(size, n_heads)
        self.feed_forward = nn.ModuleDict(
            {"w_1": nn.Linear(size, inner), "w_2": nn.Linear(inner, size)}
        )
        self.norm_mha = nn.LayerNorm(size, eps=eps)
        self.norm_ff = nn.LayerNorm(size, eps=eps)

    def forward(self, x: Tensor, sight: Sight, past: Past | None, layer: int) -> Tensor:
        """Map `(B, n, size)` to the same shape."""
        x = x + self.self_attn(self.norm_mha(x), sight, past, layer)
        inner = functional.silu(self.feed_forward["w_1"](self.norm_ff(x)))
        out: Tensor = x + self.feed_forward["w_2"](inner)
        return out


def relative_table(n_new: int, n_old: int, size: int, device: torch.device) -> Tensor:
    """Sines and cosines for each distance of a key behind a query, `(n_old + 2 * n_new - 1, size)`.

    Distances run from `1 - n_new` (a key ahead) to `n_old + n_new - 1`. Made on the device:
    a copy from the host cannot be recorded.
    """
    distances = torch.arange(1 - n_new, n_old + n_new, dtype=torch.float32, device=device)
    rates = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10_000) / size))
    angles = distances.unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


def _distance_idx(n_keys: int, behind: Tensor | None, like: Tensor) -> Tensor:
    """Row of the table for each query and key, as `like` `(B, heads, n_queries, n_distances)`."""
    n_queries, n_distances = like.shape[2:]
    if behind is None:
        query = torch.arange(n_queries, device=like.device) + n_keys - n_queries
        behind = query.unsqueeze(1) - torch.arange(n_keys, device=like.device).unsqueeze(0)
        behind = behind.unsqueeze(0)
    # What is not seen may lie anywhere.
    idx = (behind + n_queries - 1).clamp(0, n_distances - 1)
    return idx.unsqueeze(1).expand(*like.shape[:2], -1, -1)
