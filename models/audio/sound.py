"""Sound that comes with a request, as a file in base64 or as samples. Worker threads.

What families take of strangers passes here, whatever it is for: `models.audio.reference` (a voice
to speak with) and `models.audio.spoken` (what the user says). It comes out mono, at the family's
rate, without the silence around it, and with a key by which a family keeps what it made of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from models.audio.cache import ContentCache
from models.audio.recordings import KINDS, Recording, RecordingError
from models.audio.resample import resample
from models.errors import PlanError

Pcm = npt.NDArray[np.float32]

BLOCK_S: Final = 0.02
PADDING_S: Final = 0.2
"""That a file may have beyond the longest sound: coders fill their last frames. It is cut off."""
MARGIN_S: Final = 0.1
"""Kept around the sound: first and last sounds are soft."""
QUIET: Final = 0.01
"""Blocks under this part of the loudest are silence at an end: 40 dB."""
SILENT: Final = 1e-3
"""A recording that is nowhere louder holds no voice: 60 dB under full scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """Sound as a family takes it.

    Args:
        pcm: float32 mono `(n,)`, n > 0.
        rate_hz: of it.
        key: names the samples.
    """

    pcm: Pcm
    rate_hz: int
    key: str


class SoundReader:
    """Reads what clients give as one option, or programs as samples.

    Args:
        option: its name; refusals name it.
        least_s: shortest sound, without the silence around it; 0: one sample will do.
        n_kept: files of which the samples are kept: every unit of a response asks for its own.
    """

    def __init__(self, option: str, *, least_s: float, n_kept: int) -> None:
        self.option = option
        self._least_s = least_s
        self._files: ContentCache[Sound] = ContentCache(n_kept)

    def of_file(self, text: str, rate_hz: int, most_s: float) -> Sound:
        """The sound of a file in base64, which may stand in a `data:` address.

        Args:
            text: the file.
            rate_hz: at which it is wanted.
            most_s: longest sound, with the silence around it.

        Raises:
            PlanError: `invalid_audio` (no sound file, no numbers), `empty_file`, `no_audio` (a file
                without sound), `empty_audio` (silence), `audio_too_short`, `audio_too_long`.
        """
        name = f"{rate_hz}/{most_s:g}/{hashlib.sha256(text.encode()).hexdigest()}"
        return self._files.get(
            name,
            lambda: self.of_samples(self._decoded(text, rate_hz, most_s), rate_hz, rate_hz, most_s),
        )

    def of_samples(self, pcm: Pcm, from_hz: int, rate_hz: int, most_s: float) -> Sound:
        """The same of samples `(n,)` at `from_hz`."""
        if not np.isfinite(pcm).all():
            raise self.refused("invalid_audio", "has samples that are not numbers")
        if len(pcm) > most_s * from_hz:
            # Rounded away from the limit, so that what is refused is not told as what is taken.
            seconds = math.ceil(100 * len(pcm) / from_hz) / 100
            raise self.refused("audio_too_long", f"has {seconds:g} s, at most {most_s:g} are taken")
        sound = _without_silence(np.ascontiguousarray(pcm, dtype=np.float32), from_hz)
        if not len(sound):
            raise self.refused("empty_audio", "holds no sound: it is silent from end to end")
        if len(sound) < self._least_s * from_hz:
            seconds = math.floor(100 * len(sound) / from_hz) / 100
            message = f"has {seconds:g} s of sound, {self._least_s:g} s are needed at least"
            raise self.refused("audio_too_short", message)
        at_rate = resample(torch.from_numpy(sound), from_hz, rate_hz).numpy()
        key = hashlib.sha256(at_rate.tobytes()).hexdigest()
        return Sound(pcm=at_rate, rate_hz=rate_hz, key=f"{rate_hz}/{key}")

    def refused(self, code: str, message: str) -> PlanError:
        """What is wrong with the option."""
        return PlanError(code, f"{self.option} {message}", self.option)

    def _decoded(self, text: str, rate_hz: int, most_s: float) -> Pcm:
        encoded = text.partition(",")[2] if text.startswith("data:") else text
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            message = f"is no base64; accepted: a file ({KINDS})"
            raise self.refused("invalid_audio", message) from None
        pieces = []
        try:
            recording = Recording(
                io.BytesIO(content), rate_hz=rate_hz, max_s=most_s + PADDING_S, takes_holes=False
            )
            try:
                while (piece := recording.read()) is not None:
                    pieces.append(piece)
            finally:
                recording.close()
        except RecordingError as error:
            if error.code == "audio_too_long":
                raise self.refused(error.code, f"is longer than {most_s:g} s") from None
            raise self.refused(error.code, f"cannot be used: {error.message}") from None
        pcm = np.concatenate([np.zeros(0, dtype=np.float32), *pieces])
        return pcm[: math.floor(most_s * rate_hz)]


def _without_silence(pcm: Pcm, rate_hz: int) -> Pcm:
    """From a little before the first sound to a little behind the last; empty where none is."""
    n_block, n_margin = round(BLOCK_S * rate_hz), round(MARGIN_S * rate_hz)
    padded = np.pad(pcm, (0, -len(pcm) % n_block)).reshape(-1, n_block)
    loudness = np.sqrt(np.square(padded).mean(axis=1))
    loudest = loudness.max(initial=0.0)
    if loudest < SILENT:
        return pcm[:0]
    loud = np.flatnonzero(loudness >= QUIET * loudest)
    first = max(0, int(loud[0]) * n_block - n_margin)
    return pcm[first : (int(loud[-1]) + 1) * n_block + n_margin]
