"""Audio files of strangers, decoded piece by piece to mono at a given rate. Blocks: worker threads.

Only the kinds of files and the decoders that are named here are opened: FFmpeg knows formats that
name other files and addresses to be read.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import BinaryIO, Final

import av
import numpy as np
import numpy.typing as npt

from models.errors import ModelError

Pcm = npt.NDArray[np.float32]

FORMATS: Final = ("wav", "flac", "mp3", "ogg", "aac", "mov", "matroska")
"""`mov` is MP4 and M4A as well, `matroska` is WebM as well."""
KINDS: Final = "flac, m4a, mp3, mp4, ogg, opus, wav, webm"
"""The same for people."""
GUESSED_LENGTH: Final = ("mp3", "aac")
"""Without a table of contents: what they seem to last may be far off."""
DECODERS: Final = frozenset(
    (
        *("flac", "mp3", "mp3float", "mp2", "mp2float", "vorbis", "opus", "libopus", "aac", "alac"),
        *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"),
        *("pcm_s16be", "pcm_s24be", "pcm_mulaw", "pcm_alaw", "adpcm_ms", "adpcm_ima_wav"),
    )
)
MIN_RATE_HZ: Final = 4_000
MAX_RATE_HZ: Final = 384_000
MAX_CHANNELS: Final = 8
MAX_SHOWN_CHARACTERS: Final = 80
PIECE_S: Final = 4.0
"""Decoded in one call: a few milliseconds of a worker, so that nobody waits long for it."""


class RecordingError(ModelError):
    """A file cannot be used.

    Args:
        code: stable name for clients.
        message: what is wrong and what would be accepted.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Recording:
    """One file being read.

    Args:
        file: from its beginning; stays the caller's.
        rate_hz: of what comes out.
        max_s: longest sound.
        takes_holes: samples that are no numbers are silence; otherwise they are refused.

    Raises:
        RecordingError: it is empty, of another kind, or has no sound.
    """

    def __init__(
        self, file: BinaryIO, *, rate_hz: int, max_s: float, takes_holes: bool = True
    ) -> None:
        self._rate_hz = rate_hz
        self._max_s = max_s
        self._takes_holes = takes_holes
        self._n_samples = 0
        # A caller that gave up may close it while a worker still reads.
        self._lock = threading.Lock()
        if not file.read(1):
            raise RecordingError("empty_file", "the file is empty")
        file.seek(0, io.SEEK_SET)
        self._container = _opened(file)
        try:
            self._stream = _sound_of(self._container)
            if self._container.format.name not in GUESSED_LENGTH:
                self._check_length(float(self._container.duration or 0) / av.time_base)
        except RecordingError:
            self.close()
            raise
        self._blocks = self._decode()

    @property
    def seconds(self) -> float:
        """Sound that has been decoded."""
        return self._n_samples / self._rate_hz

    def read(self) -> Pcm | None:
        """The next seconds, float32 `(n,)` in [-1, 1]; None at the end.

        Raises:
            RecordingError: it breaks off, is too long, or has holes that are not taken.
        """
        with self._lock:
            blocks: list[Pcm] = []
            end_s = self.seconds + PIECE_S
            while self.seconds < end_s and (block := next(self._blocks, None)) is not None:
                blocks.append(block)
            self._check_length(self.seconds)
        pcm = np.concatenate([np.zeros(0, dtype=np.float32), *blocks])
        # Float files may hold anything.
        if not self._takes_holes and not np.isfinite(pcm).all():
            raise RecordingError("invalid_audio", "it has samples that are not numbers")
        return np.clip(np.nan_to_num(pcm), -1.0, 1.0) if len(pcm) else None

    def close(self) -> None:
        """Give the decoder back, once nobody reads."""
        with self._lock:
            self._container.close()

    def _decode(self) -> Iterator[Pcm]:
        to_mono = av.AudioResampler(format="flt", layout="mono", rate=self._rate_hz)
        try:
            for frame in self._container.decode(self._stream):
                assert isinstance(frame, av.AudioFrame), "the stream is one of sound"
                yield self._joined(to_mono.resample(frame))
            yield self._joined(to_mono.resample(None))
        # PyAV raises ValueError where a file changes its rate or its channels on the way.
        except (av.FFmpegError, ValueError) as error:
            message = f"the file cannot be decoded after {self.seconds:.1f} s: {_reason(error)}"
            raise RecordingError("invalid_audio", message) from None

    def _joined(self, frames: list[av.AudioFrame]) -> Pcm:
        blocks = [frame.to_ndarray()[0] for frame in frames]
        joined = np.concatenate([np.zeros(0, dtype=np.float32), *blocks])
        self._n_samples += len(joined)
        return joined

    def _check_length(self, seconds: float) -> None:
        if seconds > self._max_s:
            message = f"the sound is longer than {self._max_s:g} s"
            raise RecordingError("audio_too_long", message)


def _opened(file: BinaryIO) -> av.container.InputContainer:
    options = {
        "format_whitelist": ",".join(FORMATS),
        "codec_whitelist": ",".join(sorted(DECODERS)),
        "protocol_whitelist": "",
    }
    try:
        return av.open(file, "r", options=options, metadata_errors="ignore")
    except (av.FFmpegError, ValueError) as error:
        message = f"the file is no sound that can be read ({_reason(error)}); accepted: {KINDS}"
        raise RecordingError("invalid_audio", message) from None


def _sound_of(container: av.container.InputContainer) -> av.AudioStream:
    if not container.streams.audio:
        raise RecordingError("no_audio", f"the file holds no sound; accepted: {KINDS}")
    stream = container.streams.audio[0]
    decoder = stream.codec_context.name
    if decoder not in DECODERS:
        message = f"sound of the kind {_shown(decoder)} is not decoded; accepted: {KINDS}"
        raise RecordingError("invalid_audio", message)
    rate_hz, n_channels = stream.codec_context.sample_rate, stream.codec_context.channels
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ or not 1 <= n_channels <= MAX_CHANNELS:
        message = f"sound of {rate_hz} Hz in {n_channels} channels is not decoded"
        raise RecordingError("invalid_audio", message)
    return stream


def _reason(error: av.FFmpegError | ValueError) -> str:
    return _shown(getattr(error, "strerror", None) or str(error))


def _shown(text: str) -> str:
    """What a file or its decoder says, short and as valid Unicode."""
    return text[:MAX_SHOWN_CHARACTERS].encode("utf-8", "backslashreplace").decode()
