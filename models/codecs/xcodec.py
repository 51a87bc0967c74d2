"""X-Codec: codes to PCM. The decoder only, by windows: DAC's decoder over Euclidean codebooks.

Source: Ye et al. 2024 (X-Codec); keys of the modules are those that `transformers` saves
(`hf-audio/xcodec-hubert-general`). The semantic half of the codec serves encoding alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.checkpoint import fold_weight_norm, read_config, read_safetensors
from models.codecs.dac import DacConfig, DacDecoder
from models.codecs.snake import as_channels_last
from models.errors import WeightError
from models.layers.conv import Span
from models.weights import load_weights

CHUNK_FRAMES: Final = (4, 8, 16, 24, 48)
_ENCODING: Final = (
    "acoustic_encoder.",
    "encoder_semantic.",
    "decoder_semantic.",
    "semantic_model.",
    "fc.",
    "fc1.",
)
_TRAINING: Final = (".embed_avg", ".cluster_size", ".inited")
_CODEBOOK: Final = re.compile(r"quantizer\.quantizers\.(\d+)\.codebook\.embed")
_UPSAMPLE: Final = re.compile(r"acoustic_decoder\.block\.(\d+)\.conv_t1\.weight")


def read_xcodec_config(folder: Path) -> DacConfig:
    """The shape in `config.json` of a checkpoint. Raises: `WeightError`, it names the key."""
    config = read_config(folder / "config.json")
    acoustic = config.part("acoustic_model_config")
    rate_hz = config.integer("sample_rate")
    n_codes = config.integer("codebook_size")
    strides = acoustic.integers("upsampling_ratios")
    # Levels are stated as the most bits a second.
    most_kbps = max(config.numbers("target_bandwidths"))
    frame_rate_hz = math.ceil(rate_hz / math.prod(strides))
    return DacConfig(
        sample_rate_hz=rate_hz,
        latent=acoustic.integer("hidden_size"),
        decoder_channels=acoustic.integer("decoder_hidden_size"),
        strides=strides,
        n_codebooks=int(1000 * most_kbps // (frame_rate_hz * math.ceil(math.log2(n_codes)))),
        n_codes=n_codes,
        code_dim=config.integer("codebook_dim"),
    )


def xcodec_config_of(
    tensors: Mapping[str, Tensor], *, sample_rate_hz: int, source: str
) -> DacConfig:
    """The shape of weights that come without a config: all but the rate is in them.

    Args:
        tensors: as `decoding_part` gives them.
        sample_rate_hz: of the PCM.
        source: of the weights, for messages.

    Raises:
        WeightError: a weight that tells of the shape is missing; it is named.
    """
    blocks = [key for key in tensors if _UPSAMPLE.fullmatch(key)]
    wanted = (
        "quantizer.quantizers.0.codebook.embed",
        "acoustic_decoder.block.0.conv_t1.weight",
        "acoustic_decoder.conv1.weight",
    )
    for key, n_dims in zip(wanted, (2, 3, 3), strict=True):
        if key not in tensors or tensors[key].dim() != n_dims:
            raise WeightError(f"{source} has no fit {key}: it does not hold X-Codec")
    table, _, first = (tensors[key] for key in wanted)
    # Kernels of the upsampling layers are two strides long.
    ordered = sorted(blocks, key=lambda key: int(key.split(".")[2]))
    return DacConfig(
        sample_rate_hz=sample_rate_hz,
        latent=first.shape[1],
        decoder_channels=first.shape[0],
        strides=tuple(tensors[key].shape[-1] // 2 for key in ordered),
        n_codebooks=sum(_CODEBOOK.fullmatch(key) is not None for key in tensors),
        n_codes=table.shape[0],
        code_dim=table.shape[1],
    )


class Xcodec(nn.Module):
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
        self.fc2 = nn.Linear(config.code_dim, config.latent)
        self.acoustic_decoder = DacDecoder(
            config.latent, config.decoder_channels, config.strides, is_bounded=False
        )

    def forward(self, codes: Tensor, span: Span) -> Tensor:
        """Codes `(B, T, Q)` to PCM `(B, T * samples_per_frame)` in [-1, 1]."""
        latents = self.fc2(self.quantizer(codes)).transpose(1, 2)
        pcm: Tensor = self.acoustic_decoder(as_channels_last(latents), span)
        return pcm.clamp(-1.0, 1.0)


class _Codebooks(nn.Module):
    def __init__(self, config: DacConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(
            nn.ModuleDict({"codebook": _Table(config.n_codes, config.code_dim)})
            for _ in range(config.n_codebooks)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """The sum over codebooks, `(B, T, code_dim)`."""
        x = codes.new_zeros((), dtype=torch.float32)
        for level, quantizer in enumerate(self.quantizers):
            x = x + quantizer["codebook"](codes[:, :, level])  # type: ignore[index] # a ModuleDict
        return x


class _Table(nn.Module):
    def __init__(self, n_codes: int, code_dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(n_codes, code_dim))

    def forward(self, codes: Tensor) -> Tensor:
        return self.embed[codes]


def decoding_part(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """What decoding uses of the codec's weights, weight norm folded.

    Args:
        tensors: a whole checkpoint.
        prefix: under which the codec lies there; what lies elsewhere is left out.
    """
    own = {
        key.removeprefix(prefix): tensor
        for key, tensor in tensors.items()
        if key.startswith(prefix)
        and not key.removeprefix(prefix).startswith(_ENCODING)
        and not key.endswith(_TRAINING)
    }
    return fold_weight_norm(own)


def make_xcodec(config: DacConfig, tensors: Mapping[str, Tensor], *, source: str) -> Xcodec:
    """The decoder with its weights, as `decoding_part` gives them, on the CPU.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = Xcodec(config)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)


def load_xcodec(folder: Path) -> Xcodec:
    """The decoder of a checkpoint folder (`config.json`, `model.safetensors`), on the CPU.

    Raises:
        WeightError: a file is missing or damaged, or does not fit; keys are named.
    """
    tensors = decoding_part(read_safetensors(folder))
    source = f"{folder.name}/model.safetensors"
    return make_xcodec(read_xcodec_config(folder), tensors, source=source)
