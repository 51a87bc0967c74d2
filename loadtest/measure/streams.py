"""One stream of speech as it was heard: the record that all figures are made of. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from loadtest.measure.audible import Pcm, first_audible
from loadtest.measure.playout import (
    PREBUFFERS_MS,
    Arrival,
    Underrun,
    heard_s,
    underruns,
    viability,
)

Kind = Literal["speech", "answer"]
"""A text that was spoken, or an answer to a spoken question."""
Outcome = Literal["completed", "cut", "left", "slow", "refused", "failed", "lost", "unfinished"]
"""How it ended:

completed   all of it came.
cut         the client cancelled it, or spoke over it.
left        the client broke the connection off.
slow        the client stopped reading for a while; what the server did about it is in `detail`.
refused     the server had no room.
failed      the server said that it went wrong, or sent something else than announced.
lost        the connection broke or was closed.
unfinished  it was still going on when the run was over.
"""
HEARD: Final = frozenset[Outcome]({"completed", "cut"})
"""Streams with a listener to the end, whose times and gaps count."""
ERRORS: Final = frozenset[Outcome]({"failed", "lost", "unfinished"})
MAX_GAPS: Final = 20
"""Underruns of a stream that are kept one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """What a listener with one prebuffer heard of a stream."""

    n_underruns: int
    underrun_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a listener heard of the frames that came. Times count from the start of the run, in s.

    Args:
        first_packet_s: the first frame came.
        first_sound_s: the first audible sample was heard (see `audible`); None: silence.
        last_packet_s: the last frame came.
        audio_s: duration of all that came.
        listening: by prebuffer in ms.
        gaps: the underruns without a prebuffer, the first of them.
        n_chunks: see `viability`.
        n_on_time: of them.
    """

    first_packet_s: float
    first_sound_s: float | None
    last_packet_s: float
    audio_s: float
    listening: Mapping[int, Listening]
    gaps: tuple[Underrun, ...]
    n_chunks: int
    n_on_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """A stream, how it ended and what was heard of it.

    Args:
        kind: what was asked for.
        part: of the scenario.
        outcome: see `Outcome`.
        detail: why, in words, where the outcome alone does not say it.
        asked_s: the text was sent, or the question's last sound, from the start of the run.
        connect_s: how long the caller waited for its connection, set up and all; None: it had one.
        cancel_to_silence_s: from the cancel (or the first sound of the interruption) to silence.
        cancel_to_done_s: from the cancel to the server's last word on the stream.
        heard: None: nothing came.
    """

    kind: Kind
    part: str
    outcome: Outcome
    detail: str = ""
    asked_s: float
    connect_s: float | None = None
    cancel_to_silence_s: float | None = None
    cancel_to_done_s: float | None = None
    heard: Heard | None = None

    @property
    def listened(self) -> Heard | None:
        """What a listener heard who stayed to the end; None if there was none, or no sound."""
        return self.heard if self.outcome in HEARD else None

    @property
    def first_packet_in_s(self) -> float | None:
        """From the asking to the first frame, with a listener."""
        return None if self.listened is None else self.listened.first_packet_s - self.asked_s

    @property
    def first_sound_in_s(self) -> float | None:
        """From the asking to the first audible sample, with a listener."""
        heard = self.listened
        if heard is None or heard.first_sound_s is None:
            return None
        return heard.first_sound_s - self.asked_s

    @property
    def real_time_factor(self) -> float | None:
        """Seconds from the asking to the last frame for each second of audio, if all of it came."""
        heard = self.listened
        if heard is None or self.outcome != "completed" or not heard.audio_s:
            return None
        return (heard.last_packet_s - self.asked_s) / heard.audio_s

    def is_good(self, bound_s: float, prebuffer_ms: int) -> bool:
        """Heard within `bound_s`, the prebuffer included, and without an underrun."""
        heard, ttfa_s = self.listened, self.first_sound_in_s
        if heard is None or ttfa_s is None:
            return False
        is_clean = not heard.listening[prebuffer_ms].n_underruns
        return is_clean and ttfa_s + prebuffer_ms / 1000.0 <= bound_s


def hear(arrivals: Sequence[Arrival], pcm: Pcm, sample_rate_hz: int) -> Heard:
    """Play a stream.

    Args:
        arrivals: its frames, one at least, the delay of the codec cut from the first.
        pcm: what they hold, decoded `(n,)` float32, or enough of it to have the first sound.
        sample_rate_hz: of `pcm`.
    """
    offset = first_audible(pcm, sample_rate_hz) if len(pcm) else None
    on_time = viability(arrivals)
    silences = {ms: underruns(arrivals, ms / 1000.0) for ms in PREBUFFERS_MS}
    return Heard(
        first_packet_s=arrivals[0].received_s,
        first_sound_s=None if offset is None else heard_s(arrivals, offset / sample_rate_hz),
        last_packet_s=arrivals[-1].received_s,
        audio_s=sum(one.duration_s for one in arrivals),
        listening={
            ms: Listening(
                n_underruns=len(found),
                underrun_s=sum(one.duration_s for one in found),
                longest_s=max((one.duration_s for one in found), default=0.0),
            )
            for ms, found in silences.items()
        },
        gaps=tuple(silences[0][:MAX_GAPS]),
        n_chunks=on_time.n_chunks,
        n_on_time=on_time.n_on_time,
    )
