"""Measures on waves: pitch, log-mel distance, silence. Plain numpy, own code."""

import numpy as np

from models.pico.training.common import SAMPLE_RATE_HZ

_PITCH_HOP, _PITCH_WINDOW = 256, 1024
_LOWEST_HZ, _HIGHEST_HZ = 60.0, 350.0
_VOICED = 0.6


def frames_of(wave: np.ndarray, size: int, hop: int) -> np.ndarray:
    """Return overlapping frames (n, size); short waves are padded to one frame."""
    padded = np.pad(wave, (0, max(0, size - len(wave))))
    views: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    return views


def pitch_hz(wave: np.ndarray) -> np.ndarray:
    """Return F0 of the voiced frames, in Hz.

    Two passes: the first over 60 to 350 Hz finds the speaker's range in this utterance, the second
    looks between 0.7 times its lower and 1.6 times its upper quartile only, which keeps octave
    errors out of the spread.
    Source: the two-pass range of De Looze and Hirst 2008, with factors a little narrower.
    """
    rough = _pitch_between(wave, _LOWEST_HZ, _HIGHEST_HZ)
    if len(rough) < 8:
        return rough
    low, high = np.percentile(rough, [25, 75])
    return _pitch_between(wave, max(_LOWEST_HZ, 0.7 * low), min(_HIGHEST_HZ, 1.6 * high))


def _pitch_between(wave: np.ndarray, lowest_hz: float, highest_hz: float) -> np.ndarray:
    """Return F0 of voiced frames from the normalised autocorrelation.

    A frame is voiced if the correlation of its window with the one a period later is at least 0.6
    and it is not quiet. The shortest period within 90 % of the best one is taken (no octave down).
    """
    low, high = int(SAMPLE_RATE_HZ / highest_hz), int(SAMPLE_RATE_HZ / lowest_hz)
    frames = frames_of(wave.astype(np.float64), _PITCH_WINDOW + high, _PITCH_HOP)
    loud = np.sqrt((frames**2).mean(1))
    frames = frames[loud > 0.1 * np.percentile(loud, 95)]
    if len(frames) == 0:
        return np.zeros(0)
    n_fft = 4096
    head = np.fft.rfft(frames[:, :_PITCH_WINDOW], n_fft)
    cross = np.fft.irfft(np.conj(head) * np.fft.rfft(frames, n_fft))[:, : high + 1]
    power = np.cumsum(np.pad(frames**2, ((0, 0), (1, 0))), axis=1)
    energy = power[:, _PITCH_WINDOW : _PITCH_WINDOW + high + 1] - power[:, : high + 1]
    similar = cross / np.sqrt(energy[:, :1] * energy + 1e-9)
    inner = similar[:, low : high + 1]
    best = inner.max(1)
    # A peak, not a slope: the first lag that is a local maximum near the best value.
    peak = np.zeros_like(inner, dtype=bool)
    peak[:, 1:-1] = (inner[:, 1:-1] >= inner[:, :-2]) & (inner[:, 1:-1] >= inner[:, 2:])
    good = peak & (inner >= 0.9 * best[:, None])
    voiced = (best >= _VOICED) & good.any(1)
    found: np.ndarray = SAMPLE_RATE_HZ / (low + good[voiced].argmax(1))
    return found


def _mel_filters(n_mels: int, n_fft: int) -> np.ndarray:
    def mel(hz: np.ndarray) -> np.ndarray:
        scale: np.ndarray = 2595.0 * np.log10(1.0 + hz / 700.0)
        return scale

    bins = mel(np.linspace(0, SAMPLE_RATE_HZ / 2, n_fft // 2 + 1))
    edges = np.linspace(mel(np.array(50.0)), mel(np.array(8000.0)), n_mels + 2)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters: np.ndarray = np.maximum(0.0, np.minimum(rise, fall))
    return filters


def log_mel(wave: np.ndarray) -> np.ndarray:
    """Return log-mel energies (n_frames, 80), natural log, 1024 window, 256 hop."""
    frames = frames_of(wave, 1024, 256) * np.hanning(1024)
    spectrum = np.abs(np.fft.rfft(frames, axis=1))
    mel: np.ndarray = np.log(np.maximum(spectrum @ _mel_filters(80, 1024).T, 1e-3))
    return mel


def mel_distance(wave: np.ndarray, reference: np.ndarray) -> float:
    """Return the mean absolute log-mel difference of two waves of (nearly) equal length."""
    n = min(len(wave), len(reference))
    return float(np.abs(log_mel(wave[:n]) - log_mel(reference[:n])).mean())


def rms(wave: np.ndarray) -> float:
    """Return the root mean square of a wave."""
    return float(np.sqrt((wave.astype(np.float64) ** 2).mean())) if len(wave) else 0.0
