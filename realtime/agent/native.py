"""An agent that is one model: what the user said goes into its prompt, text and audio come out.

A model that takes audio (`ModelSpec.takes_audio`) hears the user; no transcript is needed, and none
is made. Any other is told in words what was said, so far and now. Event loop only; planning runs in
the worker pool.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from engine.errors import EngineStoppedError
from engine.types import Pcm, StreamFailed, StreamFinished
from models.errors import PlanError
from models.spec import Message as ModelMessage
from models.spec import ModelSpec, PlanRequest
from realtime.agent.base import (
    HEARD_RATE_HZ,
    AudioDelta,
    Message,
    ReplyDone,
    ReplyEvent,
    ReplyRequest,
    StageFailed,
    TextDelta,
    Transcription,
)
from realtime.agent.history import prompt_messages
from realtime.agent.transcriber import Transcriber
from realtime.bridge import EngineBridge, StreamFeed
from realtime.playout import PlayoutClock
from realtime.speech.speaker import GUESSED_S_PER_CHARACTER
from realtime.workers import Workers

if TYPE_CHECKING:
    from models.base import PromptPlan

logger = logging.getLogger(__name__)

STAGE: Final = "speech_model"
HISTORY_TOKENS: Final = 1000
"""Of what was said before, for a model that is told it: some minutes of talk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """What a model that keeps turns knows after an answer.

    Args:
        model: its name: another one's rows mean nothing to it.
        rows: of the conversation, as its engine told them.
        item_ids: of the messages that led to the answer.
    """

    model: str
    rows: npt.NDArray[np.int64]
    item_ids: tuple[str, ...]


class NativeAgent:
    """Implements `realtime.agent.base.Agent` by one engine.

    Args:
        name: what clients choose it by.
        bridge: the engine.
        workers: where prompts are planned.
        engine_silence_s: a stream of which the engine says nothing for so long has failed.
        transcriber: for a model that takes no audio; closed with the agent.
    """

    calls_tools = False

    def __init__(
        self,
        name: str,
        bridge: EngineBridge,
        workers: Workers,
        engine_silence_s: float,
        transcriber: Transcriber | None = None,
    ) -> None:
        assert bridge.spec.takes_audio == (transcriber is None), "a model hears, or is told"
        self._name = name
        self._transcriber = transcriber
        self._bridge = bridge
        self._workers = workers
        self._engine_silence_s = engine_silence_s

    @property
    def name(self) -> str:
        """What clients choose it by."""
        return self._name

    @property
    def spec(self) -> ModelSpec:
        """Facts of the model."""
        return self._bridge.spec

    @property
    def needs_transcript(self) -> bool:
        """Whether the model must be told what was said."""
        return self._transcriber is not None

    @property
    def can_transcribe(self) -> bool:
        """The same: a model that hears has no use for it."""
        return self._transcriber is not None

    @property
    def transcribed_languages(self) -> tuple[str, ...]:
        """Those of the speech to text."""
        return () if self._transcriber is None else self._transcriber.languages

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """See `Agent.transcribe`."""
        assert self._transcriber is not None, "the session asks only what can be done"
        return self._transcriber.transcribe(pcm, language=language)

    def reply(self, request: ReplyRequest, playout: PlayoutClock) -> NativeReply:
        """Start to answer what the user said since the last answer."""
        return NativeReply(self._bridge, self._workers, request, self._engine_silence_s)

    def reciting(self, text: str) -> None:
        """Never: the model says its own words."""

    async def close(self) -> None:
        """The speech to text is its own."""
        if self._transcriber is not None:
            await self._transcriber.close()


class NativeReply:
    """One answer: one engine stream.

    Args:
        bridge: the engine.
        workers: where the prompt is planned.
        request: what is to be answered.
        engine_silence_s: a stream of which the engine says nothing for so long has failed.
    """

    def __init__(
        self, bridge: EngineBridge, workers: Workers, request: ReplyRequest, engine_silence_s: float
    ) -> None:
        self._bridge = bridge
        self._workers = workers
        self._request = request
        self._engine_silence_s = engine_silence_s
        self._feed: StreamFeed | None = None
        self._n_prompt_rows = 0
        self._n_pieces = 0
        self._n_characters = 0
        self._n_samples = 0
        self._is_over = False
        self._is_paused = False
        self._opening = asyncio.create_task(self._open(), name="native reply")
        # A reply that is cancelled may leave nobody to look at what went wrong.
        self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def next_event(self) -> ReplyEvent | None:
        """What comes next; None after the end."""
        if self._is_over:
            return None
        try:
            feed = await self._opening
        except PlanError as error:
            return self._fail(error.code, error.message)
        except EngineStoppedError as error:
            return self._fail("engine_stopped", str(error))
        except asyncio.CancelledError:
            if self._was_cancelled():
                return None
            raise
        # A bug in a model's planning ends this reply alone.
        except Exception as error:
            logger.exception("a model's planning failed")
            return self._fail("model_error", f"planning failed: {error}")
        return await self._next_of(feed)

    def cancel(self) -> None:
        """Stop the engine's stream."""
        self._is_over = True
        self._opening.cancel()
        if self._feed is not None:
            self._bridge.abort(self._feed)

    def set_paused(self, is_paused: bool) -> None:
        """Leave the stream out while the client is too slow."""
        self._is_paused = is_paused
        if self._feed is not None:
            self._bridge.set_paused(self._feed, is_paused=is_paused)

    def report_playout(self, heard_s: float, now_s: float) -> None:
        """Tell the engine how much has been heard."""
        if self._feed is not None:
            self._bridge.report_playout(self._feed, heard_s, now_s)

    def _was_cancelled(self) -> bool:
        return self._is_over

    async def _open(self) -> StreamFeed:
        plan: PromptPlan = await self._workers.run(self._bridge.handle.plan, self._plan_request())
        feed = self._bridge.open_stream(
            plan, seed=self._request.seed, asked_s=self._request.asked_s, play_from_s=None
        )
        self._feed = feed
        self._n_prompt_rows = len(plan.ids)
        if self._is_paused:
            self._bridge.set_paused(feed, is_paused=True)
        return feed

    def _plan_request(self) -> PlanRequest:
        request = self._request
        asked = PlanRequest(
            text="",
            voice=request.voice,
            language=request.language,
            options=request.options,
            seed=request.seed,
            max_seconds=request.max_seconds,
        )
        if not self._bridge.spec.takes_audio:
            *told, last = _told(request)
            return replace(asked, text=last.text, messages=tuple(told))
        known = _newest_memory(request, self._bridge.spec.name)
        said, before = _asked(request), _before(request, known)
        heard = [message.audio for message in said if message.audio is not None]
        written = (one.text if one.audio is None else one.beside for one in said)
        text = " ".join(one for one in written if one)
        if "speak" in self._bridge.spec.tasks and not heard:
            # A text alone would be read out.
            before, text = [*before, ModelMessage(role="user", text=text)], ""
        return replace(
            asked,
            text=text,
            history=None if known is None else known.rows,
            messages=tuple(before),
            audio=np.concatenate(heard) if heard else None,
            audio_rate_hz=HEARD_RATE_HZ,
        )

    async def _next_of(self, feed: StreamFeed) -> ReplyEvent | None:
        while True:
            try:
                piece = await feed.next_piece(self._engine_silence_s)
            except TimeoutError:
                if self._is_paused:
                    continue
                message = f"no answer of the engine in {self._engine_silence_s:g} s"
                return self._fail("engine_timeout", message)
            if isinstance(piece, str):
                if self._n_pieces == self._request.max_output_tokens:
                    return self._cut_text()
                self._n_pieces += 1
                self._n_characters += len(piece)
                return TextDelta(text=piece)
            if piece is None:
                return self._end(feed)
            self._n_samples += len(piece)
            if self._request.wants_audio:
                return AudioDelta(pcm=piece, text_end=self._text_end())

    def _text_end(self) -> int:
        """Characters that have been spoken when the audio so far ends."""
        spec = self._bridge.spec
        if spec.takes_audio:
            # The model says its words as it writes them: what is written is what is heard.
            return self._n_characters
        # It writes all of its answer first. How long that will last is not known.
        spoken_s = self._n_samples / spec.frame.sample_rate_hz
        return min(self._n_characters, round(spoken_s / GUESSED_S_PER_CHARACTER))

    def _cut_text(self) -> ReplyDone:
        """One more piece of text would be too many, and a piece is about a token."""
        self.cancel()
        frame = self._bridge.spec.frame
        return ReplyDone(
            reason="length",
            n_input_tokens=self._n_prompt_rows,
            n_output_tokens=self._n_pieces,
            n_frames=round(self._n_samples / frame.samples_per_frame),
        )

    def _end(self, feed: StreamFeed) -> ReplyEvent | None:
        outcome = feed.outcome
        if self._is_over:
            return None
        if isinstance(outcome, StreamFailed):
            return self._fail(outcome.code, outcome.message, outcome.retry_after_s)
        assert isinstance(outcome, StreamFinished), "a feed without more pieces has ended"
        if outcome.reason == "aborted":
            return self._fail("engine_aborted", "the engine ended the stream")
        self._is_over = True
        return ReplyDone(
            reason="frames" if outcome.reason == "length" else "stop",
            n_input_tokens=outcome.n_prompt_rows,
            n_output_tokens=self._n_pieces,
            n_frames=outcome.n_frames,
            memory=self._memory(outcome),
        )

    def _memory(self, outcome: StreamFinished) -> _Memory | None:
        if outcome.rows is None:
            return None
        item_ids = [one.item_id for one in self._request.items if isinstance(one, Message)]
        return _Memory(model=self._bridge.spec.name, rows=outcome.rows, item_ids=tuple(item_ids))

    def _fail(self, code: str, message: str, retry_after_s: float | None = None) -> StageFailed:
        self.cancel()
        return StageFailed(stage=STAGE, code=code, message=message, retry_after_s=retry_after_s)


def _told(request: ReplyRequest) -> list[ModelMessage]:
    """The conversation in words; the last one is the user's, if only an empty one."""
    messages = [
        ModelMessage(role=one.role, text=one.text)
        for one in prompt_messages(
            request.items, instructions=request.instructions, max_tokens=HISTORY_TOKENS
        )
        if one.role != "tool"
    ]
    if not messages or messages[-1].role != "user":
        messages.append(ModelMessage(role="user", text=""))
    return messages


def _newest_memory(request: ReplyRequest, model: str) -> _Memory | None:
    """What the model itself knows of the conversation, up to its newest answer that it does."""
    for item in reversed(request.items):
        if isinstance(item, Message) and isinstance(item.memory, _Memory):
            memory = item.memory
            if memory.model == model:
                return replace(memory, item_ids=(*memory.item_ids, item.item_id))
    return None


def _before(request: ReplyRequest, known: _Memory | None) -> list[ModelMessage]:
    """What was said before that, for a model that hears: its words, and the user's voice.

    What the model knows is left out, but for instructions: these can change.
    """
    left_out = {one.item_id for one in _asked(request)}
    left_out |= set() if known is None else set(known.item_ids)
    told = [ModelMessage(role="system", text=request.instructions)] if request.instructions else []
    said = [
        ModelMessage(role=one.role, text=one.text or "", audio=one.audio)
        for one in request.items
        if isinstance(one, Message)
        if one.role == "system" or one.item_id not in left_out
        if one.text or one.audio is not None
    ]
    return [*told, *said]


def _asked(request: ReplyRequest) -> list[Message]:
    """What the user has said since the last answer."""
    asked: list[Message] = []
    for item in reversed(request.items):
        if isinstance(item, Message) and item.role == "assistant":
            break
        if isinstance(item, Message) and item.role == "user":
            asked.append(item)
    return asked[::-1]
