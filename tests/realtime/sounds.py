"""Sounds at 16 kHz for tests of hearing: silence, noise, music-like tones, and a babbling voice."""

from __future__ import annotations

import numpy as np

from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ
from realtime.agent.base import HEARD_RATE_HZ as RATE_HZ


def n_samples(seconds: float) -> int:
    """Rounded up to whole frames."""
    return -(-round(seconds * HEARD_RATE_HZ) // FRAME_SAMPLES) * FRAME_SAMPLES


def silence(seconds: float) -> np.ndarray:
    return np.zeros(n_samples(seconds), dtype=np.float32)


def noise(seconds: float, *, level: float = 0.05, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (level * rng.standard_normal(n_samples(seconds))).astype(np.float32)


def tones(seconds: float, *, seed: int = 6) -> np.ndarray:
    """Music-like: chords of struck, decaying notes with overtones, half a second each."""
    rng = np.random.default_rng(seed)
    n_note = RATE_HZ // 2
    at_s = np.arange(n_note) / RATE_HZ
    notes = []
    for _ in range(-(-n_samples(seconds) // n_note)):
        root = 110 * 2 ** (rng.integers(0, 24) / 12)
        chord = sum(
            np.sin(2 * np.pi * root * ratio * k * at_s) / k
            for ratio in (1, 1.26, 1.5)
            for k in (1, 2, 3)
        )
        notes.append(0.08 * chord * np.exp(-3 * at_s) * np.minimum(1, at_s / 0.005))
    return np.concatenate(notes)[: n_samples(seconds)].astype(np.float32)


def speech_like(seconds: float, *, seed: int = 7, pitch_hz: float = 120.0) -> np.ndarray:
    """A babbling voice: a buzzing source through moving formants, four syllables a second.

    Silero VAD takes it for speech, which tests of turns need without a recording.
    """
    rng = np.random.default_rng(seed)
    n = n_samples(seconds)
    at_s = np.arange(n) / RATE_HZ
    pitch = pitch_hz * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * at_s + rng.uniform(0, 6)))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
    out = np.zeros(n)
    f1 = 500 + 200 * np.sin(2 * np.pi * 2.1 * at_s + rng.uniform(0, 6))
    f2 = 1500 + 500 * np.sin(2 * np.pi * 1.3 * at_s + rng.uniform(0, 6))
    for k in range(1, 30):
        hz = k * pitch
        gain = sum(
            weight * np.exp(-(((hz - centre) / width) ** 2))
            for centre, width, weight in ((f1, 120, 1.0), (f2, 160, 0.6), (2600, 200, 0.3))
        )
        out += (gain + 0.01 / k) * np.sin(k * phase)
    syllables = 0.55 - 0.45 * np.cos(2 * np.pi * 4 * at_s)
    out = out * syllables
    out += 0.001 * rng.standard_normal(n)
    return (0.25 * out / np.abs(out).max()).astype(np.float32)
