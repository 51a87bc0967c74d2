"""What a client makes of one response's frames: exact samples, arrival times, gaps. Sans-I/O.

Opus delays the signal by `pre_skip_samples` and pads the last packet; `ReceivedAudio` undoes both,
so that exactly the announced `n_samples` come out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from realtime.audio.g711 import G711
from realtime.audio.opus import OpusDecoder
from realtime.errors import ProtocolError
from realtime.events import OutputAudioDone, OutputAudioStarted
from realtime.frames import PCM16_BYTES, AudioFrame

Pcm = npt.NDArray[np.float32]
_PCM16_SCALE = 1.0 / 32768.0
_ROUNDING_S = 1e-6  # sums of frame durations are not exact


class Decoder(Protocol):
    """One Opus decoder; its state belongs to one response."""

    def decode(self, packet: bytes) -> Pcm:
        """Mono samples `(n_samples,)` float32 of one packet."""
        ...


def opus_decoder(sample_rate_hz: int) -> Decoder:
    """A decoder of this machine's Opus library. Raises: `OpusMissingError`."""
    return OpusDecoder(sample_rate_hz=sample_rate_hz)


class PlayoutLog:
    """Where a listener who starts with the first frame would have heard a gap.

    A frame is due when all audio before it has been played; one that comes later makes a gap and
    moves the due times of all that follow.
    """

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.n_gaps = 0
        self.gap_s = 0.0
        self._due_s = 0.0

    def add(self, duration_s: float, received_s: float) -> None:
        """Note a frame of `duration_s` that came at `received_s`."""
        if self.first_s is None:
            self.first_s = self._due_s = received_s
        self.last_s = received_s
        late_s = received_s - self._due_s
        if late_s > _ROUNDING_S:
            self.n_gaps += 1
            self.gap_s += late_s
            self._due_s = received_s
        self._due_s += duration_s


class ReceivedAudio:
    """Frames of one response to samples.

    Args:
        started: the event that opened the audio.
        make_decoder: gives an Opus decoder for a sample rate; None leaves packets undecoded.

    `done` is the event that closed it; None until then.
    """

    def __init__(
        self, started: OutputAudioStarted, make_decoder: Callable[[int], Decoder] | None
    ) -> None:
        self.started = started
        self.done: OutputAudioDone | None = None
        self.log = PlayoutLog()
        self.n_packets = 0
        self.n_bytes = 0
        self.n_samples = 0
        self._decoder = (
            make_decoder(started.sample_rate_hz) if make_decoder and self._is_opus else None
        )
        self._is_decoding = make_decoder is not None
        self._to_skip = started.pre_skip_samples
        self._held: Pcm = np.zeros(0, np.float32)

    @property
    def _is_opus(self) -> bool:
        return self.started.codec == "opus"

    def push(self, frame: AudioFrame, received_s: float) -> Pcm:
        """Take the next frame; gives the samples `(n,)` that are certain to be kept.

        The latest packet is held back: its tail may be padding, which only the end tells.
        """
        self.n_packets += 1
        self.n_bytes += len(frame.payload)
        self.log.add(self._duration_s(frame), received_s)
        if not self._is_decoding:
            return self._held
        pcm = self._samples(frame.payload)
        skipped = min(self._to_skip, len(pcm))
        self._to_skip -= skipped
        ready, self._held = self._held, pcm[skipped:]
        if not self._is_opus:
            ready, self._held = self._held, self._held[:0]
        self.n_samples += len(ready)
        return ready

    def finish(self, done: OutputAudioDone) -> Pcm:
        """The last samples, cut to the announced number.

        Raises:
            ProtocolError: fewer or more samples came than were announced.
        """
        self.done = done
        if not self._is_decoding:
            self.n_samples = done.n_samples
            return self._held
        rest = self._held[: max(0, done.n_samples - self.n_samples)]
        self.n_samples += len(rest)
        if self.n_samples != done.n_samples or self.n_packets != done.n_packets:
            raise ProtocolError(
                "audio_mismatch",
                f"{self.n_samples} samples in {self.n_packets} packets came, "
                f"{done.n_samples} in {done.n_packets} were announced",
            )
        return rest

    def _samples(self, payload: bytes) -> Pcm:
        if self._decoder is not None:
            return self._decoder.decode(payload)
        codec = self.started.codec
        if codec == "pcmu" or codec == "pcma":
            pcm16 = G711[codec].decode(payload)
        else:
            pcm16 = np.frombuffer(payload, dtype="<i2")
        return pcm16.astype(np.float32) * np.float32(_PCM16_SCALE)

    def _duration_s(self, frame: AudioFrame) -> float:
        if self._is_opus:
            return self.started.packet_ms / 1000.0
        n_bytes = PCM16_BYTES if self.started.codec == "pcm16" else 1
        return len(frame.payload) / n_bytes / self.started.sample_rate_hz
