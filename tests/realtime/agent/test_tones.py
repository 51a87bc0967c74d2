"""Held tones are told from voices."""

import numpy as np
import pytest

from realtime.agent.base import FRAME_SAMPLES
from realtime.agent.tones import TONE_SAMPLES, is_held_tone
from tests.realtime.sounds import RATE_HZ, noise, silence, speech_like, tones


def windows(pcm: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(pcm, TONE_SAMPLES)[::FRAME_SAMPLES]


def share_held(pcm: np.ndarray) -> float:
    return float(np.mean([is_held_tone(one) for one in windows(pcm)]))


def test_the_middle_of_every_chord_is_held():
    n_note = RATE_HZ // 2
    pcm = tones(20)
    inside = [pcm[at : at + TONE_SAMPLES] for at in range(n_note // 4, len(pcm) - n_note, n_note)]
    assert all(is_held_tone(one) for one in inside)


@pytest.mark.parametrize("gain", [1.0, 0.01])
def test_a_dial_tone_is_held_at_any_level(gain):
    at_s = np.arange(RATE_HZ) / RATE_HZ
    tone = np.sin(2 * np.pi * 425 * at_s) + 1e-3 * noise(1.0)[:RATE_HZ]
    assert share_held((gain * tone).astype(np.float32)) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_a_voice_is_not(seed):
    assert share_held(speech_like(8.0, seed=seed)) < 0.05


@pytest.mark.parametrize("pcm", [noise(4.0), silence(1.0)], ids=["noise", "silence"])
def test_nor_are_noise_and_silence(pcm):
    assert share_held(pcm) == 0.0
