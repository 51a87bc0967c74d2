"""The 12 Hz codec of Qwen3-TTS, codes to PCM: causal throughout, its state kept between chunks.

Source: `qwen-tts` 0.1.1, `tokenizer_12hz` (Apache-2.0). Keys of the modules are those of its
checkpoints, but for feed-forward layers and codebooks, which are joined when they are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from models.checkpoint import Config
from models.codecs.causal import (
    CLOCK,
    DTYPES,
    CausalCodec,
    CausalConv,
    CausalUpsample,
    Memory,
    WindowAttention,
    WindowLayer,
    WindowTransformer,
)
from models.layers.mlp import SwiGLU
from models.layers.norm import RMSNorm
from models.spec import StateSpec

DILATIONS: Final = (1, 3, 9)
N_SEMANTIC: Final = 1
REACH_FRAMES: Final = 24
"""More than the convolutions behind the transformer look back: 12 are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenCodecConfig:
    """Shape of the decoder, from its config.

    Args:
        sample_rate_hz: of the PCM.
        n_codebooks: levels, the semantic one first.
        n_codes: in a codebook.
        code_dim: channels that the codebooks sum up to; an entry has half of them.
        latent: channels around the transformer.
        hidden: width of the transformer.
        inner: of its feed-forward layers.
        n_layers: of it.
        n_heads: of its attention.
        head_dim: of a head.
        window: positions that attention sees.
        theta: base of the rotary embedding.
        eps: of the norms.
        first_strides: of the upsampling right behind the transformer.
        decoder_dim: channels of the first decoder block.
        strides: of the decoder blocks.
    """

    sample_rate_hz: int
    n_codebooks: int
    n_codes: int
    code_dim: int
    latent: int
    hidden: int
    inner: int
    n_layers: int
    n_heads: int
    head_dim: int
    window: int
    theta: float
    eps: float
    first_strides: tuple[int, ...]
    decoder_dim: int
    strides: tuple[int, ...]

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a frame."""
        return math.prod(self.first_strides) * math.prod(self.strides)


def qwen_codec_config(config: Config) -> QwenCodecConfig:
    """The shape in the `config.json` of the codec. Raises: `WeightError`, it names the key."""
    decoder = config.part("decoder_config")
    for key, value in (("attention_bias", False), ("hidden_act", "silu")):
        decoder.expect(key, value)
    n_heads = decoder.integer("num_attention_heads")
    decoder.expect("num_key_value_heads", n_heads)
    read = QwenCodecConfig(
        sample_rate_hz=config.integer("output_sample_rate"),
        n_codebooks=decoder.integer("num_quantizers"),
        n_codes=decoder.integer("codebook_size"),
        code_dim=decoder.integer("codebook_dim"),
        latent=decoder.integer("latent_dim"),
        hidden=decoder.integer("hidden_size"),
        inner=decoder.integer("intermediate_size"),
        n_layers=decoder.integer("num_hidden_layers"),
        n_heads=n_heads,
        head_dim=decoder.integer("head_dim"),
        window=decoder.integer("sliding_window"),
        theta=decoder.number("rope_theta"),
        eps=decoder.number("rms_norm_eps"),
        first_strides=decoder.integers("upsampling_ratios"),
        decoder_dim=decoder.integer("decoder_dim"),
        strides=decoder.integers("upsample_rates"),
    )
    config.expect("decode_upsample_rate", read.samples_per_frame)
    return read


class QwenCodec(CausalCodec):
    """The decoder of the codec.

    Args:
        config: shape of the weights.
    """

    chunk_frames = (1, 2, 4, 8, 12, 24)

    def __init__(self, config: QwenCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = config.samples_per_frame
        self.quantizer = _Quantizer(config)
        self.pre_conv = CausalConv(config.code_dim, config.latent, 3, name="pre_conv")
        self.pre_transformer = _Transformer(config)
        self.upsample = nn.ModuleList(
            _FirstUpsample(config.latent, stride, f"upsample.{idx}")
            for idx, stride in enumerate(config.first_strides)
        )
        self.decoder = _Decoder(config)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream remembers."""
        upsample = [s for one in self.upsample for s in _states_of(one)]
        return (
            CLOCK,
            *self.pre_conv.states,
            *self.pre_transformer.layers_.states,
            *upsample,
            *self.decoder.states,
        )

    def pcm(self, frames: Tensor, memory: Memory) -> Tensor:
        """See `CausalCodec.pcm`."""
        return self._sound(self._latent(frames, memory), memory)

    def state_after(self, frames: Tensor) -> dict[str, Tensor]:
        """What a stream remembers that has had `frames` `(T, Q)`, by name.

        The convolutions behind the transformer look back a few frames only, and most of the work is
        theirs: they are given the last frames alone.
        """
        zeros = {one.name: _zeros(one, self.pre_conv.conv.weight.device) for one in self.states}
        memory = Memory(zeros)
        latent = self._latent(frames.unsqueeze(0), memory)
        self._sound(latent[:, :, -REACH_FRAMES:], memory)
        memory.advance(len(frames))
        return {name: tensor[0] for name, tensor in memory.after.items()}

    def _latent(self, frames: Tensor, memory: Memory) -> Tensor:
        x = self.pre_conv(self.quantizer(frames), memory)
        latent: Tensor = self.pre_transformer(x.transpose(1, 2), memory).transpose(1, 2)
        return latent

    def _sound(self, x: Tensor, memory: Memory) -> Tensor:
        for layer in self.upsample:
            x = layer(x, memory)
        pcm: Tensor = self.decoder(x, memory)[:, 0]
        return pcm


class SnakeBeta(nn.Module):
    """`x + sin(exp(a) * x)**2 / exp(b)`, two parameters a channel. Source: Ziyin et al. 2020."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(n_channels))
        self.beta = nn.Parameter(torch.zeros(n_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        alpha, beta = self.alpha.exp().unsqueeze(-1), self.beta.exp().unsqueeze(-1)
        return x + (beta + 1e-9).reciprocal() * torch.sin(alpha * x).square()


class _Codebooks(nn.Module):
    tables: Tensor

    def __init__(self, config: QwenCodecConfig, n_levels: int) -> None:
        super().__init__()
        width = config.code_dim // 2
        self.register_buffer("tables", torch.zeros(n_levels, config.n_codes, width))
        self.output_proj = nn.Conv1d(width, config.code_dim, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        levels = torch.arange(len(self.tables), device=codes.device)
        out: Tensor = self.output_proj(self.tables[levels, codes].sum(2).transpose(1, 2))
        return out


class _Quantizer(nn.Module):
    def __init__(self, config: QwenCodecConfig) -> None:
        super().__init__()
        self.rvq_first = _Codebooks(config, N_SEMANTIC)
        self.rvq_rest = _Codebooks(config, config.n_codebooks - N_SEMANTIC)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes `(B, T, Q)` to `(B, code_dim, T)`."""
        first: Tensor = self.rvq_first(codes[:, :, :N_SEMANTIC])
        rest: Tensor = self.rvq_rest(codes[:, :, N_SEMANTIC:])
        return first + rest


class _Transformer(nn.Module):
    """Layers over a window, between two projections.

    Keys and values are remembered in half precision: they are most of a stream's state.
    """

    def __init__(self, config: QwenCodecConfig) -> None:
        super().__init__()
        size = config.hidden
        layers = [
            WindowLayer(
                WindowAttention(size, config.n_heads, config.head_dim, config.window),
                SwiGLU(size, config.inner),
                (RMSNorm(size, config.eps), RMSNorm(size, config.eps)),
                size,
            )
            for _ in range(config.n_layers)
        ]
        self.layers_ = WindowTransformer(layers, rate=1, theta=config.theta, dtype="float16")
        self.norm = RMSNorm(size, config.eps)
        self.input_proj = nn.Linear(config.latent, size)
        self.output_proj = nn.Linear(size, config.latent)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        out: Tensor = self.output_proj(self.norm(self.layers_(self.input_proj(x), memory)))
        return out


class _ConvNeXt(nn.Module):
    """Source: Liu et al. 2022, figure 4, causal."""

    def __init__(self, n_channels: int, name: str) -> None:
        super().__init__()
        self.dwconv = CausalConv(n_channels, n_channels, 7, name=name, groups=n_channels)
        self.norm = nn.LayerNorm(n_channels, eps=1e-6)
        self.pwconv1 = nn.Linear(n_channels, 4 * n_channels)
        self.pwconv2 = nn.Linear(4 * n_channels, n_channels)
        self.gamma = nn.Parameter(torch.ones(n_channels))

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        y = self.norm(self.dwconv(x, memory).transpose(1, 2))
        y = self.gamma * self.pwconv2(nn.functional.gelu(self.pwconv1(y)))
        out: Tensor = x + y.transpose(1, 2)
        return out


class _FirstUpsample(nn.ModuleList):
    def __init__(self, n_channels: int, stride: int, name: str) -> None:
        super().__init__(
            [
                CausalUpsample(n_channels, n_channels, stride, name=name, n_context=0),
                _ConvNeXt(n_channels, f"{name}.1"),
            ]
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        upsample, block = self
        out: Tensor = block(upsample(x, memory), memory)
        return out


class _Residual(nn.Module):
    def __init__(self, n_channels: int, dilation: int, name: str) -> None:
        super().__init__()
        self.act1 = SnakeBeta(n_channels)
        self.conv1 = CausalConv(n_channels, n_channels, 7, name=name, dilation=dilation)
        self.act2 = SnakeBeta(n_channels)
        self.conv2 = CausalConv(n_channels, n_channels, 1)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        y = self.conv1(self.act1(x), memory)
        out: Tensor = x + self.conv2(self.act2(y), memory)
        return out


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int, name: str) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                SnakeBeta(n_in),
                CausalUpsample(n_in, n_out, stride, name=name),
                *(_Residual(n_out, d, f"{name}.{n}") for n, d in enumerate(DILATIONS, start=2)),
            ]
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        snake, *rest = self.block
        x = snake(x)
        for layer in rest:
            x = layer(x, memory)
        return x


class _Decoder(nn.ModuleList):
    def __init__(self, config: QwenCodecConfig) -> None:
        width = config.decoder_dim
        layers: list[nn.Module] = [CausalConv(config.latent, width, 7, name="decoder.0")]
        for stride in config.strides:
            layers.append(_Block(width, width // 2, stride, f"decoder.{len(layers)}"))
            width //= 2
        layers.append(SnakeBeta(width))
        layers.append(CausalConv(width, 1, 7, name=f"decoder.{len(layers)}"))
        super().__init__(layers)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        return tuple(s for layer in self for s in _states_of(layer))

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        for layer in self:
            x = layer(x) if isinstance(layer, SnakeBeta) else layer(x, memory)
        return x


def _zeros(state: StateSpec, device: torch.device) -> Tensor:
    return torch.zeros((1, *state.shape), dtype=DTYPES[state.dtype], device=device)


def _states_of(module: nn.Module) -> tuple[StateSpec, ...]:
    kinds = (CausalConv, CausalUpsample)
    return tuple(s for one in module.modules() if isinstance(one, kinds) for s in one.states)
