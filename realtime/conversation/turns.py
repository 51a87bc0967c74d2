"""Whose turn it is: events in, actions out. Sans-I/O, plain values.

One answer at a time. What the user does decides: speech while the agent answers or is still being
heard stops it (barge-in), and what was not heard follows if nothing was said after all; the end of
a turn starts an answer, at once or when the transcript is there; the client may ask for one, or
cancel. The machine knows no audio and no text; it gives each answer its number, and whatever comes
later under an older number is void.

    idle --turn ended--> waiting --transcript--> answering --ended, stopped--> idle
    idle --turn ended (agents that hear), client asks--> answering

`waiting` exists for agents that answer the transcript: an empty one (a cough) is not answered.
Turns that are spoken during an answer which may not be interrupted are kept; when it has been
heard, and it is known what was said in all of them, one answer to all follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

TRANSCRIPT_PATIENCE_S: Final = 20.0
"""A transcript that has not come by then never will."""

Cause = Literal["turn", "client", "idle", "resume"]
StopReason = Literal["turn_detected", "client_cancelled", "session_ended"]


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
class ResumeAnswer:
    """Go on with what was not heard of the answer `of`, under this number."""

    number: int
    of: int


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


Action = (
    StartAnswer
    | ResumeAnswer
    | StopAnswer
    | StopPlayout
    | RefuseCreate
    | RefuseCancel
    | TakeSilence
)


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
        # Turns of which it is not known yet what was said, and whether any other is to be answered.
        self._waiting: set[int] = set()
        self._waiting_since_s = 0.0
        self._is_owed = False
        # The answer that speech has broken off, and the one that the active answer goes on with.
        self._broken_off: int | None = None
        self._resumed: int | None = None
        self._idle_since_s: float | None = None

    @property
    def active(self) -> int | None:
        """Number of the answer being made; None when there is none."""
        return self._active

    @property
    def heard(self) -> int | None:
        """Number of the answer that the client plays, or None."""
        return self._heard

    @property
    def is_idle(self) -> bool:
        """Whether nothing is said, made, played or waited for."""
        is_quiet = self._active is None and self._heard is None
        return is_quiet and not self._is_user_speaking and not self._waiting

    def take_number(self) -> int:
        """The number of an answer that is none of the turns: it is aside of the conversation."""
        self._n_answers += 1
        return self._n_answers

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
        if self._heard is not None:
            self._broken_off = self._heard
        elif is_unheard and self._resumed is not None:
            self._broken_off, is_unheard = self._resumed, False
        self._is_owed |= is_unheard or bool(self._waiting)
        self._waiting.clear()
        return self._stop("turn_detected")

    def on_speech_dropped(self) -> list[Action]:
        """The speech under way will not become a turn."""
        self._is_user_speaking = False
        return self._answer_if_due()

    def on_committed(self) -> list[Action]:
        """The client has made a turn by hand; it asks for an answer itself."""
        self._is_user_speaking = False
        self._broken_off = None
        return self._answer_if_due()

    def on_turn_ended(self, turn: int, now_s: float) -> list[Action]:
        """The user has finished a turn; its transcript, if one is made, comes under `turn`."""
        self._is_user_speaking = False
        if not self.settings.creates:
            return self._answer_if_due()
        if self.needs_transcript:
            self._waiting.add(turn)
            self._waiting_since_s = now_s
        else:
            self._is_owed = True
        return self._answer_if_due()

    def on_transcript(self, turn: int, *, is_empty: bool) -> list[Action]:
        """A turn's transcript is complete, or failed (`is_empty`: nothing to answer)."""
        if turn not in self._waiting:
            return []
        self._waiting.discard(turn)
        self._is_owed |= not is_empty
        return self._answer_if_due()

    # The client's own wishes.

    def on_create(self) -> list[Action]:
        """The client asks for an answer."""
        if self._active is not None:
            return [RefuseCreate(active_number=self._active)]
        # It stands for the one that was waiting; nobody wants two.
        return [self._start("client")]

    def on_cancel(self, number: int | None) -> list[Action]:
        """The client cancels the answer `number`; None: whatever is under way."""
        self._broken_off = None
        if self._active is not None and number in (None, self._active):
            self._forget_turns()
            return self._stop("client_cancelled")
        if number is None and (self._waiting or self._is_owed):
            # It has no number yet that the client knows: it gets one, and ends with it.
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
        return self._answer_if_due()

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
        return self._answer_if_due()

    def on_tick(self, now_s: float) -> list[Action]:
        """Time passes. To be called several times a second."""
        if self._waiting and now_s - self._waiting_since_s >= TRANSCRIPT_PATIENCE_S:
            self._waiting.clear()
            self._broken_off = None
            return self._answer_if_due()
        idle_s = self.settings.idle_s
        if idle_s is None or self._idle_since_s is None or not self.is_idle:
            return []
        if now_s - self._idle_since_s < idle_s:
            return []
        self._idle_since_s = None
        return [TakeSilence(), self._start("idle")]

    def _answer_if_due(self) -> list[Action]:
        """One answer to all that was said, once that is known and no other is made or heard."""
        if not self.settings.creates:
            self._forget_turns()
        if self._active is not None or self._heard is not None or self._waiting:
            return []
        if self._is_owed:
            return [self._start("turn")]
        if self._broken_off is not None and not self._is_user_speaking:
            of = self._broken_off
            number = self._start("resume").number
            self._resumed = of
            return [ResumeAnswer(number=number, of=of)]
        return []

    def _start(self, cause: Cause) -> StartAnswer:
        assert self._active is None, "every caller has looked"
        self._n_answers += 1
        self._active = self._n_answers
        self._idle_since_s = None
        self._forget_turns()
        return StartAnswer(number=self._active, cause=cause)

    def _forget_turns(self) -> None:
        """What was said so far has its answer, or is to have none."""
        self._waiting.clear()
        self._is_owed = False
        self._broken_off = self._resumed = None

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
