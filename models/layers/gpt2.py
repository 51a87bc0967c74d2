"""A decoder of the GPT-2 kind over any attention backend. Keys are those of `transformers`.

Positions are learned and added to the rows; norms have a bias, and so has every matrix.

Source: Radford et al. 2019 (GPT-2); `transformers` 5, `GPT2Model`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from torch.nn import functional

from models.base import Attention
from models.spec import BackboneSpec
from models.weights import load_weights

EPS: Final = 1e-5
_TURNED: Final = re.compile(r"h\.\d+\.(attn|mlp)\.c_\w+\.weight")
"""Matrices that the files hold the other way round."""
_MASKS: Final = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
"""Tables of older files, which say that attention is causal."""


class Gpt2(nn.Module):
    """A stack of blocks and the final norm.

    Args:
        spec: its shape; `max_positions` may be fewer than there are rows of positions.
        inner: width of the feed-forward parts.
        n_positions: rows of positions.
    """

    def __init__(self, spec: BackboneSpec, *, inner: int, n_positions: int) -> None:
        super().__init__()
        self.wpe = nn.Embedding(n_positions, spec.hidden)
        self.h = nn.ModuleList(_Block(spec, inner) for _ in range(spec.n_layers))
        self.ln_f = nn.LayerNorm(spec.hidden, eps=EPS)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `(N, hidden)` after the final norm, in the precision of `x`.

        Computed in that of the weights, which may be less: see `cast_decoders`.
        """
        given = x.dtype
        x = x.to(self.wpe.weight.dtype) + self.wpe(positions)
        for layer_idx, block in enumerate(self.h):
            x = block(x, attention, layer_idx)
        out: Tensor = self.ln_f(x).to(given)
        return out


class _Block(nn.Module):
    def __init__(self, spec: BackboneSpec, inner: int) -> None:
        super().__init__()
        hidden = spec.hidden
        self.head_dim = spec.head_dim
        self.ln_1 = nn.LayerNorm(hidden, eps=EPS)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(hidden, 3 * hidden), "c_proj": nn.Linear(hidden, hidden)}
        )
        self.ln_2 = nn.LayerNorm(hidden, eps=EPS)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(hidden, inner), "c_proj": nn.Linear(inner, hidden)}
        )

    def forward(self, x: Tensor, attention: Attention, layer_idx: int) -> Tensor:
        q, k, v = self.attn["c_attn"](self.ln_1(x)).unflatten(1, (3, -1, self.head_dim)).unbind(1)
        x = x + self.attn["c_proj"](attention(layer_idx, q, k, v).flatten(1))
        inner = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        out: Tensor = x + self.mlp["c_proj"](inner)
        return out


def load_gpt2(decoder: Gpt2, tensors: Mapping[str, Tensor], prefix: str, *, source: str) -> None:
    """Fill a decoder from `<prefix>h.N...`, `<prefix>wpe` and `<prefix>ln_f`; nothing may be left.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named as the file has them.
    """
    own = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(prefix)
        if not _MASKS.fullmatch(name):
            own[name] = tensor.T if _TURNED.fullmatch(name) else tensor
    names = {name: f"{prefix}{name}" for name in {*own, *decoder.state_dict()}}
    load_weights(decoder, own, source=source, names=names)
