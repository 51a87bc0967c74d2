"""Kaldi's filter bank: log mel energies of 25 ms every 10 ms, as speaker encoders are trained on.

Source: kaldi-asr/kaldi, `feat/feature-fbank.cc`, `feature-window.cc`, `mel-computations.cc`
(Apache-2.0), with the defaults of torchaudio's `compliance.kaldi.fbank`: no dither, samples in
[-1, 1].
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor, nn

RATE_HZ: Final = 16_000
WINDOW, HOP, N_FFT = 400, 160, 512
LOW_HZ: Final = 20.0
PRE_EMPHASIS: Final = 0.97
LEAST: Final = torch.finfo(torch.float32).eps
"""Energies under it count as it."""


def kaldi_fbank(pcm: Tensor, n_mels: int) -> Tensor:
    """Log energies `(T, n_mels)` of `pcm` `(n,)` at 16 kHz; T is `1 + (n - 400) // 160`.

    Args:
        pcm: 400 samples or more.
        n_mels: bands.
    """
    frames = pcm.unfold(0, WINDOW, HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    # What stands before the first sample does not matter: the window begins with 0.
    shaped = (frames - PRE_EMPHASIS * frames.roll(1, dims=1)) * _window().to(pcm.device)
    energies = torch.fft.rfft(shaped, n=N_FFT).abs().square()
    bands: Tensor = energies @ _filters(n_mels).to(pcm.device)
    return bands.clamp(min=LEAST).log()


@lru_cache(maxsize=1)
def _window() -> Tensor:
    """The window that Povey gave Kaldi."""
    return torch.hann_window(WINDOW, periodic=False).pow(0.85)


@lru_cache(maxsize=4)
def _filters(n_mels: int) -> Tensor:
    """Triangles over the bins, `(bins, n_mels)`: their sides are straight in mel, not Hz.

    In float32, as the references compute them: bands of next to nothing show the difference.
    """
    low, high = _mel(torch.tensor([LOW_HZ, RATE_HZ / 2])).tolist()
    edges = low + (high - low) / (n_mels + 1) * torch.arange(n_mels + 2)
    bins = _mel(torch.arange(N_FFT // 2) * RATE_HZ / N_FFT).unsqueeze(1)
    width = (high - low) / (n_mels + 1)
    rising, falling = (bins - edges[:-2]) / width, (edges[2:] - bins) / width
    # The bin at half the rate is in no band.
    return nn.functional.pad(torch.minimum(rising, falling).clamp(min=0), (0, 0, 0, 1))


def _mel(hz: Tensor) -> Tensor:
    return 1127.0 * (1.0 + hz / 700.0).log()
