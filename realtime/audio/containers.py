"""Audio files while they grow: samples in, bytes of the file out, nothing written twice. By PyAV.

Pure but for its own state; blocks: worker threads, one call at a time for each file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
import numpy as np

from realtime.audio.coder import pcm16_bytes
from realtime.audio.resample import Resampler

if TYPE_CHECKING:
    # Clients import this module, and they know the wire form only.
    from engine.types import Pcm

BLOCK_SAMPLES: Final = 4096
"""Samples that are given to an encoder at once."""
OGG_PAGE_US: Final = "20000"
"""One packet a page. The muxer holds the newest page back, in case it is the last: 20 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A kind of file.

    Args:
        muxer: FFmpeg's name of the container; empty: bare samples.
        codec: FFmpeg's name of the encoder.
        content_type: for HTTP.
        bit_rate_bps: where the encoder wants one.
        options: of the muxer.
    """

    muxer: str
    codec: str
    content_type: str
    bit_rate_bps: int | None = None
    options: dict[str, str] = field(default_factory=dict)


CONTAINERS: Final = {
    "pcm": Container(muxer="", codec="", content_type="audio/pcm"),
    # FFmpeg writes the largest length where it cannot come back to write the true one.
    "wav": Container(
        muxer="wav", codec="pcm_s16le", content_type="audio/wav", options={"fflags": "bitexact"}
    ),
    "flac": Container(
        muxer="flac",
        codec="flac",
        content_type="audio/flac",
        options={"metadata_header_padding": "0"},
    ),
    "mp3": Container(
        muxer="mp3",
        codec="libmp3lame",
        content_type="audio/mpeg",
        bit_rate_bps=96_000,
        options={"write_xing": "0", "id3v2_version": "0"},
    ),
    "aac": Container(muxer="adts", codec="aac", content_type="audio/aac", bit_rate_bps=96_000),
    "opus": Container(
        muxer="ogg",
        codec="libopus",
        content_type="audio/ogg",
        bit_rate_bps=48_000,
        options={"page_duration": OGG_PAGE_US},
    ),
}
"""By the names of the OpenAI API."""


class ContainerWriter:
    """One file of mono sound.

    WAV, FLAC, Opus and bare PCM decode to exactly `round(n_in * out / in)` samples; MP3 and AAC
    have no place for the samples of their padding, and come out some 50 to 100 ms longer.

    Args:
        container: the kind of file.
        in_rate_hz: of the samples that come in.
        out_rate_hz: of the file.
        path: of a file on disk, which then gets everything, its true length too; None: the bytes
            are given back, and the length is unknown.
    """

    def __init__(
        self, container: Container, in_rate_hz: int, out_rate_hz: int, path: Path | None = None
    ) -> None:
        self._resampler = Resampler(in_rate_hz, out_rate_hz)
        self._encoded = _Encoded(container, out_rate_hz, path) if container.muxer else None

    def push(self, pcm: Pcm) -> bytes:
        """More float32 samples `(n,)` in [-1, 1]; louder ones are clipped. Bytes that are ready."""
        return self._write(self._resampler.push(pcm))

    def finish(self) -> bytes:
        """The rest of the file. Call once."""
        rest = self._write(self._resampler.finish())
        return rest + self._encoded.finish() if self._encoded else rest

    def _write(self, pcm: Pcm) -> bytes:
        samples = pcm16_bytes(pcm)
        return self._encoded.push(samples) if self._encoded else samples


class _Encoded:
    """The encoder and the muxer of one file, which writes what it has at once."""

    def __init__(self, container: Container, rate_hz: int, path: Path | None) -> None:
        self._rate_hz = rate_hz
        self._n_samples = 0
        self._sink = _Sink()
        options = {**container.options, "flush_packets": "1"}
        target = self._sink if path is None else str(path)
        self._muxer = av.open(target, "w", format=container.muxer, options=options)
        stream = self._muxer.add_stream(container.codec, rate=rate_hz, layout="mono")
        assert isinstance(stream, av.AudioStream), "CONTAINERS names audio codecs only"
        self._stream = stream
        if container.bit_rate_bps is not None:
            stream.bit_rate = container.bit_rate_bps
        self._muxer.start_encoding()

    def push(self, samples: bytes) -> bytes:
        pcm = np.frombuffer(samples, np.int16)
        for start in range(0, len(pcm), BLOCK_SAMPLES):
            block = pcm[np.newaxis, start : start + BLOCK_SAMPLES]
            frame = av.AudioFrame.from_ndarray(block, format="s16", layout="mono")
            frame.sample_rate = self._rate_hz
            frame.pts = self._n_samples
            frame.time_base = Fraction(1, self._rate_hz)
            self._n_samples += block.shape[1]
            self._muxer.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        self._muxer.mux(self._stream.encode(None))
        self._muxer.close()
        return self._sink.take()


class _Sink:
    """A file that cannot be gone back in."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def take(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole
