"""Mel spectra: the filters, in both common scales, and the spectra that they are laid over."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, Literal

import torch
from torch import Tensor, nn

Scale = Literal["htk", "slaney"]
LINEAR_HZ: Final = 1000.0
"""The Slaney scale is linear up to here, and logarithmic above."""
MELS_PER_HZ: Final = 3 / 200
LINEAR_MELS: Final = LINEAR_HZ * MELS_PER_HZ
LOG_STEP: Final = math.log(6.4) / 27
WHISPER_RATE_HZ: Final = 16_000
WHISPER_N_FFT, WHISPER_HOP = 400, 160
VOCODER_LEAST: Final = 1e-5
"""Magnitudes under it count as it."""


@lru_cache(maxsize=16)
def mel_filters(
    *, n_mels: int, n_fft: int, rate_hz: int, high_hz: float, scale: Scale, is_normed: bool
) -> Tensor:
    """Triangles over the bins of a spectrum, from 0 Hz to `high_hz`: `(n_mels, n_fft // 2 + 1)`.

    Args:
        n_mels: filters.
        n_fft: of the spectrum.
        rate_hz: of the signal.
        high_hz: where the last filter ends.
        scale: on which the filters are evenly spaced.
        is_normed: each covers the same area.

    Source: O'Shaughnessy 1987 (HTK), Slaney 1998, Auditory Toolbox.
    """
    mels = torch.linspace(0.0, _mel(high_hz, scale), n_mels + 2, dtype=torch.float64)
    edges = _hz(mels, scale)
    bins = torch.linspace(0.0, rate_hz / 2, n_fft // 2 + 1, dtype=torch.float64)
    widths = edges.diff().unsqueeze(1)
    distance = edges.unsqueeze(1) - bins
    rising, falling = -distance[:-2] / widths[:-1], distance[2:] / widths[1:]
    filters = torch.minimum(rising, falling).clamp(min=0)
    if is_normed:
        filters = filters * (2 / (edges[2:] - edges[:-2])).unsqueeze(1)
    return filters.float()


def spectrum(
    pcm: Tensor, *, n_fft: int, window: int, hop: int, n_padding: int, eps: float, power: int
) -> Tensor:
    """Magnitudes of the short-time Fourier transform, `(n_fft // 2 + 1, T)`.

    Args:
        pcm: `(n,)`.
        n_fft: of each transform.
        window: of its Hann window, in samples.
        hop: samples from one to the next.
        n_padding: samples mirrored at both ends.
        eps: added to the squares.
        power: 1 gives magnitudes, 2 their squares.
    """
    padded = nn.functional.pad(pcm.view(1, 1, -1), (n_padding, n_padding), "reflect")[0, 0]
    waves = torch.stft(
        padded,
        n_fft,
        hop_length=hop,
        win_length=window,
        window=torch.hann_window(window, device=pcm.device),
        center=False,
        return_complex=True,
    )
    squares = waves.real.square() + waves.imag.square() + eps
    return squares if power == 2 else squares.sqrt()


def whisper_mel(pcm: Tensor, n_mels: int) -> Tensor:
    """Log mel energies as Whisper hears them, `(n_mels, T)`, 100 frames/s.

    Of n samples there are `n // 160` frames, and one where they are fewer than that.

    Args:
        pcm: `(n,)` at 16 kHz, n > 0. The loudest band of it sets the floor, 80 dB lower: a batch is
            made of spectra of single recordings.
        n_mels: 80 or 128.

    Source: openai/whisper, `audio.py` (MIT).
    """
    # What is shorter than half a transform cannot be mirrored at its ends.
    pcm = nn.functional.pad(pcm, (0, max(0, WHISPER_N_FFT // 2 + 1 - len(pcm))))
    energies = spectrum(
        pcm,
        n_fft=WHISPER_N_FFT,
        window=WHISPER_N_FFT,
        hop=WHISPER_HOP,
        n_padding=WHISPER_N_FFT // 2,
        eps=0.0,
        power=2,
    )
    filters = mel_filters(
        n_mels=n_mels,
        n_fft=WHISPER_N_FFT,
        rate_hz=WHISPER_RATE_HZ,
        high_hz=WHISPER_RATE_HZ / 2,
        scale="slaney",
        is_normed=True,
    )
    bands = (filters.to(pcm.device) @ energies[:, :-1].contiguous()).clamp(min=1e-10).log10()
    return (bands.maximum(bands.max() - 8.0) + 4.0) / 4.0


def vocoder_mel(
    pcm: Tensor, *, n_mels: int, n_fft: int, hop: int, rate_hz: int, high_hz: float
) -> Tensor:
    """Log mel magnitudes as vocoders speak from, `(n_mels, n // hop)`.

    Args:
        pcm: `(n,)`, n above `(n_fft - hop) / 2`.
        n_mels: bands, up to `high_hz`.
        n_fft: of each transform and of its window.
        hop: samples from one to the next.
        rate_hz: of `pcm`.
        high_hz: where the last band ends.

    Source: Matcha-TTS, `utils/audio.py` (MIT); it is that of HiFi-GAN.
    """
    magnitudes = spectrum(
        pcm, n_fft=n_fft, window=n_fft, hop=hop, n_padding=(n_fft - hop) // 2, eps=1e-9, power=1
    )
    filters = mel_filters(
        n_mels=n_mels,
        n_fft=n_fft,
        rate_hz=rate_hz,
        high_hz=high_hz,
        scale="slaney",
        is_normed=True,
    )
    return (filters.to(pcm.device) @ magnitudes).clamp(min=VOCODER_LEAST).log()


def _mel(hz: float, scale: Scale) -> float:
    if scale == "htk":
        return 2595.0 * math.log10(1.0 + hz / 700.0)
    if hz < LINEAR_HZ:
        return hz * MELS_PER_HZ
    return LINEAR_MELS + math.log(hz / LINEAR_HZ) / LOG_STEP


def _hz(mels: Tensor, scale: Scale) -> Tensor:
    if scale == "htk":
        return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    above = LINEAR_HZ * torch.exp(LOG_STEP * (mels - LINEAR_MELS))
    return torch.where(mels < LINEAR_MELS, mels / MELS_PER_HZ, above)
