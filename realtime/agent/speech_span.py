"""Where in a recording somebody speaks: what is worth transcribing, and where to cut it.

Any thread. Recognition turns silence, noise and tones into words ("Thank you."). What holds no
voice never reaches it, and what is before and after the voice is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from engine.types import Pcm
from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ
from realtime.agent.vad import SileroVad, VadState

Probabilities = Callable[[Pcm], Sequence[float]]
"""Speech probability of each whole frame of a recording."""

VOICED: Final = 0.5
FAINT: Final = 0.3
"""Over this a frame next to a voice belongs to it: first and last sounds are soft."""
MIN_VOICED_FRAMES: Final = 3
"""Under 0.1 s of voice is a click or a cough; the shortest words have 0.2 s."""
MARGIN_S: Final = 0.4
"""Kept on both sides."""


def voice_probabilities(vad: SileroVad) -> Probabilities:
    """Frame probabilities by Silero VAD, each recording on its own."""
    return partial(_probabilities, vad)


def speech_windows(pcm: Pcm, probabilities: Probabilities, *, max_s: float) -> list[Pcm]:
    """The spoken part of `pcm`, cut at its quietest places into windows of at most `max_s`.

    Args:
        pcm: float32 mono `(n,)` at `HEARD_RATE_HZ`.
        probabilities: of speech.
        max_s: longest window.

    Returns:
        Nothing where nobody speaks.
    """
    pcm = pcm[: len(pcm) // FRAME_SAMPLES * FRAME_SAMPLES]
    if not len(pcm) or not np.isfinite(pcm).all():
        return []
    heard = np.asarray(probabilities(pcm))
    if (heard >= VOICED).sum() < MIN_VOICED_FRAMES:
        return []
    faint = (heard >= FAINT).nonzero()[0]
    margin = _frames(MARGIN_S)
    start, end = max(0, int(faint[0]) - margin), min(len(heard), int(faint[-1]) + 1 + margin)
    cuts = [start]
    most = _frames(max_s)
    while end - cuts[-1] > most:
        cuts.append(_quietest(heard, cuts[-1] + most // 2, cuts[-1] + most))
    cuts.append(end)
    return [pcm[low * FRAME_SAMPLES : high * FRAME_SAMPLES] for low, high in pairwise(cuts)]


def _quietest(heard: np.ndarray, low: int, high: int) -> int:
    """The last frame in `[low, high)` with the least voice around it."""
    around = np.convolve(heard, np.ones(5), mode="same")
    return high - 1 - int(around[low:high][::-1].argmin())


def _frames(seconds: float) -> int:
    return int(seconds * HEARD_RATE_HZ / FRAME_SAMPLES)


def _probabilities(vad: SileroVad, pcm: Pcm) -> Sequence[float]:
    return vad.probabilities([VadState()], [pcm])[0]
