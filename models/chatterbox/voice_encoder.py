"""The voice encoder: a recording to the vector that the LM knows a speaker by. Worker threads.

Stretches of 1.6 s that overlap are read by an LSTM, and what it makes of them is averaged. Keys of
the modules are those of `ve.safetensors`, sizes follow from the shapes.

Source: resemble-ai/chatterbox, `models/voice_encoder/` (MIT); Wan et al. 2018 (GE2E).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.audio.mel import mel_filters, spectrum
from models.chatterbox.config import size_of
from models.weights import load_weights

RATE_HZ: Final = 16_000
N_FFT, HOP = 400, 160
N_STRETCH: Final = 160
"""Mel frames of a stretch."""
N_STEP: Final = 77
"""Mel frames from one stretch to the next: 1.3 begin in a second of 100 frames."""
LEAST_COVERED: Final = 0.8
"""Of a last stretch; what is shorter is left out, unless it is all there is."""
TRIM_FRAME, TRIM_HOP = 2048, 512
TRIM_DB: Final = 20.0
"""Ends that are so much softer than the loudest part do not count."""
_OF_TRAINING: Final = ("similarity_weight", "similarity_bias")


class VoiceEncoder(nn.Module):
    """The encoder.

    Args:
        weights: of its file.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, source: str) -> None:
        super().__init__()
        n_mels = size_of(weights, "lstm.weight_ih_l0", 1, source)
        inner = size_of(weights, "lstm.weight_hh_l0", 1, source)
        n_layers = sum(key.startswith("lstm.weight_ih_l") for key in weights)
        self.n_mels = n_mels
        self.lstm = nn.LSTM(n_mels, inner, n_layers, batch_first=True)
        self.proj = nn.Linear(inner, size_of(weights, "proj.weight", 0, source))
        own = {key: tensor for key, tensor in weights.items() if key not in _OF_TRAINING}
        load_weights(self, own, source=source)
        self.requires_grad_(False)

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.proj.out_features

    def forward(self, pcm: Tensor) -> Tensor:
        """The vector `(size,)`, of length 1, of PCM `(n,)` at 16 kHz."""
        frames = self._frames(trimmed(pcm)).to(self.proj.weight.dtype)
        _, (hidden, _) = self.lstm(stretches(frames))
        each = functional.normalize(self.proj(hidden[-1]).relu(), dim=1)
        return functional.normalize(each.mean(dim=0), dim=0)

    def _frames(self, pcm: Tensor) -> Tensor:
        """Mel energies `(T, n_mels)`."""
        filters = mel_filters(
            n_mels=self.n_mels,
            n_fft=N_FFT,
            rate_hz=RATE_HZ,
            high_hz=RATE_HZ / 2,
            scale="slaney",
            is_normed=True,
        )
        energies = spectrum(
            pcm, n_fft=N_FFT, window=N_FFT, hop=HOP, n_padding=N_FFT // 2, eps=0.0, power=2
        )
        return (filters.to(pcm.device) @ energies).T


def stretches(frames: Tensor) -> Tensor:
    """`(T, n)` cut into `(n_stretches, N_STRETCH, n)`, silence behind them where needed."""
    n_whole, n_rest = divmod(max(len(frames) - N_STRETCH + N_STEP, 0), N_STEP)
    is_covered = (n_rest + N_STRETCH - N_STEP) / N_STRETCH >= LEAST_COVERED
    n = n_whole + (n_whole == 0 or is_covered)
    n_wanted = N_STRETCH + N_STEP * (n - 1)
    padded = functional.pad(frames, (0, 0, 0, max(0, n_wanted - len(frames))))[:n_wanted]
    return padded.unfold(0, N_STRETCH, N_STEP).transpose(1, 2)


def trimmed(pcm: Tensor) -> Tensor:
    """PCM `(n,)` without the soft ends.

    Source: librosa, `effects.trim` with its defaults.
    """
    half = TRIM_FRAME // 2
    power = functional.pad(pcm, (half, half)).unfold(0, TRIM_FRAME, TRIM_HOP).square().mean(dim=1)
    loud = torch.nonzero(power > power.max() * 10 ** (-TRIM_DB / 10))[:, 0]
    if not len(loud):
        return pcm
    return pcm[int(loud[0]) * TRIM_HOP : (int(loud[-1]) + 1) * TRIM_HOP]
