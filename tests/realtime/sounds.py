"""Sounds at 16 kHz for tests of hearing: silence, noise, music-like tones, coughs, a babble."""

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


def cough(seconds: float = 0.3, *, seed: int = 1) -> np.ndarray:
    """A burst of breath through a throat, with a little voice behind it; silence around."""
    rng = np.random.default_rng(seed)
    n = round(seconds * RATE_HZ)
    at = np.arange(n) / n
    formants = [
        (rng.uniform(400, 700), 200, 1.0),
        (rng.uniform(1100, 1700), 300, 0.8),
        (rng.uniform(2300, 3000), 500, 0.5),
    ]
    breath = _through(rng.standard_normal(n), formants)
    phase = 2 * np.pi * rng.uniform(110, 220) * np.arange(n) / RATE_HZ
    voice = _through(sum(np.sin(k * phase) for k in range(1, 20)), formants)
    burst = breath * np.minimum(1, at / 0.1) * np.exp(-4 * at)
    burst += 0.6 * rng.uniform() * voice * np.exp(-(((at - 0.6) / 0.2) ** 2))
    around = np.zeros(RATE_HZ)
    out = np.concatenate([around, 0.3 * burst / np.abs(burst).max(), around])
    out += 0.0005 * rng.standard_normal(len(out))
    return out[: len(out) // FRAME_SAMPLES * FRAME_SAMPLES].astype(np.float32)


def _through(sound: np.ndarray, formants: list[tuple[float, float, float]]) -> np.ndarray:
    """`sound` through (centre, width, gain) in Hz, its loudest sample 1."""
    hz = np.fft.rfftfreq(len(sound), 1 / RATE_HZ)
    gains = sum(gain * np.exp(-(((hz - mid) / width) ** 2)) for mid, width, gain in formants)
    out = np.fft.irfft(np.fft.rfft(sound) * (gains + 0.02), len(sound))
    return out / np.abs(out).max()


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
