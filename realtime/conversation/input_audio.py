"""What the user said, from the wire's forms to one line of PCM at 16 kHz. No I/O; worker threads.

One decoder and one stateful resampler a stream: borders between frames leave no mark. Half a PCM16
sample at the end of a piece waits for its other half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.types import Pcm
from realtime.agent.base import HEARD_RATE_HZ
from realtime.audio.g711 import G711
from realtime.audio.opus import OpusDecoder
from realtime.audio.resample import Resampler
from realtime.errors import ProtocolError
from realtime.frames import AudioCodec

PCM16_SCALE: Final = 1 / 32768
EMPTY: Final[Pcm] = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Audio as it came: one Opus packet, or bytes of samples at `rate_hz`.

    `codec` None: in the session's form, which is looked up when its turn comes; so is the rate.
    """

    payload: bytes
    codec: AudioCodec | None
    rate_hz: int = 0


class AudioIntake:
    """Decoder of one session's audio. Pieces have their codec and rate. One call at a time."""

    def __init__(self) -> None:
        self._half = b""
        self._form: tuple[AudioCodec | None, int] | None = None
        self._resampler: Resampler | None = None
        self._opus: OpusDecoder | None = None

    def decode(self, pieces: Sequence[Piece]) -> tuple[Pcm, list[ProtocolError]]:
        """Float32 mono at 16 kHz, and what was wrong with single pieces (they are left out)."""
        decoded: list[Pcm] = []
        faults: list[ProtocolError] = []
        for piece in pieces:
            try:
                decoded.append(self._decode_one(piece))
            except ProtocolError as fault:
                faults.append(fault)
        return (np.concatenate(decoded) if decoded else EMPTY), faults

    def finish(self) -> Pcm:
        """What the resampler holds back: no more belongs to this turn."""
        return self._finish_samples()

    def clear(self) -> None:
        """Forget what waits for more: half a sample, and the resampler's memory."""
        self._half = b""
        self._resampler = None

    def _decode_one(self, piece: Piece) -> Pcm:
        return self._decode_opus(piece) if piece.codec == "opus" else self._decode_samples(piece)

    def _decode_opus(self, piece: Piece) -> Pcm:
        rest = self._finish_samples()
        if self._opus is None:
            self._opus = OpusDecoder(sample_rate_hz=HEARD_RATE_HZ)
        try:
            return np.concatenate([rest, self._opus.decode(piece.payload)])
        # The bindings' own exception type cannot be named without importing them here.
        except Exception as error:  # noqa: BLE001 - whatever the decoder says, the packet is bad
            message = f"Opus packet of {len(piece.payload)} bytes cannot be decoded: {error}"
            raise ProtocolError("invalid_audio", message) from None

    def _decode_samples(self, piece: Piece) -> Pcm:
        rest, form = EMPTY, (piece.codec, piece.rate_hz)
        if form != self._form or self._resampler is None:
            rest = self._finish_samples()
            self._form = form
            self._resampler = Resampler(piece.rate_hz, HEARD_RATE_HZ)
        payload = self._half + piece.payload
        n_whole = len(payload) - len(payload) % 2 if piece.codec == "pcm16" else len(payload)
        self._half = payload[n_whole:]
        return np.concatenate([rest, self._resampler.push(_samples(piece.codec, payload))])

    def _finish_samples(self) -> Pcm:
        """What the resampler holds back, when another form follows."""
        resampler, self._resampler, self._half = self._resampler, None, b""
        return EMPTY if resampler is None else resampler.finish()


def decode_whole(piece: Piece) -> Pcm:
    """Float32 mono at 16 kHz of samples that are complete."""
    resampler = Resampler(piece.rate_hz, HEARD_RATE_HZ)
    pcm = _samples(piece.codec, piece.payload)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


def _samples(codec: AudioCodec | None, payload: bytes) -> Pcm:
    """Float32 samples behind bytes; half a PCM16 sample at the end is left out."""
    if codec == "pcmu" or codec == "pcma":
        pcm = G711[codec].decode(payload)
    else:
        pcm = np.frombuffer(payload[: len(payload) // 2 * 2], dtype="<i2")
    return pcm.astype(np.float32) * np.float32(PCM16_SCALE)


class HeardAudio:
    """The line of PCM, by positions in samples from its start; old parts are forgotten on demand.

    Args:
        start: position of the first sample to come.
    """

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._blocks: deque[Pcm] = deque()
        self._end = start

    @property
    def start(self) -> int:
        """Position of the oldest sample that is kept."""
        return self._start

    @property
    def end(self) -> int:
        """Position after the newest sample."""
        return self._end

    def push(self, pcm: Pcm) -> None:
        """Add samples at the end."""
        if len(pcm):
            self._blocks.append(pcm)
            self._end += len(pcm)

    def cut(self, start: int, end: int) -> Pcm:
        """A copy of the samples from `start` to `end`, as far as they are kept."""
        parts = []
        at = self._start
        for block in self._blocks:
            parts.append(block[max(0, start - at) : max(0, end - at)])
            at += len(block)
        return np.concatenate(parts) if parts else EMPTY.copy()

    def forget_before(self, position: int) -> None:
        """Keep nothing from before `position`."""
        while self._blocks and self._start < position:
            block = self._blocks.popleft()
            n_over = position - self._start
            if n_over < len(block):
                self._blocks.appendleft(block[n_over:])
                n_gone = n_over
            else:
                n_gone = len(block)
            self._start += n_gone
