"""Reference audio: a recording of the voice that a model is to speak with. Worker threads.

The one way in for all families. A client sends a file in the option `reference_audio`, a program in
the same process gives samples as `PlanRequest.audio`; both are checked here, and come out mono, at
the rate that the family works at, without the silence around them, and with a key by which a family
keeps what it made of them (`models.audio.cache`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from models.audio.cache import ContentCache
from models.audio.recordings import KINDS, Recording, RecordingError
from models.audio.resample import resample
from models.errors import PlanError
from models.spec import OptionSpec, OptionValue, PlanRequest

LEAST_S: Final = 1.0
MOST_S: Final = 30.0
BLOCK_S: Final = 0.02
MARGIN_S: Final = 0.1
"""Kept around the sound: first and last sounds are soft."""
QUIET: Final = 0.01
"""Blocks under this part of the loudest are silence at an end: 40 dB."""
SILENT: Final = 1e-3
"""A recording that is nowhere louder holds no voice: 60 dB under full scale."""
MAX_FILES: Final = 16
"""Files of which the samples are kept, 3 MB each: every unit of a response asks for its own."""

REFERENCE_AUDIO: Final = OptionSpec(
    name="reference_audio",
    kind="audio",
    default=None,
    description=f"the voice to speak with: {LEAST_S:g} to {MOST_S:g} s of one person; "
    f"a file ({KINDS}) in base64",
)
REFERENCE_TEXT: Final = OptionSpec(
    name="reference_text",
    kind="string",
    default=None,
    description="the words of the reference audio",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A voice to speak with.

    Args:
        pcm: float32 mono `(n,)`.
        rate_hz: of it.
        key: names the samples.
    """

    pcm: npt.NDArray[np.float32]
    rate_hz: int
    key: str


_FILES: Final[ContentCache[Reference]] = ContentCache(MAX_FILES)


def read_reference(
    request: PlanRequest, options: Mapping[str, OptionValue], rate_hz: int
) -> Reference | None:
    """The reference audio of a request at `rate_hz`; None where there is none.

    Args:
        request: may hold it as samples.
        options: checked; may hold it as a file.
        rate_hz: at which the family takes it.

    Raises:
        PlanError: `invalid_audio` (no sound file, no numbers), `empty_file`, `no_audio` (a file
            without sound), `empty_audio` (silence), `audio_too_short`, `audio_too_long`,
            `invalid_reference` (both ways at once).
    """
    file = options.get(REFERENCE_AUDIO.name)
    if request.audio is not None:
        if file is not None:
            raise _refused("invalid_reference", "is given twice, as a file and as samples")
        return _prepared(request.audio, request.audio_rate_hz or rate_hz, rate_hz)
    if file is None:
        return None
    text = str(file)
    name = f"{rate_hz}/{hashlib.sha256(text.encode()).hexdigest()}"
    return _FILES.get(name, lambda: _prepared(_decoded(text, rate_hz), rate_hz, rate_hz))


def reference_words(options: Mapping[str, OptionValue], reference: Reference | None) -> str | None:
    """The words of the reference audio, stripped; None where none are given.

    Raises:
        PlanError: `invalid_reference`: words without audio.
    """
    words = str(options.get(REFERENCE_TEXT.name) or "").strip()
    if words and reference is None:
        message = f"{REFERENCE_TEXT.name} is given without {REFERENCE_AUDIO.name}"
        raise PlanError("invalid_reference", message, REFERENCE_TEXT.name)
    return words or None


def _decoded(text: str, rate_hz: int) -> npt.NDArray[np.float32]:
    """Samples of a file in base64, which may stand in a `data:` address."""
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("invalid_audio", f"is no base64; accepted: a file ({KINDS})") from None
    pieces = []
    try:
        recording = Recording(io.BytesIO(content), rate_hz=rate_hz, max_s=MOST_S, takes_holes=False)
        try:
            while (piece := recording.read()) is not None:
                pieces.append(piece)
        finally:
            recording.close()
    except RecordingError as error:
        raise _refused(error.code, f"cannot be used: {error.message}") from None
    return np.concatenate([np.zeros(0, dtype=np.float32), *pieces])


def _prepared(pcm: npt.NDArray[np.float32], from_hz: int, to_hz: int) -> Reference:
    if not np.isfinite(pcm).all():
        raise _refused("invalid_audio", "has samples that are not numbers")
    if len(pcm) > MOST_S * from_hz:
        seconds = len(pcm) / from_hz
        raise _refused("audio_too_long", f"has {seconds:.1f} s, at most {MOST_S:g} are taken")
    sound = _without_silence(np.ascontiguousarray(pcm, dtype=np.float32), from_hz)
    if not len(sound):
        raise _refused("empty_audio", "holds no sound: it is silent from end to end")
    if len(sound) < LEAST_S * from_hz:
        seconds = len(sound) / from_hz
        message = f"has {seconds:.1f} s of sound, {LEAST_S:g} s are needed at least"
        raise _refused("audio_too_short", message)
    at_rate = resample(torch.from_numpy(sound), from_hz, to_hz).numpy()
    key = hashlib.sha256(at_rate.tobytes()).hexdigest()
    return Reference(pcm=at_rate, rate_hz=to_hz, key=f"{to_hz}/{key}")


def _without_silence(pcm: npt.NDArray[np.float32], rate_hz: int) -> npt.NDArray[np.float32]:
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


def _refused(code: str, message: str) -> PlanError:
    return PlanError(code, f"{REFERENCE_AUDIO.name} {message}", REFERENCE_AUDIO.name)
