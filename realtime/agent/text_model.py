"""The text model of an agent: the protocol, and a text family on our own engine.

Event loop only; prompts are made in the worker pool.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from engine.errors import EngineStoppedError
from engine.types import StreamFailed
from models.errors import PlanError
from models.spec import Message as ModelMessage
from models.spec import OptionValue, PlanRequest
from realtime.agent.base import FunctionCall, TextDelta, Tool
from realtime.agent.errors import StageError
from realtime.bridge import EngineBridge, StreamFeed
from realtime.workers import Workers

if TYPE_CHECKING:
    from models.base import PromptPlan

CHARACTERS_PER_TOKEN: Final = 3.5
"""Of English, a little low, so that the estimate is a little high."""
TOKENS_PER_MESSAGE: Final = 6
"""The marks around it."""
MAX_TOKENS_OPTION: Final = "max_tokens"
"""Of every text family."""
TOO_LONG: Final = "prompt_too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of the prompt.

    Args:
        role: `tool` is the result of a call.
        text: may be empty where calls are made.
        calls: that the assistant made.
        call_id: of the call whose result this is.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[FunctionCall, ...] = ()
    call_id: str = ""


class Brake:
    """By it the reader of a text holds its writer for a moment.

    For a writer that shares its processor with the reader: the speech model makes its first sound
    sooner while nothing else is computed.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._listener: Callable[[bool], None] | None = None

    def set(self, is_on: bool) -> None:
        """Hold, or let go."""
        if is_on != self._is_on:
            self._is_on = is_on
            if self._listener is not None:
                self._listener(is_on)

    def listen(self, listener: Callable[[bool], None] | None) -> None:
        """Tell `listener` of changes, and that it is on already."""
        self._listener = listener
        if listener is not None and self._is_on:
            listener(True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """What is to be written.

    Args:
        messages: the conversation, the system message first.
        max_tokens: of the answer; None leaves it to the model.
        seed: of the random draws.
        asked_s: monotonic time at which the user began to wait.
        tools: that may be called.
        tool_choice: `auto`, `none`, `required`, or the name of one tool.
        brake: of the reader; models that run elsewhere pass over it.
    """

    messages: tuple[ChatMessage, ...]
    seed: int
    asked_s: float
    max_tokens: int | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    brake: Brake = field(default_factory=Brake)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDone:
    """The text is complete, or cut by its limit (`length`)."""

    reason: Literal["stop", "length"]
    n_input_tokens: int = 0
    n_output_tokens: int = 0


TextEvent = TextDelta | FunctionCall | TextDone


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """What an agent must know of a text model.

    Args:
        name: of the model.
        licence: of its weights; empty where unknown.
        calls_tools: whether it can ask for function calls.
        reply_tokens: what a spoken answer should stay within; None: it knows by itself.
        history_tokens: what of a conversation it is given.
        instructions: the system message where a session has none.
    """

    name: str
    licence: str = ""
    calls_tools: bool = False
    reply_tokens: int | None = None
    history_tokens: int = 4096
    instructions: str = (
        "You are a helpful voice assistant. Your answers are spoken: keep them short, in plain "
        "sentences without lists, markup, emoji or links."
    )


SMALL_MODEL_INSTRUCTIONS: Final = "You are a helpful voice assistant. Give short answers."
"""For a model of 135M. Measured: `spoken sentences` in it makes the answers worse."""


class TextModel(Protocol):
    """Writes answers; shared by all sessions."""

    @property
    def facts(self) -> TextFacts:
        """What it is."""
        ...

    def stream(self, request: TextRequest) -> AsyncGenerator[TextEvent]:
        """The answer as it is written: deltas and calls, then exactly one `TextDone`.

        Closing the generator, or cancelling the task in it, ends the work behind it.

        Raises:
            StageError: no answer, or no more of it.
        """
        ...

    async def close(self) -> None:
        """Give everything back. Nothing is being written."""
        ...


def estimate_tokens(message: ChatMessage) -> int:
    """Tokens of a message, by its characters."""
    n_characters = len(message.text) + sum(len(one.name + one.arguments) for one in message.calls)
    n_wide = sum(ord(one) > 0x2E7F for one in message.text)
    return TOKENS_PER_MESSAGE + n_wide + round(n_characters / CHARACTERS_PER_TOKEN)


class EngineTextModel:
    """Implements `TextModel` by a text family on an engine: batched with all other sessions.

    Args:
        bridge: of the engine.
        workers: where prompts are made.
        facts: of the model.
        silence_s: an engine that says nothing for so long has failed.
        options: of the model, for every request.
    """

    def __init__(
        self,
        bridge: EngineBridge,
        workers: Workers,
        facts: TextFacts,
        *,
        silence_s: float = 30.0,
        options: dict[str, OptionValue] | None = None,
    ) -> None:
        self._bridge = bridge
        self._workers = workers
        self._facts = facts
        self._silence_s = silence_s
        self._options = options or {}

    @property
    def facts(self) -> TextFacts:
        """See `TextModel.facts`."""
        return self._facts

    async def close(self) -> None:
        """The engine is not ours."""

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextEvent]:
        """See `TextModel.stream`."""
        plan = await self._plan(request)
        try:
            feed = self._bridge.open_stream(
                plan, seed=request.seed, asked_s=request.asked_s, play_from_s=None
            )
        except EngineStoppedError as error:
            raise StageError("engine_stopped", str(error)) from None
        request.brake.listen(lambda is_on: self._bridge.set_paused(feed, is_paused=is_on))
        n_pieces = 0
        try:
            while (text := await self._next_text(feed)) is not None:
                n_pieces += 1
                yield TextDelta(text=text)
            yield _done(feed, n_pieces)
        finally:
            request.brake.listen(None)
            self._bridge.abort(feed)

    async def _plan(self, request: TextRequest) -> PromptPlan:
        """The prompt; a conversation that is too long for the model loses its oldest messages."""
        messages = [
            ModelMessage(role=one.role, text=one.text)
            for one in request.messages
            if one.role != "tool" and one.text
        ]
        options = dict(self._options)
        if request.max_tokens is not None:
            options[MAX_TOKENS_OPTION] = min(request.max_tokens, self._most_tokens)
        while True:
            asked = PlanRequest(
                text="", messages=tuple(messages), options=options, seed=request.seed
            )
            try:
                return await self._workers.run(self._bridge.handle.plan, asked)
            except PlanError as error:
                oldest = next((n for n, one in enumerate(messages) if one.role != "system"), None)
                if error.code != TOO_LONG or oldest is None or oldest == len(messages) - 1:
                    raise StageError(error.code, error.message) from None
                del messages[oldest]
            except EngineStoppedError as error:
                raise StageError("engine_stopped", str(error)) from None

    @property
    def _most_tokens(self) -> int:
        """What the model's own option takes; a client may ask for more than this model gives."""
        for option in self._bridge.spec.options:
            if option.name == MAX_TOKENS_OPTION and option.maximum is not None:
                return int(option.maximum)
        raise AssertionError("a text family bounds its replies")

    async def _next_text(self, feed: StreamFeed) -> str | None:
        try:
            while (piece := await feed.next_piece(self._silence_s)) is not None:
                if isinstance(piece, str):
                    return piece
        except TimeoutError:
            message = f"no answer of the engine in {self._silence_s:g} s"
            raise StageError("engine_timeout", message) from None
        return None


def _done(feed: StreamFeed, n_pieces: int) -> TextDone:
    """How a stream ended; a piece of text is a token (a few are held back, with the next one)."""
    outcome = feed.outcome
    if isinstance(outcome, StreamFailed):
        raise StageError(outcome.code, outcome.message, outcome.retry_after_s)
    assert outcome is not None, "a feed without more pieces has ended"
    if outcome.reason == "aborted":
        raise StageError("engine_aborted", "the engine ended the stream")
    return TextDone(
        reason=outcome.reason,
        n_input_tokens=outcome.n_prompt_rows,
        n_output_tokens=n_pieces,
    )
