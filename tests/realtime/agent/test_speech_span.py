"""Which part of a recording is worth transcribing."""

from itertools import pairwise

import numpy as np
import pytest

from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ
from realtime.agent.speech_span import MARGIN_S, speech_windows

FRAMES_PER_S = HEARD_RATE_HZ / FRAME_SAMPLES


def recording(seconds: float) -> np.ndarray:
    """Each sample is its own number, so that a window tells where it was cut."""
    return np.arange(round(seconds * HEARD_RATE_HZ), dtype=np.float32)


def spoken(*spans_s: tuple[float, float], at: float = 0.9):
    """Probabilities of a voice in these spans."""

    def probabilities(pcm: np.ndarray) -> list[float]:
        middles_s = (np.arange(len(pcm) // FRAME_SAMPLES) + 0.5) / FRAMES_PER_S
        return [at if any(low <= s < high for low, high in spans_s) else 0.02 for s in middles_s]

    return probabilities


def span_s(window: np.ndarray) -> tuple[float, float]:
    return window[0] / HEARD_RATE_HZ, (window[-1] + 1) / HEARD_RATE_HZ


@pytest.mark.parametrize("pcm", [np.zeros(0, np.float32), np.zeros(100, np.float32), recording(3)])
def test_without_a_voice_there_is_nothing(pcm: np.ndarray):
    assert speech_windows(pcm, spoken(), max_s=10) == []


def test_a_click_is_no_voice():
    assert speech_windows(recording(3), spoken((1.0, 1.06)), max_s=10) == []


def test_samples_that_are_no_numbers_are_never_transcribed():
    pcm = recording(3)
    pcm[5] = np.nan
    assert speech_windows(pcm, spoken((0.0, 3.0)), max_s=10) == []


def test_silence_around_speech_is_cut_off():
    (window,) = speech_windows(recording(20), spoken((5.0, 6.0), (7.0, 8.0)), max_s=10)
    low_s, high_s = span_s(window)
    # A frame is 32 ms; cuts are at whole frames.
    assert low_s == pytest.approx(5.0 - MARGIN_S, abs=0.064)
    assert high_s == pytest.approx(8.0 + MARGIN_S, abs=0.064)


def test_long_speech_is_cut_in_its_pauses_and_nothing_is_lost():
    pauses = [7.0, 13.5, 22.0]
    edges = [0.0, *pauses, 30.0]
    spans = [(low + 0.1, high - 0.1) for low, high in pairwise(edges)]
    windows = speech_windows(recording(30), spoken(*spans), max_s=10)
    whole = np.concatenate(windows)
    assert np.array_equal(whole, np.arange(whole[0], whole[-1] + 1))
    assert len(windows) > 2
    assert all(len(one) <= 10 * HEARD_RATE_HZ for one in windows)
    cuts_s = [span_s(one)[1] for one in windows[:-1]]
    assert all(min(abs(cut - pause) for pause in pauses) < 0.2 for cut in cuts_s)


def test_speech_without_a_pause_is_cut_somewhere():
    windows = speech_windows(recording(60), spoken((0.0, 60.0)), max_s=10)
    # Whole frames, so up to two of them short of the limit.
    n_most = 10 * HEARD_RATE_HZ
    assert all(n_most - 2 * FRAME_SAMPLES <= len(one) <= n_most for one in windows[:-1])
    assert sum(map(len, windows)) == 60 * HEARD_RATE_HZ // FRAME_SAMPLES * FRAME_SAMPLES
