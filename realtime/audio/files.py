"""Writes and reads audio files (WAV, FLAC, Ogg Opus) through PyAV. Blocks: not for the event loop.

The wire carries bare packets or PCM; only files have containers, and only this module knows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import av
import av.audio
import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.float32]

CODECS = {".wav": "pcm_s16le", ".flac": "flac", ".opus": "libopus", ".ogg": "libopus"}
_CONTAINERS = {".wav": "wav", ".flac": "flac", ".opus": "ogg", ".ogg": "ogg"}
_OPUS_RATE_HZ = 48_000
_OPUS_BITRATE_BPS = 48_000
_BLOCK_SAMPLES = 4096


class AudioFileError(Exception):
    """A file cannot be written or read. The message is one line and says what to do."""


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before anyone has waited for its audio.

    Raises:
        AudioFileError: the suffix is unknown, the folder is missing or not writable, or what is
            there is no file.
    """
    if path.suffix.lower() not in CODECS:
        raise AudioFileError(
            f"cannot write {path.name!r}: the name must end in one of {', '.join(CODECS)}"
        )
    folder = path.parent
    if not folder.is_dir():
        raise AudioFileError(f"folder {folder} does not exist; make it with: mkdir -p {folder}")
    if path.exists() and not path.is_file():
        raise AudioFileError(f"cannot write {path}: it is there and is no file; give another name")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise AudioFileError(f"cannot write {path}: no permission; give another place with -o")


def write_audio(path: Path, pcm: Pcm, sample_rate_hz: int) -> None:
    """Write mono `pcm` `(n_samples,)` float32 in [-1, 1] to `path`; the suffix chooses the form.

    WAV and FLAC hold 16-bit samples, exactly as many as were given. Opus runs at 48 kHz.

    Raises:
        AudioFileError: see `check_target`; or the disk is full.
    """
    check_target(path)
    suffix = path.suffix.lower()
    rate_hz = _OPUS_RATE_HZ if CODECS[suffix] == "libopus" else sample_rate_hz
    try:
        with av.open(str(path), "w", format=_CONTAINERS[suffix]) as container:
            stream = container.add_stream(CODECS[suffix], rate=rate_hz, layout="mono")
            assert isinstance(stream, av.AudioStream), "CODECS names audio codecs only"
            if CODECS[suffix] == "libopus":
                stream.bit_rate = _OPUS_BITRATE_BPS
            container.start_encoding()
            for frame in _frames(pcm, sample_rate_hz, rate_hz):
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    except (OSError, av.FFmpegError) as error:
        path.unlink(missing_ok=True)
        raise AudioFileError(f"cannot write {path}: {error.strerror or error}") from error


def read_audio(path: Path) -> tuple[Pcm, int]:
    """Read a whole file as mono float32 `(n_samples,)` and its sample rate in Hz.

    Raises:
        AudioFileError: it is missing or holds no audio.
    """
    try:
        with av.open(str(path)) as container:
            if not container.streams.audio:
                raise AudioFileError(f"{path} holds no audio")
            rate_hz = container.streams.audio[0].rate
            to_mono = av.AudioResampler(format="flt", layout="mono", rate=rate_hz)
            blocks = [
                out.to_ndarray()[0]
                for frame in container.decode(audio=0)
                for out in to_mono.resample(frame)
            ]
    except (OSError, av.FFmpegError) as error:
        raise AudioFileError(f"cannot read {path}: {error.strerror or error}") from error
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32), rate_hz


def _frames(pcm: Pcm, from_hz: int, to_hz: int) -> Iterator[av.AudioFrame]:
    """Blocks of 16-bit mono frames at `to_hz`, with time stamps."""
    samples = np.round(np.clip(pcm, -1.0, 1.0) * 32767.0).astype(np.int16)
    resampler = av.AudioResampler(format="s16", layout="mono", rate=to_hz)
    if len(samples) == 0:
        return
    for start in range(0, len(samples), _BLOCK_SAMPLES):
        block = av.AudioFrame.from_ndarray(
            samples[None, start : start + _BLOCK_SAMPLES], format="s16", layout="mono"
        )
        block.sample_rate = from_hz
        block.pts = start
        yield from resampler.resample(block)
    yield from resampler.resample(None)
