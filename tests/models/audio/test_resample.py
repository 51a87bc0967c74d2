"""Rates are converted in length and in pitch, and nothing folds back."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
import torch

from models.audio.resample import resample


def tone(hz: float, rate_hz: int, n_samples: int) -> torch.Tensor:
    return torch.sin(2 * torch.pi * hz * torch.arange(n_samples) / rate_hz)


@pytest.mark.parametrize(
    ("from_hz", "to_hz"), [(24_000, 16_000), (44_100, 16_000), (8_000, 24_000), (48_000, 24_000)]
)
def test_it_sounds_as_by_another_library(from_hz, to_hz):
    draws = np.random.default_rng(1).standard_normal(from_hz).astype(np.float32)
    low = np.convolve(draws, np.hanning(24) / 12, "same").astype(np.float32)
    got = resample(torch.from_numpy(low), from_hz, to_hz).numpy()
    expected = soxr.resample(low, from_hz, to_hz)
    assert len(got) == to_hz
    middle = slice(to_hz // 10, -to_hz // 10)
    assert np.abs(got - expected)[middle].max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("n_samples", [1, 2, 3, 1000, 1001])
def test_a_begun_sample_counts(n_samples):
    assert len(resample(torch.ones(n_samples), 24_000, 16_000)) == -(-n_samples * 2 // 3)


def test_what_the_lower_rate_cannot_hold_is_gone():
    kept = resample(tone(3_000, 24_000, 24_000), 24_000, 16_000)[1000:-1000]
    gone = resample(tone(11_000, 24_000, 24_000), 24_000, 16_000)[1000:-1000]
    assert kept.abs().max() == pytest.approx(1.0, abs=0.01)
    assert gone.abs().max() < 0.02


def test_the_same_rate_changes_nothing():
    pcm = torch.ones(5)
    assert resample(pcm, 16_000, 16_000) is pcm
