"""Where sound begins: a threshold of energy, not of single samples."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.measure.audible import AUDIBLE_DBFS, WINDOW_MS, first_audible

RATES_HZ = (16_000, 24_000, 44_100, 48_000)


def level(dbfs: float) -> float:
    """Of a constant, as root mean square."""
    return 10 ** (dbfs / 20)


def silence_then(n_silent: int, loud: float, n_loud: int) -> np.ndarray:
    return np.concatenate([np.zeros(n_silent), np.full(n_loud, loud)]).astype(np.float32)


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("silent_ms", [0, 10, 137])
def test_the_window_that_reaches_the_threshold_is_found(rate_hz, silent_ms):
    """A sound just over the threshold fills its window; a louder one is found a little sooner."""
    n_silent = rate_hz * silent_ms // 1000
    pcm = silence_then(n_silent, level(AUDIBLE_DBFS + 0.1), rate_hz // 10)
    found = first_audible(pcm, rate_hz)
    assert abs(found - n_silent) <= rate_hz // 1000
    louder = first_audible(silence_then(n_silent, 0.5, rate_hz // 10), rate_hz)
    assert n_silent - rate_hz * WINDOW_MS // 1000 <= louder <= found


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_what_is_softer_is_silence(rate_hz):
    pcm = np.full(rate_hz, level(AUDIBLE_DBFS - 0.1), np.float32)
    assert first_audible(pcm, rate_hz) is None


def test_a_soft_click_is_no_sound():
    """One sample of -35 dB has too little energy for a window of 5 ms."""
    pcm = np.zeros(24_000, np.float32)
    pcm[1000] = level(-35)
    assert first_audible(pcm, 24_000) is None


def test_too_little_to_judge_is_silence():
    assert first_audible(np.ones(10, np.float32), 24_000) is None
    assert first_audible(np.zeros(0, np.float32), 24_000) is None
