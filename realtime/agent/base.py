"""What a session asks of an agent, and what an agent tells while it works. Values and protocols.

An agent answers a conversation: a pipeline (speech to text, text model, speech model) or one model
that hears and speaks. It knows nothing of sockets, turns or playout; the session decides when to
transcribe, when to answer and when to stop. Everything here is used on the event loop; what takes
time runs in threads that the agent owns or was given.

Order of one reply: any number of `TextDelta`, `AudioDelta` and `FunctionCall`, then exactly one
`ReplyDone` or `StageFailed`, then None. After `cancel` it ends soon and may end without either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from engine.types import Pcm
from models.spec import ModelSpec, OptionValue
from realtime.errors import printable
from realtime.playout import PlayoutClock

HEARD_RATE_HZ: Final = 16_000
"""Sample rate of everything that a user said, once it is inside the server."""
FRAME_SAMPLES: Final = 512
"""Samples of one frame of voice activity: 32 ms."""


def main_language(tag: str) -> str:
    """The main part of a language tag: `en-GB` and `EN` are `en`."""
    return tag.casefold().replace("_", "-").partition("-")[0]


def why_unheard(tag: str, languages: tuple[str, ...]) -> str:
    """Why speech in this language cannot be transcribed; empty where it can.

    Args:
        tag: of the language.
        languages: main parts of what is heard; empty: all.
    """
    if not languages or main_language(tag) in languages:
        return ""
    return f"speech in {printable(tag)!r} is not understood; known: {', '.join(languages[:12])}"


Role = Literal["system", "user", "assistant"]
Stage = Literal["transcriber", "text_model", "speech_model"]


# The conversation so far, oldest first, as an agent sees it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something said or written.

    Args:
        item_id: of the conversation item.
        role: who.
        text: written, transcribed or spoken text; of an answer that was interrupted, only what was
            heard. None: audio that nobody has transcribed.
        audio: what the user said, float32 mono `(n,)` at `HEARD_RATE_HZ`; None where it was typed.
        beside: of `text`, what was typed and not said.
        memory: `ReplyDone.memory` of this answer, as long as the conversation up to it is the same.
    """

    item_id: str
    role: Role
    text: str | None
    audio: Pcm | None = None
    beside: str = ""
    memory: object | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCall:
    """A function call that the agent made; `arguments` is JSON text."""

    item_id: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What the client's function gave."""

    item_id: str
    call_id: str
    output: str


ContextItem = Message | PastCall | CallResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the client offers; `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRequest:
    """What is to be answered how. Voice, language and options fit the agent's spec.

    Args:
        items: the conversation, oldest first.
        instructions: of the session or of this response; empty takes the agent's own.
        wants_audio: False asks for text alone.
        voice: one of the spec's; None takes its first.
        language: one of the spec's; None takes its first.
        options: of the model that speaks.
        max_output_tokens: of the text; None leaves it to the agent.
        max_seconds: of the audio; None leaves it to the model.
        tools: that may be called.
        tool_choice: `auto`, `none`, `required`, or the name of one tool.
        seed: of all random draws.
        asked_s: monotonic time at which the user began to wait.
    """

    items: tuple[ContextItem, ...]
    seed: int
    asked_s: float
    instructions: str = ""
    wants_audio: bool = True
    voice: str | None = None
    language: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    max_output_tokens: int | None = None
    max_seconds: float | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"


# What an agent tells.


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptDelta:
    """More of what the user said; earlier text stays."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptCompleted:
    """All of what the user said; empty where nobody spoke. `seconds`: of audio transcribed."""

    text: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More text of the answer (what is spoken, or the answer itself without audio)."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioDelta:
    """More audio of the answer, in order.

    Args:
        pcm: float32 mono `(n,)` at the sample rate of the agent's spec.
        text_end: characters of the answer's text so far (all `TextDelta` joined) that have been
            spoken when this audio ends; an estimate inside a unit of speech, never falls.
    """

    pcm: Pcm
    text_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """The agent wants a function of the client called; `arguments` is complete JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDone:
    """The reply is complete, or a limit has cut it.

    Args:
        reason: why it ended; `length`: its text was cut, `frames`: the speech of its model.
        n_input_tokens: of the text model.
        n_output_tokens: of the text model.
        n_frames: codec frames of the speech model.
        stage_ms: time from the start of the reply to the first output of each stage, by name.
        memory: what the agent wants to be given back with this answer; the session does not look
            into it.
    """

    reason: Literal["stop", "length", "frames"] = "stop"
    n_input_tokens: int = 0
    n_output_tokens: int = 0
    n_frames: int = 0
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    memory: object | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """A stage failed; nothing follows. `code` is stable, `message` may be shown to the client."""

    stage: Stage
    code: str
    message: str
    retry_after_s: float | None = None


TranscriptEvent = TranscriptDelta | TranscriptCompleted | StageFailed
ReplyEvent = TextDelta | AudioDelta | FunctionCall | ReplyDone | StageFailed


# What a session holds.


class Transcription(Protocol):
    """One piece of speech being transcribed. It runs by itself from the start on."""

    async def next_event(self) -> TranscriptEvent | None:
        """Deltas, then exactly one `TranscriptCompleted` or `StageFailed`, then None."""
        ...

    def cancel(self) -> None:
        """Forget it; never blocks, may be called twice. Threads end by themselves, soon."""
        ...


class Reply(Protocol):
    """One answer being made. It runs by itself from the start on."""

    async def next_event(self) -> ReplyEvent | None:
        """What comes next; None after the end.

        An agent may wait for its reader: audio far ahead of the playout need not be made.
        """
        ...

    def cancel(self) -> None:
        """Stop every stage now; never blocks, may be called twice, and after the end."""
        ...

    def set_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        ...

    def report_playout(self, heard_s: float, now_s: float) -> None:
        """The client has heard so much of the answer."""
        ...


class Agent(Protocol):
    """Answers conversations; shared by all sessions, keeps nothing between replies.

    `name` is what clients choose it by, `spec` states what is heard of it: sample rate, voices,
    languages, options. `needs_transcript`: what the user says is transcribed before a reply starts.
    `can_transcribe`: False leaves user audio without a transcript. `transcribed_languages`: in
    which; empty: it takes any. `calls_tools`: takes `tools`.
    """

    @property
    def name(self) -> str:
        """What clients choose it by."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """Facts of the model that speaks."""
        ...

    @property
    def needs_transcript(self) -> bool:
        """Whether a reply starts from the transcript, so that it must wait for it."""
        ...

    @property
    def can_transcribe(self) -> bool:
        """Whether `transcribe` may be called."""
        ...

    @property
    def transcribed_languages(self) -> tuple[str, ...]:
        """Main parts of the language tags that `transcribe` takes; empty: any."""
        ...

    @property
    def calls_tools(self) -> bool:
        """Whether it can ask for function calls."""
        ...

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """Start to transcribe float32 mono `(n,)` at `HEARD_RATE_HZ`.

        Called at the end of a turn, and speculatively in a pause: `cancel` follows if the user
        goes on. Silence and noise give an empty transcript.
        """
        ...

    def reply(self, request: ReplyRequest, playout: PlayoutClock) -> Reply:
        """Start to answer. `playout` is the session's, of this reply: to be read, not written."""
        ...

    def reciting(self, text: str) -> Agent | None:
        """An agent of the same voice that answers everything with `text`; None: it cannot."""
        ...

    async def close(self) -> None:
        """Give back what the agent holds. The server stops: nothing of it runs any more."""
        ...


# What hears the user, whoever answers.


class VoiceTrack(Protocol):
    """Voice activity of one stream of audio."""

    async def probabilities(self, pcm: Pcm) -> Sequence[float]:
        """How likely each frame holds speech, 0 to 1.

        Args:
            pcm: whole frames of `FRAME_SAMPLES` at `HEARD_RATE_HZ`, following those before. One
                call at a time.
        """
        ...


class VoiceDetector(Protocol):
    """Finds voices in audio; shared by all sessions."""

    def open_track(self) -> VoiceTrack:
        """Start on a new stream of audio."""
        ...


class EndOfTurnJudge(Protocol):
    """Tells a finished question from a pause for thought."""

    async def completeness(self, pcm: Pcm) -> float:
        """How likely the speaker has finished, 0 to 1.

        Args:
            pcm: the turn so far with the pause after it, float32 `(n,)` at `HEARD_RATE_HZ`; only
                its last seconds count.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds. The server stops: nobody asks any more."""
        ...
