"""Where speech starts, pauses and ends, from voice activity frame by frame. Sans-I/O.

Hysteresis, minimum speech and prefix padding keep clicks out and first sounds in. A turn ends by
silence; how much of it is needed may depend on a verdict from outside, which is asked for at each
pause. Where frames stop coming, the wall clock ends the turn. While the agent speaks, a voice must
be clearer, louder and longer, so that its echo does not interrupt.

Positions count samples at 16 kHz from the start of the audio; times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ
from realtime.conversation.endings import Finality

SAMPLES_PER_MS: Final = HEARD_RATE_HZ // 1000
FRAME_MS: Final = FRAME_SAMPLES / SAMPLES_PER_MS

EndCause = Literal["silence", "finished", "starved", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """When speech counts as such.

    Args:
        threshold: voice probability from which a frame is speech.
        hysteresis: how far it must fall under the threshold to be silence.
        min_speech_ms: of speech before it counts; shorter sounds are passed over.
        prefix_ms: kept from before the first speech.
        tail_ms: kept of the silence after the last.
        pause_ms: of silence after which a verdict is asked for.
        silence_ms: that ends a turn without a verdict, or with an undecided one.
        finished_ms: that ends a turn which is finished by the verdict.
        unfinished_ms: that ends a turn which is not.
        starved_ms: without a frame, by the wall clock, that end a turn.
        max_turn_ms: a longer turn is cut.
        barge_in_threshold: as `threshold`, while the agent speaks.
        barge_in_speech_ms: as `min_speech_ms`, while the agent speaks.
        barge_in_level_db: frames under this level (dB of full scale) are echo while it speaks.
    """

    threshold: float = 0.5
    hysteresis: float = 0.15
    min_speech_ms: float = 128
    prefix_ms: float = 300
    tail_ms: float = 200
    pause_ms: float = 192
    silence_ms: float = 500
    finished_ms: float = 288
    unfinished_ms: float = 2000
    starved_ms: float = 800
    max_turn_ms: float = 60_000
    barge_in_threshold: float = 0.8
    barge_in_speech_ms: float = 160
    barge_in_level_db: float = -45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted:
    """The user speaks; `start` is where the turn's audio starts, padding included."""

    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechPaused:
    """The user is silent for now: the turn so far is `start` to `end`. Ask for a verdict.

    `pause_number` names the pause; it counts up.
    """

    start: int
    end: int
    pause_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechResumed:
    """The user goes on after a pause; what was begun for its sake is void."""

    pause_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The turn is over: its audio is `start` to `end`, the last speech stopped at `speech_end`.

    `pause_number` is the pause that it ended with; None where it was cut.
    """

    start: int
    end: int
    speech_end: int
    cause: EndCause
    pause_number: int | None


EndpointEvent = SpeechStarted | SpeechPaused | SpeechResumed | TurnEnded


class Endpointer:
    """Endpoints of one stream of audio.

    Args:
        settings: when speech counts as such.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self._position = 0
        self._floor = 0
        self._start: int | None = None
        self._speech_end = 0
        self._n_candidate = 0
        self._n_silent = 0
        self._is_paused = False
        self._n_pauses = 0
        self._finality: Finality = "undecided"
        self._last_frame_s = 0.0

    @property
    def is_speaking(self) -> bool:
        """Whether a turn is under way, pauses included."""
        return self._start is not None

    @property
    def position(self) -> int:
        """Samples that have been judged."""
        return self._position

    @property
    def keep_from(self) -> int:
        """Samples before this will never be part of a turn."""
        if self._start is not None:
            return self._start
        n_kept = _frames(self.settings.prefix_ms) + self._n_candidate + self._n_silent
        return max(self._floor, self._position - n_kept * FRAME_SAMPLES)

    def push(
        self, probability: float, level_db: float, now_s: float, *, is_agent_speaking: bool
    ) -> list[EndpointEvent]:
        """Take the next frame.

        Args:
            probability: of a voice, 0 to 1.
            level_db: of the frame, relative to full scale.
            now_s: when it came.
            is_agent_speaking: whether the client plays the agent's voice now.
        """
        self._position += FRAME_SAMPLES
        self._last_frame_s = now_s
        if self._start is None:
            return self._push_quiet(probability, level_db, is_agent_speaking)
        return self._push_speaking(probability)

    def on_verdict(self, pause_number: int, finality: Finality) -> list[EndpointEvent]:
        """What is known of a pause by now. Verdicts on an earlier one are passed over."""
        if self._is_paused and pause_number == self._n_pauses:
            self._finality = finality
            return self._end_if_silent()
        return []

    def check(self, now_s: float) -> list[EndpointEvent]:
        """End a turn whose frames have stopped coming. To be called several times a second."""
        starved_s = self.settings.starved_ms / 1000
        if self._start is not None and now_s - self._last_frame_s >= starved_s:
            return self._end("starved")
        return []

    def reset(self, position: int | None = None) -> None:
        """Forget the turn under way, and take nothing from before now into the next.

        Args:
            position: where the next frame begins; None: where the last one ended.
        """
        self._start = None
        self._position = self._position if position is None else position
        self._floor = self._position
        self._n_candidate = self._n_silent = 0
        self._is_paused = False

    def _push_quiet(
        self, probability: float, level_db: float, is_agent_speaking: bool
    ) -> list[EndpointEvent]:
        settings = self.settings
        threshold, min_ms = settings.threshold, settings.min_speech_ms
        if is_agent_speaking:
            threshold = max(threshold, settings.barge_in_threshold)
            min_ms = max(min_ms, settings.barge_in_speech_ms)
            if level_db < settings.barge_in_level_db:
                probability = 0.0
        if probability >= threshold:
            # What lay between two speech frames was part of a word after all.
            self._n_candidate += 1 + self._n_silent
            self._n_silent = 0
        elif self._n_candidate and probability >= threshold - settings.hysteresis:
            self._n_silent += 1
        else:
            self._n_candidate = self._n_silent = 0
        if self._n_candidate < _frames(min_ms):
            return []
        n_back = self._n_candidate + _frames(settings.prefix_ms)
        self._start = max(self._floor, self._position - n_back * FRAME_SAMPLES)
        self._speech_end = self._position
        self._n_candidate = self._n_silent = 0
        self._is_paused = False
        return [SpeechStarted(start=self._start)]

    def _push_speaking(self, probability: float) -> list[EndpointEvent]:
        settings = self.settings
        assert self._start is not None, "the caller has looked"
        if self._position - self._start >= settings.max_turn_ms * SAMPLES_PER_MS:
            return self._end("length")
        is_voice = probability >= settings.threshold
        if not is_voice and not self._n_silent:
            is_voice = probability >= settings.threshold - settings.hysteresis
        if is_voice:
            return self._go_on()
        self._n_silent += 1
        events: list[EndpointEvent] = []
        if not self._is_paused and self._n_silent >= _frames(settings.pause_ms):
            self._is_paused = True
            self._n_pauses += 1
            self._finality = "undecided"
            events.append(
                SpeechPaused(start=self._start, end=self._turn_end(), pause_number=self._n_pauses)
            )
        return events + self._end_if_silent()

    def _go_on(self) -> list[EndpointEvent]:
        self._n_silent = 0
        self._speech_end = self._position
        if not self._is_paused:
            return []
        self._is_paused = False
        return [SpeechResumed(pause_number=self._n_pauses)]

    def _end_if_silent(self) -> list[EndpointEvent]:
        settings = self.settings
        needed_ms = {
            "finished": settings.finished_ms,
            "undecided": settings.silence_ms,
            "unfinished": settings.unfinished_ms,
        }[self._finality]
        if not self._is_paused or self._n_silent < _frames(needed_ms):
            return []
        return self._end("finished" if self._finality == "finished" else "silence")

    def _end(self, cause: EndCause) -> list[EndpointEvent]:
        assert self._start is not None, "only a turn under way ends"
        ended = TurnEnded(
            start=self._start,
            end=self._turn_end(),
            speech_end=self._speech_end,
            cause=cause,
            pause_number=self._n_pauses if self._is_paused else None,
        )
        self.reset()
        self._floor = ended.end
        return [ended]

    def _turn_end(self) -> int:
        tail = round(self.settings.tail_ms * SAMPLES_PER_MS)
        return min(self._position, self._speech_end + tail)


def _frames(milliseconds: float) -> int:
    """Whole frames that last at least so long."""
    return -(-round(milliseconds) // round(FRAME_MS))
