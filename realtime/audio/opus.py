"""Opus packets. The only import of an Opus library; worker threads.

`opuslib_next` brings libopus along; `opuslib` needs the system's. Both have the same API. Encoding
is a foreign call, which lets other threads run.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from realtime.errors import OpusMissingError

if TYPE_CHECKING:
    # Clients import this module, and they know the wire form only.
    from engine.types import Pcm

LIBRARIES: Final = ("opuslib_next", "opuslib")
PACKET_S: Final = 0.02
_HINT: Final = (
    "no Opus library: pip install opuslib-next-bundled (brings libopus), or pip install opuslib "
    "and the system library (apt-get install libopus0)"
)


def load_library() -> ModuleType:
    """The Opus binding of this machine.

    Raises:
        OpusMissingError: none can be loaded; the message says what to install.
    """
    reasons = []
    for name in LIBRARIES:
        try:
            return importlib.import_module(name)
        # The bindings raise a plain Exception when libopus itself is missing.
        except Exception as error:  # noqa: BLE001 - any failure to load means the same here
            reasons.append(f"{name}: {error}")
    raise OpusMissingError(f"{_HINT} ({'; '.join(reasons)})")


class OpusEncoder:
    """Encoder of one response: 20 ms mono packets, own state, never shared.

    Args:
        sample_rate_hz: 24000 or 48000, of what comes in.
        bitrate_bps: average.
        complexity: 0 (cheap) to 10 (best).

    Raises:
        OpusMissingError: no library.
    """

    def __init__(self, *, sample_rate_hz: int, bitrate_bps: int, complexity: int) -> None:
        self._encoder: Any = load_library().Encoder(sample_rate_hz, 1, "audio")
        self._encoder.bitrate = bitrate_bps
        self._encoder.complexity = complexity
        self._pre_skip_samples = int(self._encoder.lookahead)
        self._packet_samples = round(sample_rate_hz * PACKET_S)

    @property
    def pre_skip_samples(self) -> int:
        """Decoded samples before the first one that went in, at the encoder's rate."""
        return self._pre_skip_samples

    @property
    def packet_samples(self) -> int:
        """Samples of a packet."""
        return self._packet_samples

    def encode(self, pcm: Pcm) -> bytes:
        """One packet of exactly `packet_samples` float32 samples."""
        assert len(pcm) == self._packet_samples, "the caller cuts whole packets"
        samples = np.clip(pcm, -1.0, 1.0).astype("<f4").tobytes()
        packet: bytes = self._encoder.encode_float(samples, self._packet_samples)
        return packet


class OpusDecoder:
    """Decoder of one stream of packets.

    Args:
        sample_rate_hz: of what comes out: 8000, 12000, 16000, 24000 or 48000.

    Raises:
        OpusMissingError: no library.
    """

    def __init__(self, *, sample_rate_hz: int) -> None:
        self._decoder: Any = load_library().Decoder(sample_rate_hz, 1)
        self._max_samples = round(sample_rate_hz * 0.12)

    def decode(self, packet: bytes) -> Pcm:
        """Float32 samples of one packet."""
        pcm: bytes = self._decoder.decode_float(packet, self._max_samples)
        return np.frombuffer(pcm, dtype="<f4").astype(np.float32)
