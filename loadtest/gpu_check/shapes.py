"""Decoders of the shapes that published families have, two layers deep, with random weights.

Kernels are built for a head size and chosen by the number of heads, so those are the real ones; all
other widths are small. A new family is taken in by a row of `SHAPES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from models.layers.rotary import Rotary
from models.layers.transformer import LLAMA, BlockStyle, Decoder
from models.spec import BackboneSpec

MAX_POSITIONS: Final = 128
HIDDEN: Final = 64
THETA: Final = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a decoder decides which kernels it runs, and how.

    Args:
        n_query_heads: of a layer.
        n_kv_heads: of a layer.
        head_dim: channels of a head.
        style: of its blocks.
        turned: share of a head's channels that are turned by position.
    """

    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    style: BlockStyle = LLAMA
    turned: float = 1.0

    @property
    def spec(self) -> BackboneSpec:
        """Of a small backbone."""
        return BackboneSpec(
            n_layers=2,
            n_query_heads=self.n_query_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            hidden=HIDDEN,
            max_positions=MAX_POSITIONS,
        )

    def decoder(self) -> Decoder:
        """A random one, the same each time; float32 on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            made = Decoder(self.spec, inner=HIDDEN, theta=THETA, style=self.style)
        if self.turned < 1:
            n_turned = round(self.turned * self.head_dim)
            inv_freq = THETA ** -(torch.arange(0, n_turned, 2, dtype=torch.float64) / n_turned)
            made.rotary = Rotary(
                self.head_dim,
                MAX_POSITIONS,
                THETA,
                is_interleaved=self.style.is_interleaved,
                inv_freq=inv_freq,
            )
        return made.requires_grad_(False)


_QWEN2: Final = BlockStyle(has_bias=True)
_QWEN3: Final = BlockStyle(qk_norm="head")
_OLMO2: Final = BlockStyle(qk_norm="row", norms="after")
_ZONOS: Final = BlockStyle(norm="layer", is_interleaved=True)
_GLM: Final = BlockStyle(has_bias=True, is_interleaved=True)
SHAPES: Final = {
    "orpheus": Shape(n_query_heads=24, n_kv_heads=8, head_dim=128),
    "csm": Shape(n_query_heads=32, n_kv_heads=8, head_dim=64),
    "qwen3-tts": Shape(n_query_heads=16, n_kv_heads=8, head_dim=128, style=_QWEN3),
    "zonos": Shape(n_query_heads=16, n_kv_heads=4, head_dim=128, style=_ZONOS),
    "opuslm": Shape(n_query_heads=32, n_kv_heads=32, head_dim=128, style=_OLMO2),
    "bagpiper": Shape(n_query_heads=32, n_kv_heads=8, head_dim=128, style=_QWEN3),
    "cosyvoice2": Shape(n_query_heads=14, n_kv_heads=2, head_dim=64, style=_QWEN2),
    "chatterbox": Shape(n_query_heads=16, n_kv_heads=16, head_dim=64),
    "glm4-voice": Shape(n_query_heads=32, n_kv_heads=2, head_dim=128, style=_GLM, turned=0.5),
    "step-audio2": Shape(n_query_heads=28, n_kv_heads=4, head_dim=128, style=_QWEN2),
}
"""By family: the backbones of the published checkpoints."""
HEAD_DIMS: Final = tuple(sorted({shape.head_dim for shape in SHAPES.values()}))
"""What kernels are built for."""
