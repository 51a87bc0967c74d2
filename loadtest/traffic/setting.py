"""What all callers of a run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.client_health import ClientHealth
from loadtest.measure.streams import Heard, Kind, Outcome, StreamRecord
from loadtest.target import Target
from loadtest.traffic.ears import Ears, Tape
from loadtest.traffic.recordings import Recordings
from loadtest.traffic.scenarios import Scenario
from realtime.client.received_audio import ReceivedAudio
from realtime.client.spoken import ClientError, ConnectError, RefusedError
from realtime.errors import ProtocolError

REFUSED_STATUS = frozenset({429, 503})
REFUSED_CODES = frozenset({"overloaded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where callers call, and what with.

    Args:
        target: the server.
        scenario: how they behave.
        recordings: what they say; None where nobody converses.
        ears: play what comes.
        health: learns how late the client is.
        zero_s: start of the run on `clock`.
        clock: monotonic seconds.
        model: that speaks texts; None: the server's default.
        voice: of it.
    """

    target: Target
    scenario: Scenario
    recordings: Recordings | None
    ears: Ears
    health: ClientHealth
    zero_s: float
    clock: Callable[[], float]
    model: str | None = None
    voice: str | None = None

    def now_s(self) -> float:
        """Since the start of the run."""
        return self.clock() - self.zero_s


@dataclass(slots=True, kw_only=True)
class Ongoing:
    """A stream that a caller hears. Times are of the setting's clock.

    Args:
        kind: of the stream.
        part: of the scenario.
        asked_s: see `StreamRecord`.
        connect_s: how long the caller waited for its connection.
        tape: its frames.
        audio: their form.
        outcome: how it ended; None while it goes on.
        detail: why.
        cancelled_s: when it was to be silent.
        silent_s: its last frame after that, or the order of silence.
        done_s: the server's last word.
    """

    kind: Kind
    part: str
    asked_s: float
    connect_s: float | None = None
    tape: Tape = field(default_factory=Tape)
    audio: ReceivedAudio | None = None
    outcome: Outcome | None = None
    detail: str = ""
    cancelled_s: float | None = None
    silent_s: float | None = None
    done_s: float | None = None

    def end(self, outcome: Outcome, detail: str = "") -> None:
        """Say how it ended, unless that is known."""
        if self.outcome is None:
            self.outcome, self.detail = outcome, detail

    async def record(self, setting: Setting) -> StreamRecord:
        """Play it, and say what was heard."""
        heard: Heard | None = None
        if self.audio is not None and self.tape.frames:
            try:
                heard = await setting.ears.hear(self.tape, self.audio, setting.zero_s)
            except ProtocolError as error:
                self.outcome, self.detail = "failed", error.message
        return self._recorded(setting, heard)

    def recorded_unheard(self, setting: Setting) -> StreamRecord:
        """What is known of it without playing it."""
        return self._recorded(setting, None)

    def _recorded(self, setting: Setting, heard: Heard | None) -> StreamRecord:
        assert self.outcome is not None, "a stream is recorded once it is over"
        silence_s = done_s = None
        if self.cancelled_s is not None and self.outcome == "cut":
            silence_s = max(0.0, (self.silent_s or self.cancelled_s) - self.cancelled_s)
            done_s = None if self.done_s is None else self.done_s - self.cancelled_s
        return StreamRecord(
            kind=self.kind,
            part=self.part,
            outcome=self.outcome,
            detail=self.detail,
            asked_s=self.asked_s - setting.zero_s,
            connect_s=self.connect_s,
            cancel_to_silence_s=silence_s,
            cancel_to_done_s=done_s,
            heard=heard,
        )


def fault_of(error: ClientError) -> tuple[Outcome, str]:
    """How a stream ended that ended with `error`."""
    if isinstance(error, ConnectError):
        is_full = error.status in REFUSED_STATUS
        return ("refused" if is_full else "lost"), str(error)
    if isinstance(error, RefusedError):
        return ("refused" if error.code in REFUSED_CODES else "failed"), f"{error.code}: {error}"
    return "lost", str(error)
