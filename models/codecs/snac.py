"""SNAC: codes on several time scales to PCM. The decoder only; nothing here encodes audio.

Source: Siuzdak et al. 2024, `snac` 1.2.1 (MIT). Keys of the modules are those of its checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.checkpoint import fold_weight_norm, read_config, read_torch_file
from models.codecs.snake import (
    DILATIONS,
    KERNEL,
    Codebook,
    EdgeConv,
    Pointwise,
    ResidualUnit,
    Snake,
    Upsample,
    as_channels_last,
    decoding_part,
    reach_samples,
)
from models.errors import WeightError
from models.layers.conv import Span
from models.weights import load_weights

REACH: Final = 3
"""Frames to either side that change a frame: 4697 samples with the 24 kHz model's strides, of 2048
each. Checked against the strides when a model is made."""
NOISE_SAMPLES: Final = 1 << 16
"""Length of the noise that a noise block repeats: 2.7 s at 24 kHz, and it is only a gain."""
_NOISE_SEED: Final = 20_240_614
WEIGHTS_FILE: Final = "pytorch_model.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnacConfig:
    """Shape of a checkpoint, from its `config.json`.

    Args:
        sample_rate_hz: of the PCM.
        latent: channels that enter the decoder.
        decoder_channels: after its first layer.
        decoder_strides: of its blocks; their product is the samples of the finest code.
        n_codes: in each codebook.
        code_dim: of a codebook entry.
        vq_strides: finest steps that a code of each level lasts, coarsest first.
        has_noise: the blocks have noise.
        is_depthwise: convolutions are depthwise.
    """

    sample_rate_hz: int
    latent: int
    decoder_channels: int
    decoder_strides: tuple[int, ...]
    n_codes: int
    code_dim: int
    vq_strides: tuple[int, ...]
    has_noise: bool
    is_depthwise: bool

    @property
    def codes_per_frame(self) -> tuple[int, ...]:
        """Codes of each level in a frame; a frame is one code of the coarsest level."""
        return tuple(self.vq_strides[0] // stride for stride in self.vq_strides)

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a frame."""
        return self.vq_strides[0] * math.prod(self.decoder_strides)


def read_snac_config(folder: Path) -> SnacConfig:
    """The shape in `config.json` of a checkpoint. Raises: `WeightError`, it names the key."""
    config = read_config(folder / "config.json")
    if config.optional("attn_window_size") is not None:
        raise WeightError(
            f"{config.source}: attn_window_size is set; SNAC with attention is not known"
        )
    strides = config.integers("encoder_rates")
    latent = config.optional("latent_dim")
    decoder_strides = config.integers("decoder_rates")
    if math.prod(strides) != math.prod(decoder_strides):
        raise WeightError(f"{config.source}: encoder_rates and decoder_rates do not agree")
    return SnacConfig(
        sample_rate_hz=config.integer("sampling_rate"),
        latent=config.integer("encoder_dim") * 2 ** len(strides)
        if latent is None
        else config.integer("latent_dim"),
        decoder_channels=config.integer("decoder_dim"),
        decoder_strides=decoder_strides,
        n_codes=config.integer("codebook_size"),
        code_dim=config.integer("codebook_dim"),
        vq_strides=config.integers("vq_strides"),
        has_noise=config.flag("noise"),
        is_depthwise=config.flag("depthwise"),
    )


class Snac(nn.Module):
    """The decoder. Implements `models.codecs.windowed.FrameDecoder`.

    A frame holds its codes by level: one of the coarsest, then those of the next in time, etc.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = config.samples_per_frame
        self.reach = REACH
        assert reach_samples(config.decoder_strides) <= REACH * self.samples_per_frame, (
            "REACH is of other strides"
        )
        self.quantizer = _Codebooks(config)
        self.decoder = _Decoder(config)

    def forward(self, codes: Tensor, span: Span) -> Tensor:
        """Codes `(B, T, Q)` to PCM `(B, T * samples_per_frame)` in [-1, 1]."""
        pcm: Tensor = self.decoder(as_channels_last(self.quantizer(codes)), span)
        return pcm


class _Codebooks(nn.Module):
    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizers = nn.ModuleList(
            Codebook(config.n_codes, config.code_dim, config.latent) for _ in config.vq_strides
        )

    def forward(self, codes: Tensor) -> Tensor:
        """The sum over levels, `(B, latent, T * finest codes a frame)`."""
        levels = torch.split(codes, list(self.config.codes_per_frame), dim=2)
        x = codes.new_zeros((), dtype=torch.float32)
        for quantizer, level, stride in zip(
            self.quantizers, levels, self.config.vq_strides, strict=True
        ):
            x = x + quantizer(level.flatten(1)).repeat_interleave(stride, dim=-1)
        return x


class _Noise(nn.Module):
    """`x * (1 + noise)` through a matrix; the noise is a fixed function of time.

    Drawn anew it would differ between takes, neighbours and chunk patterns.
    """

    noise: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.linear = Pointwise(n_channels, n_channels, has_bias=False)
        self.register_buffer("noise", noise_table(), persistent=False)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        first = (span.start * rate).unsqueeze(1)
        time = first + torch.arange(x.shape[3], device=x.device)
        noise = self.noise[time % NOISE_SAMPLES].view(len(x), 1, 1, -1)
        out: Tensor = self.linear(x).mul_(noise).add_(x)
        return out


class _Block(nn.Module):
    """Snake, upsampling, noise, three residual units."""

    def __init__(self, n_in: int, n_out: int, stride: int, config: SnacConfig) -> None:
        super().__init__()
        groups = n_out if config.is_depthwise else 1
        self.stride = stride
        self.block = nn.ModuleList(
            [
                Snake(n_in),
                Upsample(n_in, n_out, stride),
                *([_Noise(n_out)] if config.has_noise else []),
                *(ResidualUnit(n_out, dilation, groups) for dilation in DILATIONS),
            ]
        )

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        snake, upsample, *rest = self.block
        x = upsample(snake(x), span, rate)
        for layer in rest:
            x = layer(x, span, rate * self.stride)
        return x


class _Decoder(nn.Module):
    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        self.rate = config.vq_strides[0]
        width = config.decoder_channels
        if config.is_depthwise:
            entry: list[nn.Module] = [
                EdgeConv(config.latent, config.latent, KERNEL, groups=config.latent),
                Pointwise(config.latent, width),
            ]
        else:
            entry = [EdgeConv(config.latent, width, KERNEL)]
        blocks = [
            _Block(width >> idx, width >> (idx + 1), stride, config)
            for idx, stride in enumerate(config.decoder_strides)
        ]
        n_last = width >> len(blocks)
        self.model = nn.ModuleList([*entry, *blocks, Snake(n_last), EdgeConv(n_last, 1, KERNEL)])

    def forward(self, x: Tensor, span: Span) -> Tensor:
        rate = self.rate
        for layer in self.model:
            if isinstance(layer, _Block):
                x = layer(x, span, rate)
                rate *= layer.stride
            else:
                x = layer(x, span, rate) if isinstance(layer, EdgeConv) else layer(x)
        return torch.tanh(x[:, 0, 0])


def load_snac(folder: Path) -> Snac:
    """The decoder of a checkpoint folder (`config.json`, `pytorch_model.bin`), on the CPU.

    Raises:
        WeightError: a file is missing or damaged, or does not fit; keys are named.
    """
    model = Snac(read_snac_config(folder))
    path = folder / WEIGHTS_FILE
    tensors = fold_weight_norm(read_torch_file(path))
    load_weights(model, decoding_part(tensors), source=str(path))
    return model.requires_grad_(False)


def noise_table() -> Tensor:
    """Standard normal draws `(NOISE_SAMPLES,)`, always the same."""
    generator = torch.Generator().manual_seed(_NOISE_SEED)
    return torch.randn(NOISE_SAMPLES, generator=generator)
