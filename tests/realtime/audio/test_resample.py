"""Conversion in pieces: exact counts, no seams, next to nothing held back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.audio.resample import Resampler

RATES = [(22050, 24000), (22050, 48000), (44100, 24000), (16000, 24000), (48000, 16000)]
MOST_HELD_S = 0.003


def _sine(rate_hz: int, n: int, tone_hz: float = 440.0) -> np.ndarray:
    return np.sin(2 * np.pi * tone_hz * np.arange(n) / rate_hz).astype(np.float32)


def _convert(rates: tuple[int, int], pieces: list[np.ndarray]) -> np.ndarray:
    resampler = Resampler(*rates)
    parts = [resampler.push(piece) for piece in pieces]
    return np.concatenate([*parts, resampler.finish()])


@pytest.mark.parametrize("rates", RATES)
def test_next_to_nothing_is_held_back(rates):
    """A block resampler held 42 ms: clients had that much less to play than the engine thought."""
    resampler = Resampler(*rates)
    n_in = n_out = 0
    for piece in np.array_split(_sine(rates[0], rates[0]), 300):
        n_in += len(piece)
        n_out += len(resampler.push(piece))
        assert n_in / rates[0] - n_out / rates[1] < MOST_HELD_S


@pytest.mark.parametrize("rates", RATES)
def test_a_tone_keeps_its_pitch_level_and_place(rates):
    """1e-3: the pass band of the filter has a ripple below that; its edges are left out."""
    out = _convert(rates, [_sine(rates[0], rates[0] // 2)])
    expected = _sine(rates[1], len(out))
    assert np.abs(out - expected)[200:-200].max() < 1e-3


@given(
    rates=st.sampled_from(RATES),
    lengths=st.lists(st.integers(0, 700), max_size=12),
)
def test_pieces_make_no_difference_and_counts_are_exact(rates, lengths):
    pcm = _sine(rates[0], sum(lengths))
    pieces = np.split(pcm, np.cumsum(lengths)[:-1]) if lengths else []
    out = _convert(rates, pieces)
    assert len(out) == round(len(pcm) * rates[1] / rates[0] + 1e-9)
    if len(pcm):
        # 1e-6: single precision, summed in the same order.
        np.testing.assert_allclose(out, _convert(rates, [pcm]), atol=1e-6)


def test_the_same_rate_passes_samples_through():
    resampler = Resampler(24000, 24000)
    pcm = _sine(24000, 100)
    assert resampler.push(pcm) is pcm
    assert len(resampler.finish()) == 0


def test_it_has_no_threads_of_its_own():
    """Those of libavfilter would live as long as anybody holds a response that is over."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("threads are counted by Linux's /proc, which is not here")
    n_before = len(list(tasks.iterdir()))
    held = [Resampler(22050, 24000) for _ in range(20)]
    for one in held:
        one.push(np.zeros(220, np.float32))
    # Other tests' threads may end meanwhile.
    assert len(list(tasks.iterdir())) < n_before + len(held)
