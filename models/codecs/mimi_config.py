"""Shape of a Mimi checkpoint, by its config.

Source of the keys: `transformers` 5, `MimiConfig`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from models.checkpoint import Config

LATENT_STRIDE: Final = 2
"""Transformer positions a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MimiConfig:
    """Shape of a checkpoint, from its config.

    Args:
        sample_rate_hz: of the PCM.
        hidden: channels between convolutions and transformer.
        n_filters: channels of the layer next to the PCM.
        ratios: strides of the decoder's blocks.
        kernel: taps of the outer layers at the latent's side.
        last_kernel: taps of the layer next to the PCM (decoder) or the latent (encoder).
        residual_kernel: taps of a residual block.
        compress: channels of a residual block are its input's over this.
        n_codebooks: levels, the semantic one among them.
        n_semantic: levels of the semantic part.
        n_codes: in a codebook.
        code_dim: of a codebook entry.
        n_layers: of each transformer.
        n_heads: of its attention.
        head_dim: of a head.
        inner: of its feed-forward layers.
        window: positions that attention sees.
        theta: base of the rotary embedding.
        eps: of the norms.
    """

    sample_rate_hz: int
    hidden: int
    n_filters: int
    ratios: tuple[int, ...]
    kernel: int
    last_kernel: int
    residual_kernel: int
    compress: int
    n_codebooks: int
    n_semantic: int
    n_codes: int
    code_dim: int
    n_layers: int
    n_heads: int
    head_dim: int
    inner: int
    window: int
    theta: float
    eps: float

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a frame."""
        return LATENT_STRIDE * math.prod(self.ratios)


def mimi_config(config: Config) -> MimiConfig:
    """The shape in a config. Raises: `WeightError`, it names the key."""
    for key, value in (
        ("use_causal_conv", True),
        ("pad_mode", "constant"),
        ("trim_right_ratio", 1.0),
        ("use_conv_shortcut", False),
        ("num_residual_layers", 1),
        ("audio_channels", 1),
        ("attention_bias", False),
        ("hidden_act", "gelu"),
    ):
        config.expect(key, value)
    n_heads = config.integer("num_attention_heads")
    config.expect("num_key_value_heads", n_heads)
    rope = config.optional("rope_parameters")
    theta = config.number("rope_theta") if rope is None else _theta(config)
    read = MimiConfig(
        sample_rate_hz=config.integer("sampling_rate"),
        hidden=config.integer("hidden_size"),
        n_filters=config.integer("num_filters"),
        ratios=config.integers("upsampling_ratios"),
        kernel=config.integer("kernel_size"),
        last_kernel=config.integer("last_kernel_size"),
        residual_kernel=config.integer("residual_kernel_size"),
        compress=config.integer("compress"),
        n_codebooks=config.integer("num_quantizers"),
        n_semantic=config.integer("num_semantic_quantizers"),
        n_codes=config.integer("codebook_size"),
        code_dim=config.integer("codebook_dim"),
        n_layers=config.integer("num_hidden_layers"),
        n_heads=n_heads,
        head_dim=config.integer("head_dim"),
        inner=config.integer("intermediate_size"),
        window=config.integer("sliding_window"),
        theta=theta,
        eps=config.number("norm_eps"),
    )
    config.expect("vector_quantization_hidden_dimension", read.code_dim)
    config.expect("upsample_groups", read.hidden)
    config.expect("frame_rate", read.sample_rate_hz / read.samples_per_frame)
    return read


def _theta(config: Config) -> float:
    rope = config.part("rope_parameters")
    rope.expect("rope_type", "default")
    return rope.number("rope_theta")
