"""Plays what came of a stream: decodes it in a small pool of threads and works out what was heard.

Nothing is decoded while it comes: frames are kept with their times of arrival, and played when the
stream is over. What a listener would have heard is the same, and the event loop stays free.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadtest.measure.audible import Pcm
from loadtest.measure.playout import Arrival
from loadtest.measure.streams import Heard, hear
from realtime.client.received_audio import ReceivedAudio, opus_decoder
from realtime.frames import PCM16_BYTES, AudioFrame

THREADS: Final = 2


@dataclass(slots=True)
class Tape:
    """Frames of one stream, and when each came."""

    frames: list[tuple[AudioFrame, float]] = field(default_factory=list)

    def add(self, frame: AudioFrame, received_s: float) -> None:
        """Keep the next frame."""
        self.frames.append((frame, received_s))

    @property
    def first_s(self) -> float | None:
        """When the first came; None without any."""
        return self.frames[0][1] if self.frames else None


class Ears:
    """A pool that plays tapes. Close it at the end."""

    def __init__(self) -> None:
        opus_decoder(48_000)  # loads the library now, not while others are measured
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ears")

    async def hear(self, tape: Tape, audio: ReceivedAudio, zero_s: float) -> Heard:
        """What was heard of `tape`, by times from `zero_s` on.

        Raises:
            ProtocolError: other audio came than was announced.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, play, tape, audio, zero_s)

    def close(self) -> None:
        """End the threads, once they are done."""
        self._pool.shutdown()


def play(tape: Tape, audio: ReceivedAudio, zero_s: float) -> Heard:
    """See `Ears.hear`; blocks."""
    started = audio.started
    replayed = ReceivedAudio(started, opus_decoder)
    blocks: list[Pcm] = [replayed.push(frame, at_s) for frame, at_s in tape.frames]
    if audio.done is not None:
        blocks.append(replayed.finish(audio.done))
    pcm = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    return hear(arrivals_of(tape, audio, zero_s), pcm, started.sample_rate_hz)


def arrivals_of(tape: Tape, audio: ReceivedAudio, zero_s: float) -> list[Arrival]:
    """The frames as a listener needs them: without the delay of Opus, without padding."""
    started, done = audio.started, audio.done
    rate_hz = started.sample_rate_hz
    to_skip = started.pre_skip_samples
    n_left = None if done is None else done.n_samples
    arrivals = []
    for frame, at_s in tape.frames:
        is_opus = started.codec == "opus"
        n = rate_hz * started.packet_ms // 1000 if is_opus else len(frame.payload) // PCM16_BYTES
        n_skipped = min(to_skip, n)
        to_skip -= n_skipped
        n -= n_skipped
        if n_left is not None:
            n = min(n, n_left)
            n_left -= n
        arrivals.append(Arrival(received_s=at_s - zero_s, duration_s=n / rate_hz))
    return arrivals
