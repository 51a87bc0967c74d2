"""What callers say into their microphones: short recordings, ready to be sent in frames of 20 ms.

The files are speech of Parley's own embedded voice (pico), made once by
`python -m loadtest.traffic.make_recordings` with the seeds below. Opus packets are made once and
sent by every caller, so that a caller costs a send and no encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from realtime.audio.coder import pcm16_bytes
from realtime.audio.files import read_audio
from realtime.audio.opus import OpusEncoder
from realtime.audio.resample import Resampler
from realtime.client.received_audio import Pcm
from realtime.client.talked import end_of_sound
from realtime.frames import AudioCodec

FOLDER: Final = Path(__file__).with_name("recordings")
RATE_HZ: Final = 24_000
FRAME_SAMPLES: Final = RATE_HZ // 50
BITRATE_BPS: Final = 24_000
COMPLEXITY: Final = 5
ONSET: Final = 0.01
"""Where somebody who interrupts begins to be loud: -40 dB of full scale, of single samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """Something to say: the words, the name of the file, and the seed it was made with."""

    name: str
    text: str
    seed: int


QUESTIONS: Final = (
    Phrase(name="italy", text="What is the capital of Italy?", seed=1),
    Phrase(name="week", text="How many days are there in a week?", seed=2),
    Phrase(name="sky", text="What colour is the sky?", seed=3),
    Phrase(name="cows", text="What do cows drink?", seed=4),
    Phrase(name="sun", text="Where does the sun rise?", seed=5),
    Phrase(name="bread", text="How do I bake a loaf of bread?", seed=6),
    Phrase(name="dog", text="Tell me a story about a little dog.", seed=7),
    Phrase(name="garden", text="What should I plant in my garden this spring?", seed=8),
)
INTERRUPTIONS: Final = (
    Phrase(name="wait", text="Wait, please tell me something about the moon.", seed=11),
    Phrase(name="stop", text="Stop there, how many legs does a spider have?", seed=12),
    Phrase(name="sorry", text="Sorry, what is the biggest city in France?", seed=13),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A phrase in frames of 20 ms.

    Args:
        text: that was spoken.
        frames: payloads, of `FRAME_SAMPLES` each.
        onset_s: its first loud sample.
        end_s: its last sound.
    """

    text: str
    frames: tuple[bytes, ...]
    onset_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Everything that callers say, in one form of audio; `silence` is a frame of it."""

    codec: AudioCodec
    questions: tuple[Recording, ...]
    interruptions: tuple[Recording, ...]
    silence: bytes


def load_recordings(codec: AudioCodec) -> Recordings:
    """Read and code all phrases. Blocks. Raises: `AudioFileError`."""
    return Recordings(
        codec=codec,
        questions=tuple(_load(phrase, codec) for phrase in QUESTIONS),
        interruptions=tuple(_load(phrase, codec) for phrase in INTERRUPTIONS),
        silence=_frames(np.zeros(FRAME_SAMPLES, np.float32), codec)[0],
    )


def _load(phrase: Phrase, codec: AudioCodec) -> Recording:
    pcm, rate_hz = read_audio(FOLDER / f"{phrase.name}.opus")
    resampler = Resampler(rate_hz, RATE_HZ)
    return recording_of(
        phrase.text, np.concatenate([resampler.push(pcm), resampler.finish()]), codec
    )


def recording_of(text: str, pcm: Pcm, codec: AudioCodec) -> Recording:
    """A recording of samples `(n,)` float32 at `RATE_HZ`."""
    loud = np.flatnonzero(np.abs(pcm) > ONSET)
    return Recording(
        text=text,
        frames=tuple(_frames(pcm, codec)),
        onset_s=float(loud[0]) / RATE_HZ if len(loud) else 0.0,
        end_s=end_of_sound(pcm) / RATE_HZ,
    )


def _frames(pcm: Pcm, codec: AudioCodec) -> list[bytes]:
    whole = np.pad(pcm, (0, -len(pcm) % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES)
    if codec == "pcm16":
        return [pcm16_bytes(one) for one in whole]
    encoder = OpusEncoder(sample_rate_hz=RATE_HZ, bitrate_bps=BITRATE_BPS, complexity=COMPLEXITY)
    return [encoder.encode(one) for one in whole]
