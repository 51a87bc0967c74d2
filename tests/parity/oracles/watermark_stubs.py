"""What the packages of the watermarks import and we do without: empty, or the few lines used."""

import sys
import types
from collections.abc import Callable

import numpy as np
import torch
from stubs import stub_libraries

EMPTY = ("librosa", "pkg_resources", "pydub", "scipy", "scipy.signal", "scipy.stats", "soundfile")


class _Mode:
    """Of the columns of whole numbers, as `scipy.stats.mode` gives it."""

    def __init__(self, values: np.ndarray, *, keepdims: bool) -> None:
        assert not keepdims, "nothing else is asked for"
        self.mode = np.array([np.bincount(column).argmax() for column in values.T])


class _Spectrogram(torch.nn.Module):
    """`torchaudio.transforms.Spectrogram` with `power=None`: `torch.stft` with its window."""

    def __init__(
        self,
        *,
        n_fft: int,
        win_length: int,
        hop_length: int,
        window_fn: Callable[[int], torch.Tensor],
        **settings: object,
    ) -> None:
        super().__init__()
        assert settings in ({"power": None, "normalized": False}, {"normalized": False})
        self.n_fft, self.hop = n_fft, hop_length
        self.register_buffer("window", window_fn(win_length))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        return torch.stft(signal, self.n_fft, self.hop, window=self.window, return_complex=True)


class _InverseSpectrogram(_Spectrogram):
    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectra, self.n_fft, self.hop, window=self.window)


class _TimeStretch(torch.nn.Module):
    def __init__(self, *, n_freq: int, hop_length: int) -> None:
        super().__init__()
        advance = torch.linspace(0, torch.pi * hop_length, n_freq)[..., None]
        self.register_buffer("phase_advance", advance)


def stub_watermark_libraries() -> None:
    """Call before the first import of `silentcipher` or `perth`."""
    stub_libraries((*EMPTY, "torchaudio"))
    sys.modules["scipy.stats"].mode = _Mode
    sys.modules["pkg_resources"].resource_filename = lambda package, name: name
    transforms = types.ModuleType("torchaudio.transforms")
    transforms.Spectrogram = _Spectrogram
    transforms.InverseSpectrogram = _InverseSpectrogram
    transforms.TimeStretch = _TimeStretch
    sys.modules["torchaudio.transforms"] = transforms
