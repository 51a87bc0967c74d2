"""What a client keeps of a conversation: turns, answers, and when they could be heard. Sans-I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from realtime.client.received_audio import Pcm, ReceivedAudio
from realtime.client.spoken import ClientError
from realtime.conversation.events import AnswerInfo

AUDIBLE: Final = 0.003
"""-50 dB of full scale: what is under it is not taken for sound."""


class NoAnswerError(ClientError):
    """The server heard no question, or gave no answer to it."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """A turn of the user. Times are of this client's clock, in s.

    Args:
        item_id: the server's name for it.
        started_s: news that the user speaks.
        stopped_s: news that the turn is over.
        transcript: None until it is known.
        start_ms: where it starts in the audio that was sent, padding included, as the server says.
        end_ms: where its last speech ends.
    """

    item_id: str
    started_s: float
    stopped_s: float | None = None
    transcript: str | None = None
    start_ms: int = 0
    end_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Answer:
    """A response while it comes. Times are of this client's clock, in s.

    Args:
        info: the server's; `timing` and `usage` once it is over.
        created_s: news of it.
        text: that is spoken.
        audio: its frames; None until the first.
        blocks: decoded samples `(n,)` float32 at `sample_rate_hz`.
        first_sound_s: when the first audible sample could be heard.
        last_frame_s: when the last frame came.
        cleared_s: news that it is to be silenced.
        is_done: its last event has come.
    """

    info: AnswerInfo
    created_s: float
    text: str = ""
    audio: ReceivedAudio | None = None
    blocks: list[Pcm] = field(default_factory=list)
    first_sound_s: float | None = None
    last_frame_s: float | None = None
    cleared_s: float | None = None
    is_done: bool = False
    n_samples: int = 0

    @property
    def sample_rate_hz(self) -> int:
        """Of the samples; 0 without audio."""
        return 0 if self.audio is None else self.audio.started.sample_rate_hz

    def pcm(self) -> Pcm:
        """All samples `(n,)` float32 so far."""
        return np.concatenate(self.blocks) if self.blocks else np.zeros(0, np.float32)

    def add(self, pcm: Pcm) -> None:
        """Take decoded samples; notes when the first audible one is due."""
        if self.first_sound_s is None and self.audio is not None:
            loud = np.flatnonzero(np.abs(pcm) > AUDIBLE)
            if len(loud) and self.audio.log.first_s is not None:
                offset_s = (self.n_samples + int(loud[0])) / self.sample_rate_hz
                # Whoever plays from the first frame on hears it then, or when its frame comes.
                due_s = self.audio.log.first_s + offset_s
                self.first_sound_s = max(due_s, self.last_frame_s or due_s)
        self.n_samples += len(pcm)
        self.blocks.append(pcm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question and its answer.

    Args:
        question: as the server heard it.
        answer: the whole of it.
        speech_end_s: the last sound of the question had been sent, of the client's clock.
    """

    question: str
    answer: Answer
    speech_end_s: float

    @property
    def ttfa_s(self) -> float | None:
        """End of speech to the first audible sound; None if there was none."""
        first_s = self.answer.first_sound_s
        return None if first_s is None else first_s - self.speech_end_s


def end_of_sound(pcm: Pcm) -> int:
    """Samples up to the last that is louder than a hundredth of the loudest; 0 in silence."""
    loudness = np.abs(pcm)
    loud = np.flatnonzero(loudness > max(AUDIBLE, 0.01 * float(loudness.max(initial=0.0))))
    return int(loud[-1]) + 1 if len(loud) else 0
