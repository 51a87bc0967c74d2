"""Mimi: 12.5 frames a second of one semantic and many acoustic codes, both ways, causal.

Source: Defossez et al. 2024 (Moshi), section 3.3; layout of the keys as in the checkpoint
`kyutai/mimi` (CC-BY 4.0). Decoding streams with all state; encoding takes a whole signal.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.codecs.causal import (
    CLOCK,
    CausalCodec,
    CausalConv,
    CausalUpsample,
    Memory,
    WindowAttention,
    WindowLayer,
    WindowTransformer,
)
from models.codecs.codebooks import codebook, stacked
from models.codecs.mimi_config import LATENT_STRIDE, MimiConfig
from models.codecs.mimi_layouts import from_moshi, is_moshi_layout
from models.spec import StateSpec
from models.weights import load_weights


class Mimi(CausalCodec):
    """The codec.

    Args:
        config: shape of the weights.
    """

    chunk_frames = (1, 2, 4, 8, 16)

    def __init__(self, config: MimiConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = config.samples_per_frame
        hidden = config.hidden
        self.encoder = _Encoder(config)
        self.encoder_transformer = _transformer(config)
        self.downsample = _downsample(config)
        self.quantizer = _Quantizer(config)
        self.upsample = CausalUpsample(
            hidden, hidden, LATENT_STRIDE, name="upsample", groups=hidden, has_bias=False
        )
        self.decoder_transformer = _transformer(config)
        self.decoder = _Decoder(config)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream's decoding remembers."""
        return (
            CLOCK,
            *self.upsample.states,
            *self.decoder_transformer.states,
            *self.decoder.states,
        )

    def pcm(self, frames: Tensor, memory: Memory) -> Tensor:
        """See `CausalCodec.pcm`."""
        x = self.upsample(self.quantizer.decode(frames), memory)
        x = self.decoder_transformer(x.transpose(1, 2), memory).transpose(1, 2)
        pcm: Tensor = self.decoder(x, memory)[:, 0]
        return pcm

    def encode(self, pcm: Tensor) -> Tensor:
        """Codes `(B, T, Q)` of whole signals `(B, n)`; the last frame is padded with silence."""
        return _codes(self, pcm)


class MimiEncoder(nn.Module):
    """What of Mimi turns PCM to codes: other codecs listen with it.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: MimiConfig) -> None:
        super().__init__()
        self.encoder = _Encoder(config)
        self.encoder_transformer = _transformer(config)
        self.downsample = _downsample(config)
        self.quantizer = _Quantizer(config)

    def encode(self, pcm: Tensor) -> Tensor:
        """See `Mimi.encode`."""
        return _codes(self, pcm)


def _codes(model: Mimi | MimiEncoder, pcm: Tensor) -> Tensor:
    x = model.encoder(pcm.unsqueeze(1))
    x = model.encoder_transformer.whole(x.transpose(1, 2)).transpose(1, 2)
    return model.quantizer.encode(model.downsample.whole(x))


def _downsample(config: MimiConfig) -> CausalConv:
    return CausalConv(
        config.hidden,
        config.hidden,
        2 * LATENT_STRIDE,
        stride=LATENT_STRIDE,
        has_bias=False,
        padding="replicate",
    )


class _Residual(nn.Module):
    def __init__(self, n_channels: int, config: MimiConfig, name: str) -> None:
        super().__init__()
        inner = n_channels // config.compress
        self.block = nn.ModuleList(
            [
                nn.ELU(),
                CausalConv(n_channels, inner, config.residual_kernel, name=name),
                nn.ELU(),
                CausalConv(inner, n_channels, 1),
            ]
        )

    @property
    def states(self) -> tuple[StateSpec, ...]:
        first = self.block[1]
        assert isinstance(first, CausalConv), "made so"
        return first.states

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        elu, first, elu_again, second = self.block
        out: Tensor = x + second(elu_again(first(elu(x), memory)), memory)
        return out

    def whole(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.block:
            y = layer.whole(y) if isinstance(layer, CausalConv) else layer(y)
        return x + y


class _Decoder(nn.Module):
    def __init__(self, config: MimiConfig) -> None:
        super().__init__()
        width = config.n_filters << len(config.ratios)
        layers: list[nn.Module] = [
            CausalConv(config.hidden, width, config.kernel, name="decoder.0")
        ]
        for ratio in config.ratios:
            layers.append(nn.ELU())
            layers.append(CausalUpsample(width, width // 2, ratio, name=f"decoder.{len(layers)}"))
            width //= 2
            layers.append(_Residual(width, config, f"decoder.{len(layers)}"))
        layers.append(nn.ELU())
        layers.append(CausalConv(width, 1, config.last_kernel, name=f"decoder.{len(layers)}"))
        self.layers = nn.ModuleList(layers)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        kinds = (CausalConv, CausalUpsample, _Residual)
        return tuple(s for layer in self.layers if isinstance(layer, kinds) for s in layer.states)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        for layer in self.layers:
            x = layer(x) if isinstance(layer, nn.ELU) else layer(x, memory)
        return x


class _Encoder(nn.Module):
    def __init__(self, config: MimiConfig) -> None:
        super().__init__()
        width = config.n_filters
        layers: list[nn.Module] = [CausalConv(1, width, config.kernel)]
        for ratio in reversed(config.ratios):
            layers.append(_Residual(width, config, ""))
            layers.append(nn.ELU())
            layers.append(CausalConv(width, 2 * width, 2 * ratio, stride=ratio))
            width *= 2
        layers += [nn.ELU(), CausalConv(width, config.hidden, config.last_kernel)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.whole(x) if isinstance(layer, CausalConv | _Residual) else layer(x)
        return x


class _Level(nn.Module):
    """Codebooks of one part, the semantic or the acoustic one, and the way in and out."""

    tables: Tensor

    def __init__(self, config: MimiConfig, n_levels: int) -> None:
        super().__init__()
        self.register_buffer("tables", torch.zeros(n_levels, config.n_codes, config.code_dim))
        self.input_proj = nn.Conv1d(config.hidden, config.code_dim, 1, bias=False)
        self.output_proj = nn.Conv1d(config.code_dim, config.hidden, 1, bias=False)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes `(B, T, levels)` to `(B, hidden, T)`."""
        levels = torch.arange(len(self.tables), device=codes.device)
        out: Tensor = self.output_proj(self.tables[levels, codes].sum(2).transpose(1, 2))
        return out

    def encode(self, x: Tensor) -> Tensor:
        """`(B, hidden, T)` to the nearest codes, level by level, `(B, T, levels)`."""
        left = self.input_proj(x).transpose(1, 2)
        codes = []
        for table in self.tables:
            nearest = torch.cdist(left, table.expand(len(left), -1, -1)).argmin(dim=2)
            left = left - table[nearest]
            codes.append(nearest)
        return torch.stack(codes, dim=2)


class _Quantizer(nn.Module):
    def __init__(self, config: MimiConfig) -> None:
        super().__init__()
        self.n_semantic = config.n_semantic
        n_acoustic = config.n_codebooks - config.n_semantic
        self.semantic_residual_vector_quantizer = _Level(config, config.n_semantic)
        self.acoustic_residual_vector_quantizer = _Level(config, n_acoustic)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes `(B, T, Q)` to `(B, hidden, T)`."""
        semantic = self.semantic_residual_vector_quantizer.decode(codes[:, :, : self.n_semantic])
        acoustic = self.acoustic_residual_vector_quantizer.decode(codes[:, :, self.n_semantic :])
        return semantic + acoustic

    def encode(self, x: Tensor) -> Tensor:
        """`(B, hidden, T)` to codes `(B, T, Q)`."""
        semantic = self.semantic_residual_vector_quantizer.encode(x)
        acoustic = self.acoustic_residual_vector_quantizer.encode(x)
        return torch.cat([semantic, acoustic], dim=2)


class _FeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, inner, bias=False)
        self.fc2 = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return out


def load_mimi(
    config: MimiConfig, tensors: Mapping[str, Tensor], *, source: str, prefix: str = ""
) -> Mimi:
    """The codec from the weights of a checkpoint, keys as in `kyutai/mimi` or as Moshi has them.

    Args:
        config: shape of the weights.
        tensors: by key, without `prefix`.
        source: the file, for messages.
        prefix: what stands before all keys in it.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    if is_moshi_layout(tensors):
        tensors = from_moshi(tensors, config, source=source)
    model = Mimi(config)
    _load(model, tensors, source, prefix)
    return model


def load_mimi_encoder(
    config: MimiConfig, tensors: Mapping[str, Tensor], *, source: str, prefix: str = ""
) -> MimiEncoder:
    """As `load_mimi`; the tensors are the encoder's and the quantizer's alone."""
    model = MimiEncoder(config)
    _load(model, tensors, source, prefix)
    return model


def _load(model: nn.Module, tensors: Mapping[str, Tensor], source: str, prefix: str) -> None:
    """Codebooks as tables, in place of the sums and usages that training keeps; the rest as it is.

    Raises:
        WeightError: see `load_mimi`.
    """
    joined, parts = {}, dict[str, dict[int, dict[str, Tensor]]]()
    for key, tensor in tensors.items():
        part, found, rest = key.partition(".layers.")
        if not found or not part.endswith("_residual_vector_quantizer"):
            joined[key] = tensor
            continue
        level, _, name = rest.partition(".codebook.")
        parts.setdefault(part, {}).setdefault(int(level), {})[name] = tensor
    names = {
        key: f"{prefix}{key.removesuffix('tables')}layers"
        for key in model.state_dict()
        if key.endswith(".tables")
    }
    for part, levels in parts.items():
        place = f"{source}: {prefix}{part}.layers"
        tables = [codebook(levels[n], "embed_sum", f"{place}.{n}.codebook") for n in sorted(levels)]
        joined[f"{part}.tables"] = stacked(tables, place)
    load_weights(model, joined, source=source, names=names, prefix=prefix)
    model.requires_grad_(False)


def _transformer(config: MimiConfig) -> WindowTransformer:
    size = config.hidden
    layers = [
        WindowLayer(
            WindowAttention(size, config.n_heads, config.head_dim, config.window),
            _FeedForward(size, config.inner),
            (nn.LayerNorm(size, eps=config.eps), nn.LayerNorm(size, eps=config.eps)),
            size,
        )
        for _ in range(config.n_layers)
    ]
    return WindowTransformer(layers, rate=LATENT_STRIDE, theta=config.theta)
