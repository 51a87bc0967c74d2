"""The speaker encoder of Base checkpoints: a recording to one vector, by ECAPA-TDNN.

Source: `qwen-tts` 0.1.1, `modeling_qwen3_tts.py` (Apache-2.0); Desplanques et al. 2020, ECAPA-TDNN.
Names of the modules are those of the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.mel import vocoder_mel
from models.checkpoint import Config
from models.errors import WeightError

N_FFT: Final = 1024
HOP: Final = 256
HIGH_HZ: Final = 12_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerConfig:
    """Shape of the encoder.

    Args:
        rate_hz: of the PCM.
        size: of the vector.
        n_mels: of the spectra.
        channels: of the first layer, the blocks, and the layer that joins them.
        kernels: of each.
        dilations: of each.
        n_attention: channels of the pooling's attention.
        n_squeezed: channels of the blocks' gains.
        scale: parts that a block's channels are cut into.
    """

    rate_hz: int
    size: int
    n_mels: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    n_attention: int
    n_squeezed: int
    scale: int

    def __post_init__(self) -> None:
        """Refuse lists that do not go together."""
        if not len(self.channels) == len(self.kernels) == len(self.dilations) > 2:
            raise WeightError(
                "config.json: enc_channels, enc_kernel_sizes and enc_dilations differ"
            )


def speaker_config(config: Config) -> SpeakerConfig:
    """The shape in `speaker_encoder_config`.

    Published files state the size of the vector and the rate alone; for the rest the reference's
    defaults stand, which the shapes of the weights confirm, but for the dilations.

    Raises:
        WeightError: it names the key.
    """

    def number(key: str, default: int) -> int:
        return default if config.optional(key) is None else config.integer(key)

    def numbers(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return default if config.optional(key) is None else config.integers(key)

    return SpeakerConfig(
        rate_hz=config.integer("sample_rate"),
        size=config.integer("enc_dim"),
        n_mels=number("mel_dim", 128),
        channels=numbers("enc_channels", (512, 512, 512, 512, 1536)),
        kernels=numbers("enc_kernel_sizes", (5, 3, 3, 3, 1)),
        dilations=numbers("enc_dilations", (1, 2, 3, 4, 1)),
        n_attention=number("enc_attention_channels", 128),
        n_squeezed=number("enc_se_channels", 128),
        scale=number("enc_res2net_scale", 8),
    )


class SpeakerEncoder(nn.Module):
    """The encoder.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        self.config = config
        first, *middle, joined = zip(config.channels, config.kernels, config.dilations, strict=True)
        blocks: list[nn.Module] = [_Layer(config.n_mels, *first)]
        blocks += [_Block(config, *shape) for shape in middle]
        self.blocks = nn.ModuleList(blocks)
        self.mfa = _Layer(joined[0], *joined)
        self.asp = _Pooling(joined[0], config.n_attention)
        self.fc = _conv(2 * joined[0], config.size)

    def forward(self, pcm: Tensor) -> Tensor:
        """The vector `(size,)` of PCM `(n,)`."""
        mel = vocoder_mel(
            pcm,
            n_mels=self.config.n_mels,
            n_fft=N_FFT,
            hop=HOP,
            rate_hz=self.config.rate_hz,
            high_hz=HIGH_HZ,
        )
        x: Tensor = mel.unsqueeze(0).to(self.fc.weight.dtype)
        given = []
        for block in self.blocks:
            x = block(x)
            given.append(x)
        vector: Tensor = self.fc(self.asp(self.mfa(torch.cat(given[1:], dim=1))))
        return vector[0, :, 0]


class _Layer(nn.Module):
    def __init__(self, n_in: int, n_out: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _conv(n_in, n_out, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.conv(x))


class _Parts(nn.Module):
    """Channels in parts; each but the first two hears what the one before it gave."""

    def __init__(self, n_channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        width = n_channels // scale
        self.blocks = nn.ModuleList(
            _Layer(width, width, kernel, dilation) for _ in range(scale - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(self.scale, dim=1)
        given, before = [first], torch.zeros_like(first)
        for part, layer in zip(rest, self.blocks, strict=True):
            before = layer(part + before)
            given.append(before)
        return torch.cat(given, dim=1)


class _Gains(nn.Module):
    """A gain for each channel, by the channels' means."""

    def __init__(self, n_channels: int, n_squeezed: int) -> None:
        super().__init__()
        self.conv1 = _conv(n_channels, n_squeezed)
        self.conv2 = _conv(n_squeezed, n_channels)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = nn.functional.relu(self.conv1(x.mean(dim=2, keepdim=True)))
        gains: Tensor = self.conv2(squeezed).sigmoid()
        return x * gains


class _Block(nn.Module):
    def __init__(self, config: SpeakerConfig, n_channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = _Layer(n_channels, n_channels)
        self.res2net_block = _Parts(n_channels, config.scale, kernel, dilation)
        self.tdnn2 = _Layer(n_channels, n_channels)
        self.se_block = _Gains(n_channels, config.n_squeezed)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return out


class _Pooling(nn.Module):
    """Mean and deviation over time, weighted by an attention that has heard the plain ones."""

    def __init__(self, n_channels: int, n_attention: int) -> None:
        super().__init__()
        self.tdnn = _Layer(3 * n_channels, n_attention)
        self.conv = _conv(n_attention, n_channels)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x, 1 / x.shape[2])
        heard = torch.cat([x, *(one.expand_as(x) for one in _moments(x, even))], dim=1)
        weights = self.conv(self.tdnn(heard).tanh()).softmax(dim=2)
        return torch.cat(_moments(x, weights), dim=1)


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


def _conv(n_in: int, n_out: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(n_in, n_out, kernel, dilation=dilation, padding="same", padding_mode="reflect")
