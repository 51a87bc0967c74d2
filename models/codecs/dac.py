"""DAC: codes to PCM. The decoder only, by windows; nothing here encodes audio.

Source: Kumar et al. 2023; keys of the modules are those that `transformers` saves
(`descript/dac_44khz`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.checkpoint import fold_weight_norm, read_config, read_safetensors
from models.codecs.snake import (
    DILATIONS,
    KERNEL,
    Codebook,
    EdgeConv,
    Pointwise,
    Snake,
    Upsample,
    as_channels_last,
    decoding_part,
    reach_samples,
)
from models.errors import WeightError
from models.layers.conv import Span
from models.weights import load_weights

CHUNK_FRAMES: Final = (4, 8, 16, 24, 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class DacConfig:
    """Shape of a checkpoint, from its `config.json`.

    Args:
        sample_rate_hz: of the PCM.
        latent: channels that enter the decoder.
        decoder_channels: after its first layer.
        strides: of its blocks; their product is the samples of a frame.
        n_codebooks: codes in a frame.
        n_codes: in each codebook.
        code_dim: of a codebook entry.
    """

    sample_rate_hz: int
    latent: int
    decoder_channels: int
    strides: tuple[int, ...]
    n_codebooks: int
    n_codes: int
    code_dim: int

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a frame."""
        return math.prod(self.strides)

    @property
    def reach(self) -> int:
        """Frames to either side that change a frame's audio."""
        return math.ceil(reach_samples(self.strides) / self.samples_per_frame)


def read_dac_config(folder: Path) -> DacConfig:
    """The shape in `config.json` of a checkpoint. Raises: `WeightError`, it names the key."""
    config = read_config(folder / "config.json")
    read = DacConfig(
        sample_rate_hz=config.integer("sampling_rate"),
        latent=config.integer("hidden_size"),
        decoder_channels=config.integer("decoder_hidden_size"),
        strides=config.integers("upsampling_ratios"),
        n_codebooks=config.integer("n_codebooks"),
        n_codes=config.integer("codebook_size"),
        code_dim=config.integer("codebook_dim"),
    )
    config.expect("hop_length", read.samples_per_frame)
    if any(stride % 2 for stride in read.strides):
        raise WeightError(f"{config.source}: upsampling_ratios {read.strides} are not all even")
    return read


class Dac(nn.Module):
    """The decoder. Implements `models.codecs.windowed.FrameDecoder`.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: DacConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = config.samples_per_frame
        self.reach = config.reach
        self.quantizer = _Codebooks(config)
        self.decoder = DacDecoder(
            config.latent, config.decoder_channels, config.strides, is_bounded=True
        )

    def forward(self, codes: Tensor, span: Span) -> Tensor:
        """Codes `(B, T, Q)` to PCM `(B, T * samples_per_frame)` in [-1, 1]."""
        pcm: Tensor = self.decoder(as_channels_last(self.quantizer(codes)), span)
        return pcm


class _Codebooks(nn.Module):
    def __init__(self, config: DacConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(
            Codebook(config.n_codes, config.code_dim, config.latent)
            for _ in range(config.n_codebooks)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """The sum over codebooks, `(B, latent, T)`."""
        x = codes.new_zeros((), dtype=torch.float32)
        for level, quantizer in enumerate(self.quantizers):
            x = x + quantizer(codes[:, :, level])
        return x


class _Residual(nn.Module):
    def __init__(self, n_channels: int, dilation: int) -> None:
        super().__init__()
        self.snake1 = Snake(n_channels)
        self.conv1 = EdgeConv(n_channels, n_channels, KERNEL, dilation=dilation)
        self.snake2 = Snake(n_channels)
        self.conv2 = Pointwise(n_channels, n_channels)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        y = self.conv1(self.snake1(x), span, rate)
        out: Tensor = self.conv2(self.snake2(y)).add_(x)
        return out


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.snake1 = Snake(n_in)
        self.conv_t1 = Upsample(n_in, n_out, stride)
        self.res_unit1, self.res_unit2, self.res_unit3 = (_Residual(n_out, d) for d in DILATIONS)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        x = self.conv_t1(self.snake1(x), span, rate)
        for unit in (self.res_unit1, self.res_unit2, self.res_unit3):
            x = unit(x, span, rate * self.stride)
        return x


class DacDecoder(nn.Module):
    """Latents to PCM by upsampling blocks.

    Args:
        latent: channels that enter.
        width: channels after the first layer; each block halves them.
        strides: of the blocks.
        is_bounded: a tanh at the end.
    """

    def __init__(
        self, latent: int, width: int, strides: tuple[int, ...], *, is_bounded: bool
    ) -> None:
        super().__init__()
        self.strides = strides
        self.is_bounded = is_bounded
        self.conv1 = EdgeConv(latent, width, KERNEL)
        self.block = nn.ModuleList(
            _Block(width >> idx, width >> (idx + 1), stride) for idx, stride in enumerate(strides)
        )
        n_last = width >> len(strides)
        self.snake1 = Snake(n_last)
        self.conv2 = EdgeConv(n_last, 1, KERNEL)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        """Map `(B, latent, 1, T)`, channels last, to `(B, T * samples_per_frame)`."""
        x, rate = self.conv1(x, span, 1), 1
        for stride, block in zip(self.strides, self.block, strict=True):
            x = block(x, span, rate)
            rate *= stride
        pcm: Tensor = self.conv2(self.snake1(x), span, rate)[:, 0, 0]
        return torch.tanh(pcm) if self.is_bounded else pcm


def load_dac(folder: Path) -> Dac:
    """The decoder of a checkpoint folder (`config.json`, `model.safetensors`), on the CPU.

    Raises:
        WeightError: a file is missing or damaged, or does not fit; keys are named.
    """
    model = Dac(read_dac_config(folder))
    tensors = decoding_part(fold_weight_norm(read_safetensors(folder)))
    load_weights(model, tensors, source=f"{folder.name}/model.safetensors")
    return model.requires_grad_(False)
