"""What the audio of one stream costs the gateway: resampled and encoded, without a server."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from realtime.audio.coder import AudioCoder
from realtime.events import OutputInfo
from realtime.frames import AudioCodec

SECONDS: Final = 10
CHUNK_S: Final = 0.08
N_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Milliseconds of CPU for a second of audio, one thread."""

    codec: AudioCodec
    model_rate_hz: int
    rate_hz: int
    cpu_ms_per_s: float


def measure_encoding(codec: AudioCodec, model_rate_hz: int, rate_hz: int) -> Encoding:
    """Code seconds of noise and tone as a response is coded, in chunks."""
    draws = np.random.default_rng(0).standard_normal(SECONDS * model_rate_hz)
    tone = np.sin(np.arange(len(draws)) * 0.05)
    pcm = (0.1 * draws + 0.3 * tone).astype(np.float32)
    chunk = round(CHUNK_S * model_rate_hz)
    output = OutputInfo(codec=codec, sample_rate_hz=rate_hz)
    rounds = []
    for _ in range(N_ROUNDS):
        coder = AudioCoder(model_rate_hz, output)
        start_s = time.thread_time()
        for first in range(0, len(pcm), chunk):
            coder.push(pcm[first : first + chunk])
        coder.finish()
        rounds.append(1000 * (time.thread_time() - start_s) / SECONDS)
    return Encoding(
        codec=codec,
        model_rate_hz=model_rate_hz,
        rate_hz=rate_hz,
        cpu_ms_per_s=statistics.median(rounds),
    )
