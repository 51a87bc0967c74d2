"""The speaker encoder beside a Zonos checkpoint: a recording to one vector. Worker threads.

A ResNet over mel spectra, attention over time, and a projection by linear discriminants, in two
files of their own. All sizes follow from the shapes of the weights; names of the modules are those
of the files.

Source: Zyphra/Zonos, `speaker_cloning.py` (Apache-2.0); Yang et al. 2021, SimAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.cache import ContentCache
from models.audio.mel import mel_filters, spectrum
from models.audio.reference import Reference
from models.checkpoint import read_torch_file, size_of
from models.errors import WeightError
from models.weights import load_weights

FOLDER: Final = "speaker_embedding"
ENCODER_FILE: Final = "ResNet293_SimAM_ASP_base.pt"
PROJECTION_FILE: Final = "ResNet293_SimAM_ASP_base_LDA-128.pt"
RATE_HZ: Final = 16_000
N_FFT, WINDOW, HOP = 512, 400, 160
N_STAGES: Final = 4
STRIDES: Final = (1, 2, 2, 2)
SHRINK: Final = 8
"""Mel bands that become one row of the last stage: all strides together."""
MAX_VOICES: Final = 256


class SpeakerEncoder(nn.Module):
    """The encoder and the projection behind it.

    Args:
        weights: of the encoder's file.
        projection: of the other one.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(self, weights: Mapping[str, Tensor], projection: Mapping[str, Tensor]) -> None:
        super().__init__()
        n_filters = _size(weights, "front.conv1.weight", 0)
        n_pooled = _size(weights, "pooling.attention.0.weight", 1)
        size = _size(weights, "bottleneck.weight", 0)
        self.n_mels = n_pooled // n_filters
        if n_pooled % (n_filters * SHRINK):
            raise WeightError(
                f"{ENCODER_FILE}: pooling.attention.0.weight takes {n_pooled} channels, "
                f"no multiple of the {n_filters * SHRINK} of the last stage"
            )
        self.encoder = nn.ModuleDict(
            {
                "front": _Front(n_filters, [_n_blocks(weights, n + 1) for n in range(N_STAGES)]),
                "pooling": _Pooling(n_pooled, _size(weights, "pooling.attention.0.weight", 0)),
                "bottleneck": nn.Linear(2 * n_pooled, size),
            }
        )
        self.projection = nn.Linear(size, _size(projection, "weight", 0, PROJECTION_FILE))
        load_weights(self.encoder, weights, source=ENCODER_FILE)
        load_weights(self.projection, projection, source=PROJECTION_FILE)
        self._vectors: ContentCache[list[float]] = ContentCache(MAX_VOICES)
        self.requires_grad_(False).eval()

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.projection.out_features

    def vector(self, reference: Reference) -> list[float]:
        """The vector of a recording, made once."""
        return self._vectors.get(reference.key, lambda: self._made(reference))

    def _made(self, reference: Reference) -> list[float]:
        pcm = torch.from_numpy(reference.pcm).to(next(self.parameters()).device)
        made: list[float] = self(pcm).tolist()
        return made

    def forward(self, pcm: Tensor) -> Tensor:
        """The vector `(size,)` of PCM `(n,)` at 16 kHz."""
        x = self._bands(pcm).to(next(self.parameters()).dtype)
        x = self.encoder["front"](x.view(1, 1, *x.shape))
        vector: Tensor = self.projection(self.encoder["bottleneck"](self.encoder["pooling"](x)))
        return vector[0]

    def _bands(self, pcm: Tensor) -> Tensor:
        """Log mel energies `(n_mels, T)`, each band around 0."""
        filters = mel_filters(
            n_mels=self.n_mels,
            n_fft=N_FFT,
            rate_hz=RATE_HZ,
            high_hz=RATE_HZ / 2,
            scale="htk",
            is_normed=False,
        )
        energies = spectrum(
            pcm, n_fft=N_FFT, window=WINDOW, hop=HOP, n_padding=N_FFT // 2, eps=0.0, power=2
        )
        bands = (filters.to(pcm.device) @ energies + 1e-6).log()
        return bands - bands.mean(dim=1, keepdim=True)


def read_speaker_encoder(folder: Path) -> SpeakerEncoder | None:
    """The encoder beside the checkpoint in `folder`; None where its own folder is not there.

    Raises:
        WeightError: one of its files is missing, damaged or of another model.
    """
    own = folder / FOLDER
    if not own.is_dir():
        return None
    return SpeakerEncoder(
        read_torch_file(own / ENCODER_FILE), read_torch_file(own / PROJECTION_FILE)
    )


class _Front(nn.Module):
    """Four stages of blocks, each with twice the channels of the one before it."""

    def __init__(self, n_filters: int, n_blocks: list[int]) -> None:
        super().__init__()
        self.conv1 = _conv(1, n_filters, 3)
        self.bn1 = nn.BatchNorm2d(n_filters)
        n_in = n_filters
        stages = []
        for idx, (n, stride) in enumerate(zip(n_blocks, STRIDES, strict=True)):
            n_out = n_filters << idx
            blocks = [_Block(n_in, n_out, stride), *(_Block(n_out, n_out, 1) for _ in range(n - 1))]
            stages.append(nn.Sequential(*blocks))
            n_in = n_out
        self.layer1, self.layer2, self.layer3, self.layer4 = stages

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(n_in, n_out, 3, stride), nn.BatchNorm2d(n_out)
        self.conv2, self.bn2 = _conv(n_out, n_out, 3), nn.BatchNorm2d(n_out)
        is_same = stride == 1 and n_in == n_out
        parts = [] if is_same else [_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out)]
        self.downsample = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        out: Tensor = _outstanding(y) + self.downsample(x)
        return out.relu()


def _outstanding(x: Tensor) -> Tensor:
    """What differs from its map's mean weighs more. Source: SimAM, equation 5."""
    off = (x - x.mean(dim=(2, 3), keepdim=True)).square()
    variance = off.sum(dim=(2, 3), keepdim=True) / (x.shape[2] * x.shape[3] - 1)
    return x * (off / (4 * (variance + 1e-4)) + 0.5).sigmoid()


class _Pooling(nn.Module):
    """Mean and deviation over time, weighted by attention."""

    def __init__(self, n_channels: int, n_attention: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.Conv1d(n_channels, n_attention, 1),
            nn.ReLU(),
            nn.BatchNorm1d(n_attention),
            nn.Conv1d(n_attention, n_channels, 1),
            nn.Softmax(dim=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, rows, T)` to `(B, 2 * C * rows)`."""
        rows = x.flatten(1, 2)
        weights = self.attention(rows)
        mean = (rows * weights).sum(dim=2)
        variance = (rows.square() * weights).sum(dim=2) - mean.square()
        return torch.cat([mean, variance.clamp(min=1e-5).sqrt()], dim=1)


def _conv(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)


def _size(weights: Mapping[str, Tensor], key: str, axis: int, file: str = ENCODER_FILE) -> int:
    return size_of(weights, key, axis, source=file, kind="speaker encoder of Zonos")


def _n_blocks(weights: Mapping[str, Tensor], stage: int) -> int:
    stem = f"front.layer{stage}."
    found = {key.removeprefix(stem).partition(".")[0] for key in weights if key.startswith(stem)}
    if not found:
        raise WeightError(f"{ENCODER_FILE} lacks {stem}*: it is no speaker encoder of Zonos")
    return len(found)
