"""Whose turn it is: events in, actions out. Sans-I/O, plain values.

One answer at a time. What the user does decides: speech while the agent answers or is still being
heard stops it (barge-in); the end of a turn starts an answer, at once or when the transcript is
there; the client may ask for one, or cancel. The machine knows no audio and no text; it gives each
answer its number, and whatever comes later under an older number is void.

    idle --turn ended--> waiting --transcript--> answering --ended, stopped--> idle
    idle --turn ended (agents that hear), client asks--> answering

`waiting` exists for agents that answer the transcript: an empty one (a cough) is not answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

TRANSCRIPT_PATIENCE_S: Final = 20.0
"""A transcript that has not come by then never will."""

Cause = Literal["turn", "client", "idle"]
StopReason = Literal["turn_detected", "client_cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """Who may start and stop answers.

    Args:
        creates: the end of a turn starts an answer.
        interrupts: speech stops one.
        idle_s: silence after an answer that starts another; None: never.
    """

    creates: bool = True
    interrupts: bool = True
    idle_s: float | None = None


# Actions.


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswer:
    """Answer now, under this number."""

    number: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAnswer:
    """Stop making this answer at once, and tell the client that it is over."""

    number: int
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlayout:
    """Silence the client, and cut the history to what it has heard of this answer."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCreate:
    """The client asked for an answer while this one is being made."""

    active_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCancel:
    """There is nothing to cancel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSilence:
    """The user has said nothing for `idle_s`: an answer to the silence follows."""


Action = StartAnswer | StopAnswer | StopPlayout | RefuseCreate | RefuseCancel | TakeSilence


class TurnMachine:
    """The turns of one session.

    Args:
        settings: who may start and stop answers.
        needs_transcript: the agent answers the transcript, not the audio.
    """

    def __init__(self, settings: TurnSettings, *, needs_transcript: bool) -> None:
        self.settings = settings
        self.needs_transcript = needs_transcript
        self._n_answers = 0
        self._active: int | None = None
        self._heard: int | None = None
        self._is_user_speaking = False
        self._waiting_turn: int | None = None
        self._waiting_since_s = 0.0
        self._queued_turn: int | None = None
        self._has_transcript: set[int] = set()
        self._idle_since_s: float | None = None
        self._is_owed = False

    @property
    def active(self) -> int | None:
        """Number of the answer being made; None when there is none."""
        return self._active

    @property
    def heard(self) -> int | None:
        """Number of the answer that the client plays, or None."""
        return self._heard

    @property
    def is_user_speaking(self) -> bool:
        """Whether the user's turn is under way."""
        return self._is_user_speaking

    @property
    def is_idle(self) -> bool:
        """Whether nothing is said, made, played or waited for."""
        states = (self._active, self._heard, self._waiting_turn, self._queued_turn)
        return not self._is_user_speaking and all(one is None for one in states)

    # The user.

    def on_speech_started(self, now_s: float) -> list[Action]:
        """The user begins to speak."""
        self._is_user_speaking = True
        self._idle_since_s = None
        if not self.settings.interrupts:
            return []
        # The user goes on: one answer to all of it follows the end of this turn. It is owed even if
        # this speech turns out to be a cough, where nothing of the other was heard.
        is_unheard = self._active is not None and self._heard != self._active
        self._is_owed |= is_unheard or self._waiting_turn is not None
        self._is_owed |= self._queued_turn is not None
        self._queued_turn = None
        self._waiting_turn = None
        return self._stop("turn_detected")

    def on_speech_dropped(self) -> list[Action]:
        """The speech under way will not become a turn (buffer cleared, or committed by hand)."""
        self._is_user_speaking = False
        return []

    def on_turn_ended(self, turn: int, now_s: float) -> list[Action]:
        """The user has finished a turn; its transcript, if one is made, comes under `turn`."""
        self._is_user_speaking = False
        if not self.settings.creates:
            return []
        if self._active is not None:
            self._queued_turn = turn
            return []
        return self._begin(turn, now_s)

    def on_transcript(self, turn: int, *, is_empty: bool) -> list[Action]:
        """A turn's transcript is complete, or failed (`is_empty`: nothing to answer)."""
        if turn == self._waiting_turn:
            self._waiting_turn = None
            return [] if is_empty and not self._is_owed else [self._start("turn")]
        if turn == self._queued_turn:
            if is_empty:
                self._queued_turn = None
            else:
                self._has_transcript.add(turn)
        return []

    # The client's own wishes.

    def on_create(self) -> list[Action]:
        """The client asks for an answer."""
        if self._active is not None:
            return [RefuseCreate(active_number=self._active)]
        # It stands for the one that was waiting; nobody wants two.
        self._waiting_turn = self._queued_turn = None
        return [self._start("client")]

    def on_cancel(self, number: int | None) -> list[Action]:
        """The client cancels the answer `number`; None: whatever is under way."""
        if self._active is not None and number in (None, self._active):
            self._queued_turn = None
            return self._stop("client_cancelled")
        if number is None and self._waiting_turn is not None:
            # It has no number yet that the client knows: it gets one, and ends with it.
            self._waiting_turn = None
            return [self._start("client"), *self._stop("client_cancelled")]
        return [RefuseCancel()]

    # The answer.

    def on_answer_ended(self, number: int, now_s: float) -> list[Action]:
        """An answer is complete, or has failed."""
        if number != self._active:
            return []
        self._active = None
        if self._heard is None:
            self._start_idle(now_s)
        if self._queued_turn is None:
            return []
        turn, self._queued_turn = self._queued_turn, None
        return self._begin(turn, now_s)

    def on_playout_started(self, number: int) -> list[Action]:
        """The client begins to hear an answer."""
        if number == self._active:
            self._heard = number
        return []

    def on_playout_ended(self, number: int, now_s: float) -> list[Action]:
        """The client has heard all there is of an answer so far."""
        if number == self._heard:
            self._heard = None
            if self._active is None:
                self._start_idle(now_s)
        return []

    def on_tick(self, now_s: float) -> list[Action]:
        """Time passes. To be called several times a second."""
        patience_s = now_s - self._waiting_since_s
        if self._waiting_turn is not None and patience_s >= TRANSCRIPT_PATIENCE_S:
            self._waiting_turn = None
            return []
        idle_s = self.settings.idle_s
        if idle_s is None or self._idle_since_s is None or not self.is_idle:
            return []
        if now_s - self._idle_since_s < idle_s:
            return []
        self._idle_since_s = None
        return [TakeSilence(), self._start("idle")]

    def _begin(self, turn: int, now_s: float) -> list[Action]:
        has_transcript = turn in self._has_transcript
        self._has_transcript.discard(turn)
        if not self.needs_transcript or has_transcript:
            # An earlier turn that still waits is answered by this one.
            self._waiting_turn = None
            return [self._start("turn")]
        self._waiting_turn = turn
        self._waiting_since_s = now_s
        return []

    def _start(self, cause: Cause) -> StartAnswer:
        assert self._active is None, "every caller has looked"
        self._n_answers += 1
        self._active = self._n_answers
        self._idle_since_s = None
        self._is_owed = False
        self._has_transcript.clear()
        return StartAnswer(number=self._active, cause=cause)

    def _stop(self, reason: StopReason) -> list[Action]:
        """Silence first: that is what the user waits for."""
        actions: list[Action] = []
        if self._heard is not None:
            actions.append(StopPlayout(number=self._heard))
            self._heard = None
        if self._active is not None:
            actions.append(StopAnswer(number=self._active, reason=reason))
            self._active = None
        return actions

    def _start_idle(self, now_s: float) -> None:
        self._idle_since_s = now_s
