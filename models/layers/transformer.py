"""The decoder block that most families share, over any attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from models.base import Attention
from models.layers.gpt2 import Gpt2
from models.layers.mlp import SwiGLU
from models.layers.norm import RMSNorm
from models.layers.rotary import Angles, Rotary
from models.spec import BackboneSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStyle:
    """In what decoder blocks of the Llama kind differ.

    Args:
        has_bias: of queries, keys and values (Qwen2).
        qk_norm: queries and keys are normalised before they are turned: `none`, each `head` by
            itself (Qwen3), or the whole `row` (OLMo 2).
        norms: `before` attention and feed-forward part, or `after` them (OLMo 2).
        norm: `rms`, or `layer` with a bias (Zonos).
        is_interleaved: neighbouring channels turn together (Zonos).
    """

    has_bias: bool = False
    qk_norm: Literal["none", "head", "row"] = "none"
    norms: Literal["before", "after"] = "before"
    norm: Literal["rms", "layer"] = "rms"
    is_interleaved: bool = False


LLAMA: Final = BlockStyle()


class SelfAttention(nn.Module):
    """Multi-head attention with grouped KV heads; keys and values live with the caller."""

    def __init__(self, spec: BackboneSpec, style: BlockStyle = LLAMA, eps: float = 1e-6) -> None:
        super().__init__()
        self.n_query_heads = spec.n_query_heads
        self.n_kv_heads = spec.n_kv_heads
        self.head_dim = spec.head_dim
        n_heads = spec.n_query_heads + 2 * spec.n_kv_heads
        self.qkv = nn.Linear(spec.hidden, n_heads * spec.head_dim, bias=style.has_bias)
        self.out = nn.Linear(spec.n_query_heads * spec.head_dim, spec.hidden, bias=False)
        self.qk_norm = style.qk_norm
        if style.qk_norm != "none":
            n_q, n_k = (spec.n_query_heads, spec.n_kv_heads) if style.qk_norm == "row" else (1, 1)
            self.q_norm = RMSNorm(n_q * spec.head_dim, eps)
            self.k_norm = RMSNorm(n_k * spec.head_dim, eps)

    @property
    def rows(self) -> tuple[int, int, int]:
        """Of `qkv`: those of queries, keys and values."""
        n_kv = self.n_kv_heads * self.head_dim
        return self.n_query_heads * self.head_dim, n_kv, n_kv

    def project(self, x: Tensor, rotary: Rotary, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Rows `(N, hidden)` to q, k, v, each `(N, heads, head_dim)`; q and k are rotated."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        n_turned = self.n_query_heads + self.n_kv_heads
        if self.qk_norm != "none":
            qkv = self._normalised(qkv)
        turned = rotary.rotate(qkv[:, :n_turned], angles)
        return turned[:, : self.n_query_heads], turned[:, self.n_query_heads :], qkv[:, n_turned:]

    def _normalised(self, qkv: Tensor) -> Tensor:
        sizes = [self.n_query_heads, self.n_kv_heads, self.n_kv_heads]
        q, k, v = torch.split(qkv, sizes, dim=1)
        if self.qk_norm == "row":
            q = self.q_norm(q.flatten(1)).view_as(q)
            k = self.k_norm(k.flatten(1)).view_as(k)
        else:
            q, k = self.q_norm(q), self.k_norm(k)
        return torch.cat([q, k, v], dim=1)


class DecoderLayer(nn.Module):
    """Attention and SwiGLU with norms and residuals."""

    def __init__(self, spec: BackboneSpec, inner: int, eps: float, style: BlockStyle) -> None:
        super().__init__()
        self.has_norms_before = style.norms == "before"
        self.attention_norm = _norm(spec.hidden, eps, style)
        self.attention = SelfAttention(spec, style, eps)
        self.mlp_norm = _norm(spec.hidden, eps, style)
        self.mlp = SwiGLU(spec.hidden, inner)

    def forward(
        self, x: Tensor, rotary: Rotary, angles: Angles, attention: Attention, layer_idx: int
    ) -> Tensor:
        """Run rows `x` `(N, hidden)` whose positions have `angles`."""
        y = self.attention_norm(x) if self.has_norms_before else x
        q, k, v = self.attention.project(y, rotary, angles)
        y = self.attention.out(attention(layer_idx, q, k, v).flatten(1))
        if self.has_norms_before:
            x, y = add_norm(self.mlp_norm, x, y)
            out: Tensor = x + self.mlp(y)
            return out
        x = x + self.attention_norm(y)
        out = x + self.mlp_norm(self.mlp(x))
        return out


class Decoder(nn.Module):
    """A stack of decoder layers and the final norm."""

    def __init__(
        self,
        spec: BackboneSpec,
        *,
        inner: int,
        theta: float,
        eps: float = 1e-5,
        style: BlockStyle = LLAMA,
    ) -> None:
        super().__init__()
        self.style = style
        self.rotary = Rotary(
            spec.head_dim, spec.max_positions, theta, is_interleaved=style.is_interleaved
        )
        self.layers = nn.ModuleList(
            DecoderLayer(spec, inner, eps, style) for _ in range(spec.n_layers)
        )
        self.norm = _norm(spec.hidden, eps, style)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `(N, hidden)` after the final norm, in the precision of `x`.

        Computed in that of the weights, which may be less: see `cast_decoders`.
        """
        angles, given = self.rotary.angles(positions), x.dtype
        # Layers may overwrite it, and it is the caller's.
        x = x.to(self.norm.weight.dtype, copy=True)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, self.rotary, angles, attention, layer_idx)
        out: Tensor = self.norm(x).to(given)
        return out


def cast_decoders(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the decoders of a model compute in another precision, and take and give what they did.

    They are most of it, and what a step's time goes to; tables, heads and detokenizers stay.
    """
    for module in model.modules():
        if isinstance(module, Decoder | Gpt2):
            for parameter in module.parameters():
                parameter.data = parameter.data.to(dtype)


def _norm(size: int, eps: float, style: BlockStyle) -> RMSNorm | nn.LayerNorm:
    return RMSNorm(size, eps) if style.norm == "rms" else nn.LayerNorm(size, eps)


def add_norm(norm: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`x + y`, and that normalised, in one kernel where there is one. Both may be overwritten."""
    if isinstance(norm, RMSNorm):
        return norm.add(x, y)
    total = x + y
    return total, norm(total)
