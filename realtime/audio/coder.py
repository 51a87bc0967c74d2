"""PCM of a model to the audio of one response: resampled, cut into 20 ms packets, encoded.

Pure but for its own state; worker threads, one call at a time per response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from realtime.audio.g711 import G711
from realtime.audio.opus import OpusEncoder
from realtime.audio.resample import Resampler
from realtime.events import OutputInfo
from realtime.protocol import PACKET_MS

if TYPE_CHECKING:
    # Clients import this module, and they know the wire form only.
    from engine.types import Pcm

DEFAULT_BITRATE_BPS: Final = 32_000
DEFAULT_COMPLEXITY: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """Payload of one binary frame, and the samples that it covers (padding included)."""

    payload: bytes
    n_samples: int


class AudioCoder:
    """Coder of one response.

    Args:
        model_rate_hz: of what comes in.
        output: the form that goes out.
    """

    def __init__(self, model_rate_hz: int, output: OutputInfo) -> None:
        self._resampler = Resampler(model_rate_hz, output.sample_rate_hz)
        self._held: Pcm = np.zeros(0, dtype=np.float32)
        self._n_samples = 0
        self._n_coded = 0
        self._packet_samples = output.sample_rate_hz * PACKET_MS // 1000
        self._opus = _opus_encoder(output) if output.codec == "opus" else None
        self._encode = _encoding(output, self._opus)

    @property
    def n_samples(self) -> int:
        """Samples of the response so far, at the output rate, without padding."""
        return self._n_samples

    @property
    def pre_skip_samples(self) -> int:
        """Decoded samples that come before the first of the response."""
        return self._opus.pre_skip_samples if self._opus else 0

    def n_decodable(self, n_packets: int) -> int:
        """Samples of the response that the first `n_packets` packets hold, without padding."""
        n_held = n_packets * self._packet_samples - self.pre_skip_samples
        return max(0, min(n_held, self._n_samples))

    def push(self, pcm: Pcm) -> list[Packet]:
        """Code float32 mono samples; a part of a packet waits for more."""
        return self._code_whole(self._resampler.push(pcm))

    def finish(self) -> list[Packet]:
        """The rest: the last Opus packets are padded until every sample can be decoded."""
        packets = self._code_whole(self._resampler.finish())
        if self._opus is None:
            return packets + ([self._packet(self._held)] if len(self._held) else [])
        while self._n_samples and self._n_coded < self._n_samples + self._opus.pre_skip_samples:
            padding = np.zeros(self._packet_samples - len(self._held), dtype=np.float32)
            packets.append(self._packet(np.concatenate([self._held, padding])))
            self._held = self._held[:0]
        return packets

    def _code_whole(self, pcm: Pcm) -> list[Packet]:
        self._n_samples += len(pcm)
        held = np.concatenate([self._held, pcm])
        n_whole = len(held) - len(held) % self._packet_samples
        self._held = held[n_whole:]
        return [
            self._packet(held[start : start + self._packet_samples])
            for start in range(0, n_whole, self._packet_samples)
        ]

    def _packet(self, pcm: Pcm) -> Packet:
        self._n_coded += len(pcm)
        return Packet(payload=self._encode(pcm), n_samples=len(pcm))


def pcm16_bytes(pcm: Pcm) -> bytes:
    """Little-endian int16 of float32 samples in [-1, 1]; louder ones are clipped."""
    return _pcm16(pcm).tobytes()


def _pcm16(pcm: Pcm) -> NDArray[np.int16]:
    return np.round(np.clip(pcm, -1.0, 1.0) * 32767.0).astype("<i2")


def _encoding(output: OutputInfo, opus: OpusEncoder | None) -> Callable[[Pcm], bytes]:
    if opus is not None:
        return opus.encode
    if output.codec == "pcmu" or output.codec == "pcma":
        g711 = G711[output.codec]
        return lambda pcm: g711.encode(_pcm16(pcm))
    return pcm16_bytes


def _opus_encoder(output: OutputInfo) -> OpusEncoder:
    complexity = output.complexity
    return OpusEncoder(
        sample_rate_hz=output.sample_rate_hz,
        bitrate_bps=output.bitrate_bps or DEFAULT_BITRATE_BPS,
        complexity=DEFAULT_COMPLEXITY if complexity is None else complexity,
    )
