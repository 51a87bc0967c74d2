"""Filters and spectra are those of another library."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from models.audio.mel import mel_filters, spectrum


@pytest.mark.parametrize("scale", ["htk", "slaney"])
@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(
    ("n_mels", "n_fft", "rate_hz", "high_hz"), [(80, 512, 16_000, 8_000), (128, 1024, 24_000, 9e3)]
)
def test_filters(scale, is_normed, n_mels, n_fft, rate_hz, high_hz):
    ours = mel_filters(
        n_mels=n_mels,
        n_fft=n_fft,
        rate_hz=rate_hz,
        high_hz=high_hz,
        scale=scale,
        is_normed=is_normed,
    )
    norm = "slaney" if is_normed else None
    theirs = mel_filter_bank(n_fft // 2 + 1, n_mels, 0.0, high_hz, rate_hz, norm, scale)
    np.testing.assert_allclose(ours.numpy(), theirs.T, atol=1e-6)


@pytest.mark.parametrize("power", [1, 2])
def test_spectra(power):
    pcm = np.random.default_rng(2).standard_normal(4_000).astype(np.float32)
    ours = spectrum(
        torch.from_numpy(pcm), n_fft=512, window=400, hop=160, n_padding=256, eps=0.0, power=power
    )
    window = window_function(400, "hann", periodic=True, frame_length=512)
    theirs = spectrogram(
        pcm, window, frame_length=512, hop_length=160, fft_length=512, power=float(power)
    )
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-3)
