"""One session's ears: pieces of audio in; starts, pauses and ends of speech out. Event loop only.

Decoding and the voice network run in worker threads. The line of PCM is kept as far as a turn may
still need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from engine.types import Pcm
from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ, VoiceDetector
from realtime.conversation.endings import Finality
from realtime.conversation.endpointing import (
    SAMPLES_PER_MS,
    Endpointer,
    EndpointEvent,
    EndpointSettings,
    TurnEnded,
)
from realtime.conversation.input_audio import AudioIntake, HeardAudio, Piece
from realtime.errors import ProtocolError
from realtime.workers import Workers

MIN_COMMIT_MS: Final = 100
MAX_BUFFER_S: Final = 120.0
"""Of audio that waits for a commit; more is refused."""
MIN_VOICE_FRAMES: Final = 3
"""Fewer frames of a voice are a click: a commit of them is taken for silence."""
VOICE: Final = 0.5
QUIETEST: Final = 1e-6


class Listener:
    """Ears of one session.

    Args:
        detector: finds voices.
        workers: where audio is decoded.
        clock: monotonic seconds.
        settings: None: push to talk, nothing starts or ends by itself.
    """

    def __init__(
        self,
        detector: VoiceDetector,
        workers: Workers,
        clock: Callable[[], float],
        settings: EndpointSettings | None,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._intake = AudioIntake()
        self._line = HeardAudio()
        self._track = detector.open_track()
        self._endpointer = Endpointer(settings or EndpointSettings())
        self._is_hands_free = settings is not None
        self._n_judged = 0
        self._n_voice_frames = 0
        self._has_warned_full = False
        self._is_committing = False

    @property
    def is_speaking(self) -> bool:
        """Whether a turn is under way."""
        return self._endpointer.is_speaking

    @property
    def end_ms(self) -> int:
        """How much audio has been heard since the start."""
        return self._line.end // SAMPLES_PER_MS

    @property
    def position(self) -> int:
        """Samples that have been judged."""
        return self._n_judged

    def configure(self, settings: EndpointSettings | None) -> None:
        """Change how turns are found. A turn under way is forgotten if they are not any more."""
        if settings is None or not self._is_hands_free:
            self._endpointer.reset(self._n_judged)
        self._is_hands_free = settings is not None
        if settings is not None:
            self._endpointer.settings = settings

    async def hear(
        self, pieces: Sequence[Piece], *, is_agent_speaking: Callable[[], bool]
    ) -> tuple[list[EndpointEvent], list[ProtocolError]]:
        """Take audio. Returns what happened in it, and what was wrong with it."""
        pcm, faults = await self._workers.run(self._intake.decode, pieces)
        room = round(MAX_BUFFER_S * HEARD_RATE_HZ) - (self._line.end - self._line.start)
        if len(pcm) > room:
            pcm = pcm[:room]
            if not self._has_warned_full:
                self._has_warned_full = True
                message = f"{MAX_BUFFER_S:g} s of audio wait already: commit or clear them"
                faults.append(ProtocolError("input_audio_buffer_full", message))
        self._line.push(pcm)
        return await self._judge(is_agent_speaking), faults

    def check(self) -> list[EndpointEvent]:
        """What the passing of time has led to. To be called several times a second."""
        if not self._is_hands_free or self._is_committing:
            return []
        return self._counted(self._endpointer.check(self._clock()))

    def on_verdict(self, pause_number: int, finality: Finality) -> list[EndpointEvent]:
        """What is known of a pause by now."""
        if self._is_committing:
            return []
        return self._counted(self._endpointer.on_verdict(pause_number, finality))

    def cut(self, start: int, end: int) -> Pcm:
        """The samples of a turn."""
        return self._line.cut(start, end)

    async def commit(self) -> tuple[Pcm, bool]:
        """Take what has been heard since the last turn.

        Returns:
            The samples, and whether there is a voice in them.

        Raises:
            ProtocolError: too little has been heard.
        """
        # A turn that ended by itself while the rest is judged would be in two items.
        self._is_committing = True
        try:
            return await self._commit()
        finally:
            self._is_committing = False

    async def _commit(self) -> tuple[Pcm, bool]:
        self._line.push(await self._workers.run(self._intake.finish))
        heard_ms = (self._line.end - self._line.start) / SAMPLES_PER_MS
        if heard_ms < MIN_COMMIT_MS:
            message = (
                f"Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS} ms of audio, but buffer only has {heard_ms:.2f} ms of audio."
            )
            raise ProtocolError("input_audio_buffer_commit_empty", message)
        await self._judge_rest()
        pcm = self._line.cut(self._line.start, self._line.end)
        has_voice = self._n_voice_frames >= MIN_VOICE_FRAMES
        self._forget()
        return pcm, has_voice

    def clear(self) -> None:
        """Forget what has been heard since the last turn."""
        self._intake.clear()
        self._forget()

    def _forget(self) -> None:
        self._line.forget_before(self._line.end)
        self._n_judged = self._line.end
        self._endpointer.reset(self._n_judged)
        self._n_voice_frames = 0
        self._has_warned_full = False

    async def _judge(self, is_agent_speaking: Callable[[], bool]) -> list[EndpointEvent]:
        n_samples = (self._line.end - self._n_judged) // FRAME_SAMPLES * FRAME_SAMPLES
        if not n_samples:
            return []
        start = self._n_judged
        self._n_judged += n_samples
        pcm = self._line.cut(start, start + n_samples)
        probabilities = await self._track.probabilities(pcm)
        self._n_voice_frames += sum(one >= VOICE for one in probabilities)
        if not self._is_hands_free:
            return []
        events: list[EndpointEvent] = []
        now_s = self._clock()
        for probability, level_db in zip(probabilities, levels_db(pcm), strict=True):
            events += self._endpointer.push(
                probability, level_db, now_s, is_agent_speaking=is_agent_speaking()
            )
        return self._counted(events)

    def _counted(self, events: list[EndpointEvent]) -> list[EndpointEvent]:
        """The same events; voices of a turn that is over do not count for the next."""
        if any(isinstance(event, TurnEnded) for event in events):
            self._n_voice_frames = 0
        return events

    async def _judge_rest(self) -> None:
        """Judge what is left of a turn, to the last sample."""
        pcm = self._line.cut(self._n_judged, self._line.end)
        self._n_judged = self._line.end
        if len(pcm):
            padded = np.pad(pcm, (0, -len(pcm) % FRAME_SAMPLES))
            probabilities = await self._track.probabilities(padded)
            self._n_voice_frames += sum(one >= VOICE for one in probabilities)

    def let_go(self) -> None:
        """Forget what no turn needs any more. Call once events have been handled."""
        if self._is_hands_free and not self._endpointer.is_speaking:
            self._line.forget_before(min(self._endpointer.keep_from, self._n_judged))


def levels_db(pcm: Pcm) -> list[float]:
    """Level of each frame of `(n_frames * FRAME_SAMPLES,)`, dB of full scale."""
    power = np.square(pcm.reshape(-1, FRAME_SAMPLES)).mean(axis=1)
    levels: list[float] = (10 * np.log10(power + QUIETEST**2)).tolist()
    return levels
