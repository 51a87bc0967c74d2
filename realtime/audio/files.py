"""Writes and reads audio files (WAV, FLAC, Ogg Opus) through PyAV. Blocks: not for the event loop.

The client's side: whole files on disk. How a container is written is `realtime.audio.containers`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import av
import numpy as np
import numpy.typing as npt

from realtime.audio.containers import CONTAINERS, ContainerWriter

Pcm = npt.NDArray[np.float32]

KINDS: Final = {".wav": "wav", ".flac": "flac", ".opus": "opus", ".ogg": "opus"}
OPUS_RATE_HZ: Final = 48_000


class AudioFileError(Exception):
    """A file cannot be written or read. The message is one line and says what to do."""


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before anyone has waited for its audio.

    Raises:
        AudioFileError: the suffix is unknown, the folder is missing or not writable, or what is
            there is no file.
    """
    if path.suffix.lower() not in KINDS:
        raise AudioFileError(
            f"cannot write {path.name!r}: the name must end in one of {', '.join(KINDS)}"
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
    container = CONTAINERS[KINDS[path.suffix.lower()]]
    rate_hz = OPUS_RATE_HZ if container.codec == "libopus" else sample_rate_hz
    try:
        writer = ContainerWriter(container, sample_rate_hz, rate_hz, path)
        writer.push(pcm)
        writer.finish()
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
