"""The decoder block that most families share, over any attention backend."""

from __future__ import annotations

from torch import Tensor, nn

from models.base import Attention
from models.layers.mlp import SwiGLU
from models.layers.norm import RMSNorm
from models.layers.rotary import Angles, Rotary
from models.spec import BackboneSpec


class SelfAttention(nn.Module):
    """Multi-head attention with grouped KV heads; keys and values live with the caller."""

    def __init__(self, spec: BackboneSpec, *, has_bias: bool = False) -> None:
        super().__init__()
        self.n_query_heads = spec.n_query_heads
        self.n_kv_heads = spec.n_kv_heads
        self.head_dim = spec.head_dim
        n_heads = spec.n_query_heads + 2 * spec.n_kv_heads
        self.qkv = nn.Linear(spec.hidden, n_heads * spec.head_dim, bias=has_bias)
        self.out = nn.Linear(spec.n_query_heads * spec.head_dim, spec.hidden, bias=False)

    def project(self, x: Tensor, rotary: Rotary, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Rows `(N, hidden)` to q, k, v, each `(N, heads, head_dim)`; q and k are rotated."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        n_turned = self.n_query_heads + self.n_kv_heads
        turned = rotary.rotate(qkv[:, :n_turned], angles)
        return turned[:, : self.n_query_heads], turned[:, self.n_query_heads :], qkv[:, n_turned:]


class DecoderLayer(nn.Module):
    """Pre-norm attention and SwiGLU with residuals (the Llama block)."""

    def __init__(self, spec: BackboneSpec, inner: int, eps: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden, eps)
        self.attention = SelfAttention(spec)
        self.mlp_norm = RMSNorm(spec.hidden, eps)
        self.mlp = SwiGLU(spec.hidden, inner)

    def forward(
        self, x: Tensor, rotary: Rotary, angles: Angles, attention: Attention, layer_idx: int
    ) -> Tensor:
        """Run rows `x` `(N, hidden)` whose positions have `angles`."""
        q, k, v = self.attention.project(self.attention_norm(x), rotary, angles)
        context = attention(layer_idx, q, k, v)
        x = x + self.attention.out(context.flatten(1))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Decoder(nn.Module):
    """A stack of decoder layers and the final norm."""

    def __init__(self, spec: BackboneSpec, *, inner: int, theta: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.rotary = Rotary(spec.head_dim, spec.max_positions, theta)
        self.layers = nn.ModuleList(DecoderLayer(spec, inner, eps) for _ in range(spec.n_layers))
        self.norm = RMSNorm(spec.hidden, eps)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `(N, hidden)` after the final norm."""
        angles = self.rotary.angles(positions)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, self.rotary, angles, attention, layer_idx)
        out: Tensor = self.norm(x)
        return out
