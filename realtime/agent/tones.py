"""Tells held tones from a voice: music, hold melodies, alarms. Any thread, no state.

The notes of a chord stand still, and no throat does that: even a held vowel wavers by a hundredth,
which moves its upper harmonics. So spectra that do not change from one frame to the next are no
voice, where the voice network is not sure of itself.

Measured (November 2026): over forty sentences of a natural synthetic voice, soft and loud, clean
and in noise down to 5 dB, the similarity of neighbouring spectra stayed under 0.975; inside struck
chords it is over 0.995.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.types import Pcm
from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ

SPECTRUM_SAMPLES: Final = 2 * FRAME_SAMPLES
TONE_SAMPLES: Final = SPECTRUM_SAMPLES + FRAME_SAMPLES
"""What `is_held_tone` looks at: two spectra, one frame apart."""
HELD: Final = 0.99
LOWEST_HZ: Final = 60
HIGHEST_HZ: Final = 2500

_WINDOW: Final = np.hanning(SPECTRUM_SAMPLES)
_BINS: Final = slice(*(hz * SPECTRUM_SAMPLES // HEARD_RATE_HZ for hz in (LOWEST_HZ, HIGHEST_HZ)))


def is_held_tone(pcm: Pcm) -> bool:
    """Whether float32 `(TONE_SAMPLES,)` at `HEARD_RATE_HZ` sounds the same all along."""
    before, after = _loudness(pcm[:SPECTRUM_SAMPLES]), _loudness(pcm[FRAME_SAMPLES:])
    size = float(np.linalg.norm(before) * np.linalg.norm(after))
    return float(before @ after) > HELD * size


def _loudness(pcm: Pcm) -> Pcm:
    """The spectrum as the ear weighs it, roughly: the root of its magnitude."""
    loudness: Pcm = np.sqrt(np.abs(np.fft.rfft(_WINDOW * pcm))[_BINS])
    return loudness
