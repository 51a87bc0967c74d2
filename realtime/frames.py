"""Binary frames of `parley.v1`: an 8-byte header, then one Opus packet or whole PCM16 samples.

Little endian: `u8 kind` (1 audio), `u8 codec` (1 Opus, 2 PCM16, 3 mu-law, 4 A-law), `u16 response
number`, `u32 media time in ms` (where the payload starts in its response). Both numbers wrap. No
I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal

from realtime.errors import ProtocolError

AudioCodec = Literal["opus", "pcm16", "pcmu", "pcma"]
"""Opus packets, 16-bit samples, or G.711 (mu-law, A-law: a byte a sample, 8 kHz)."""

HEADER: Final = struct.Struct("<BBHI")
HEADER_BYTES: Final = HEADER.size
KIND_AUDIO: Final = 1
CODEC_IDS: Final[dict[AudioCodec, int]] = {"opus": 1, "pcm16": 2, "pcmu": 3, "pcma": 4}
CODECS: Final[dict[int, AudioCodec]] = {number: codec for codec, number in CODEC_IDS.items()}
MEDIA_TYPES: Final[dict[AudioCodec, str]] = {
    "opus": "audio/opus",
    "pcm16": "audio/pcm",
    "pcmu": "audio/pcmu",
    "pcma": "audio/pcma",
}
PCM16_BYTES: Final = 2
G711_RATE_HZ: Final = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFrame:
    """Audio of one response.

    Args:
        codec: what the payload holds.
        response_number: 1 for the first response of a session; modulo 65536 on the wire.
        media_time_ms: of the payload's first sample; modulo 2**32 on the wire.
        payload: one Opus packet, or mono samples (int16 little-endian, or a byte each).
    """

    codec: AudioCodec
    response_number: int
    media_time_ms: int
    payload: bytes


def encode_audio_frame(frame: AudioFrame) -> bytes:
    """The bytes of `frame`."""
    header = HEADER.pack(
        KIND_AUDIO,
        CODEC_IDS[frame.codec],
        frame.response_number & 0xFFFF,
        frame.media_time_ms & 0xFFFFFFFF,
    )
    return header + frame.payload


def parse_audio_frame(message: bytes) -> AudioFrame:
    """The frame in a binary message.

    Raises:
        ProtocolError: `invalid_frame`: too short, of an unknown kind or codec, without payload, or
            with half a PCM16 sample.
    """
    if len(message) < HEADER_BYTES:
        raise ProtocolError(
            "invalid_frame", f"binary frame of {len(message)} bytes; the header has {HEADER_BYTES}"
        )
    kind, codec_id, number, media_time_ms = HEADER.unpack_from(message)
    if kind != KIND_AUDIO:
        raise ProtocolError("invalid_frame", f"frame kind {kind}; {KIND_AUDIO} (audio) is known")
    codec = CODECS.get(codec_id)
    if codec is None:
        raise ProtocolError(
            "invalid_frame",
            f"frame codec {codec_id}; known: 1 (Opus), 2 (PCM16), 3 (mu-law), 4 (A-law)",
        )
    payload = message[HEADER_BYTES:]
    if not payload:
        raise ProtocolError("invalid_frame", "binary frame without payload")
    if codec == "pcm16" and len(payload) % PCM16_BYTES:
        raise ProtocolError("invalid_frame", f"PCM16 payload of {len(payload)} bytes is odd")
    return AudioFrame(
        codec=codec, response_number=number, media_time_ms=media_time_ms, payload=payload
    )


def is_current(frame_number: int, response_number: int) -> bool:
    """Whether a frame's 16-bit number names the response `response_number` (which counts on)."""
    return frame_number == response_number & 0xFFFF
