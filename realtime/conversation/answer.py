"""One response of a conversation: from its first event to `response.done`. Event loop only.

It reads what the agent tells, keeps the item that grows from it, sends events and audio, and can be
stopped between any two steps: what was begun is then closed at once, and nothing follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from engine.types import Pcm
from realtime.agent.base import (
    Agent,
    AudioDelta,
    ContextItem,
    FunctionCall,
    Reply,
    ReplyDone,
    ReplyEvent,
    ReplyRequest,
    StageFailed,
    TextDelta,
)
from realtime.conversation.answer_items import AnswerItems
from realtime.conversation.events import (
    AnswerCreated,
    AnswerDone,
    AnswerInfo,
    AnswerTiming,
    AnswerUsage,
)
from realtime.conversation.items import Conversation
from realtime.conversation.settings import ConversationSettings, spoken_audio
from realtime.conversation.turns import StopReason
from realtime.events import ResponseStatus, StatusDetails, StatusError
from realtime.gateway import Gateway
from realtime.outlet import Outlet
from realtime.playout import PlayoutClock
from realtime.response_audio import ResponseAudio
from realtime.settings import MAX_SEED, asked_seed, max_seconds, model_options, output_in_force
from realtime.speech.errors import ResponseFailedError

logger = logging.getLogger(__name__)

Context = tuple[ContextItem, ...]

FinalStatus = Literal["completed", "cancelled", "incomplete", "failed"]


@dataclass(slots=True, kw_only=True)
class Asked:
    """What led to an answer.

    Args:
        at_s: when the user or the client began to wait.
        speech_end_s: when the user stopped speaking; None: a client asked.
        transcript_s: when the transcript was there; None: none was waited for.
    """

    at_s: float
    speech_end_s: float | None = None
    transcript_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be answered how.

    Args:
        agent: that answers.
        settings: fixed for this response.
        asked: what led to it.
        metadata: the client's own, given back.
    """

    agent: Agent
    settings: ConversationSettings
    asked: Asked
    metadata: dict[str, str] | None = None


class Answer:
    """A response.

    Args:
        session_id: of its session.
        number: in its session, from 1.
        order: what is wanted.
        conversation: that its items go into; None: it is aside.
        is_client_truncating: the client says by itself what was heard of what was stopped.
        gateway: what sessions share.
        outlet: where events and audio go.
        on_playing: called when its first audio has been sent.
        on_ended: called once it is over by itself.
    """

    def __init__(
        self,
        *,
        session_id: str,
        number: int,
        order: Order,
        conversation: Conversation | None,
        is_client_truncating: bool,
        gateway: Gateway,
        outlet: Outlet,
        on_playing: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.number = number
        self.response_id = f"resp_{session_id[5:]}_{number}"
        self.is_done = False
        self.playout = PlayoutClock()
        self._conversation_id = None if conversation is None else f"conv_{session_id[5:]}"
        self._is_client_truncating = is_client_truncating
        self._order = order
        self._agent = order.agent
        self._settings = order.settings
        self._metadata = order.metadata
        self._asked = order.asked
        self._gateway = gateway
        self._clock = gateway.clock
        self._outlet = outlet
        self._items = AnswerItems(
            response_id=self.response_id,
            outlet=outlet,
            conversation=conversation,
            wants_audio=order.settings.wants_audio,
        )
        self._audio = self._make_audio(on_playing)
        self._on_ended = on_ended
        self._task: asyncio.Task[None] | None = None
        self._reply: Reply | None = None
        self._is_paused = False
        self._begun_s: float | None = None
        self._first_audio_s: float | None = None
        self._done: ReplyDone | None = None
        self._n_pieces = 0
        self._failure: StageFailed | None = None

    @property
    def message_id(self) -> str | None:
        """Id of the item that is spoken; None before its first word."""
        return self._items.message_id

    def rest(self) -> Order | None:
        """An order for what was not heard of it; None: there is nothing, or nobody can say it."""
        text = self._items.unheard_text()
        agent = self._agent.reciting(text) if text and self._settings.wants_audio else None
        if agent is None:
            return None
        return replace(self._order, agent=agent, asked=Asked(at_s=self._clock()))

    def announce(self) -> None:
        """Tell the client that it exists."""
        self._outlet.event(AnswerCreated(response=self._info("in_progress")))

    def start(self, items: Callable[[], Awaitable[Context | None]]) -> None:
        """Answer. Ends with `response.done`, unless it is stopped before.

        Args:
            items: waits for the conversation so far; None: there is nothing to answer.
        """
        self._task = asyncio.create_task(self._run(items), name=self.response_id)

    async def close(self) -> None:
        """End it because the session ends; nothing is sent, and nothing follows."""
        self._on_ended = _nothing
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, items: Callable[[], Awaitable[Context | None]]) -> None:
        try:
            await self._answer(items)
            if not self.is_done:
                self._end(*self._outcome())
        finally:
            self.is_done = True
            if self._reply is not None:
                self._reply.cancel()
            self._on_ended()

    def stop(self, reason: StopReason) -> None:
        """End it now, as cancelled: what the socket has not taken is forgotten."""
        if self.is_done:
            return
        if self._reply is not None:
            self._reply.cancel()
        if self._task is not None:
            self._task.cancel()
        self.drop_unsent()
        self._end("cancelled", StatusDetails(type="cancelled", reason=reason))

    def drop_unsent(self) -> None:
        """Forget the audio that the socket has not taken."""
        self._audio.drop_unsent()

    def set_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        self._is_paused = is_paused
        if self._reply is not None:
            self._reply.set_paused(is_paused)

    def report_playout(self, heard_s: float) -> None:
        """The client has heard so much of it."""
        now_s = self._clock()
        heard_s = self.playout.report(heard_s, now_s)
        if self._reply is not None:
            self._reply.report_playout(heard_s, now_s)

    # Its life.

    async def _answer(self, items: Callable[[], Awaitable[Context | None]]) -> None:
        try:
            context = await items()
            if context is None:
                return
            self._begun_s = self._clock()
            self._items.note_context(context)
            self._reply = self._agent.reply(self._request(context), self.playout)
            if self._is_paused:
                self._reply.set_paused(True)
            while (event := await self._reply.next_event()) is not None:
                await self._take(event)
                if self._audio.is_cut:
                    break
            await self._audio.finish()
            # Until the socket has taken all of it, the response can be stopped.
            await self._audio.wait_sent()
        except ResponseFailedError as error:
            self._fail(error.code, error.message)
        # An agent's bug costs this response and nothing else.
        except Exception as error:
            logger.exception("%s: the agent failed", self.response_id)
            self._fail("model_error", f"the agent failed: {error}")

    async def _take(self, event: ReplyEvent) -> None:
        match event:
            case TextDelta(text=text):
                self._n_pieces += 1
                self._items.add_text(text)
            case AudioDelta(pcm=pcm, text_end=text_end):
                await self._take_audio(pcm, text_end)
            case FunctionCall():
                self._items.add_call(event)
            case ReplyDone():
                self._done = event
            case StageFailed():
                self._failure = event

    async def _take_audio(self, pcm: Pcm, text_end: int) -> None:
        if not len(pcm):
            return
        if self._first_audio_s is None:
            self._first_audio_s = self._clock()
        self._items.open_message()
        await self._audio.push(pcm)
        self._items.mark(self._audio.taken_s, text_end)

    def _request(self, items: Context) -> ReplyRequest:
        settings, spec = self._settings, self._agent.spec
        seed = asked_seed(settings.speech, spec)
        return ReplyRequest(
            items=items,
            seed=self._gateway.random.randint(0, MAX_SEED) if seed is None else seed,
            asked_s=self._asked.at_s,
            instructions=settings.instructions,
            wants_audio=settings.wants_audio,
            voice=settings.speech.voice,
            language=settings.speech.language,
            options=model_options(settings.speech, spec),
            max_output_tokens=settings.max_output_tokens,
            max_seconds=max_seconds(settings.speech, spec),
            tools=settings.agent_tools,
            tool_choice=settings.agent_tool_choice,
        )

    def _make_audio(self, on_playing: Callable[[], None]) -> ResponseAudio:
        spec, config = self._agent.spec, self._gateway.config
        limit_s = max_seconds(self._settings.speech, spec) or config.max_audio_s
        return ResponseAudio(
            response_id=self.response_id,
            number=self.number,
            model_rate_hz=spec.frame.sample_rate_hz,
            output=output_in_force(self._settings.speech.output, spec, config),
            outlet=self._outlet,
            workers=self._gateway.workers,
            metrics=self._gateway.metrics,
            clock=self._clock,
            playout=self.playout,
            max_s=min(limit_s, config.max_audio_s),
            asked_s=self._asked.at_s,
            on_first_sent=on_playing,
        )

    # Its end.

    def _fail(self, code: str, message: str) -> None:
        self._failure = StageFailed(stage="speech_model", code=code, message=message)

    def _outcome(self) -> tuple[FinalStatus, StatusDetails | None]:
        if self._failure is not None:
            fault = self._failure
            error = StatusError(code=fault.code, message=f"{fault.stage}: {fault.message}")
            return "failed", StatusDetails(
                type="failed", reason=fault.code, error=error, retry_after_s=fault.retry_after_s
            )
        if self._audio.is_cut:
            return "incomplete", StatusDetails(type="incomplete", reason="max_seconds")
        if (cut := self._made().reason) != "stop":
            reason = "max_output_tokens" if cut == "length" else "max_frames"
            return "incomplete", StatusDetails(type="incomplete", reason=reason)
        return "completed", None

    def _end(self, status: FinalStatus, details: StatusDetails | None) -> None:
        self.is_done = True
        self._audio.close()
        self._close_items(status)
        metrics = self._gateway.metrics
        metrics.responses.labels(status).inc()
        if details is not None and details.error is not None:
            metrics.failures.labels(details.error.code).inc()
        info = self._info(status).model_copy(
            update={"status_details": details, "usage": self._usage(), "timing": self._timing()}
        )
        self._outlet.event(AnswerDone(response=info))

    def _close_items(self, status: FinalStatus) -> None:
        is_complete = status == "completed"
        if status != "cancelled":
            self._items.close(is_complete=is_complete, kept_s=None, memory=self._made().memory)
            return
        heard_s = self.playout.heard_s(self._clock())
        if self._is_client_truncating:
            self._items.close(is_complete=False, kept_s=self.playout.sent_s, heard_s=heard_s)
        else:
            self._items.close(is_complete=False, kept_s=heard_s)

    def _info(self, status: ResponseStatus) -> AnswerInfo:
        spec, config = self._agent.spec, self._gateway.config
        return AnswerInfo(
            id=self.response_id,
            number=self.number,
            status=status,
            output=self._items.output(),
            conversation_id=self._conversation_id,
            output_modalities=["audio" if self._settings.wants_audio else "text"],
            max_output_tokens=self._settings.max_output_tokens or "inf",
            audio=spoken_audio(self._settings, spec, config),
            metadata=self._metadata,
            kept=self._settings.kept,
        )

    def _made(self) -> ReplyDone:
        """What the reply says of itself; before its end, what it has been seen to make."""
        if self._done is not None:
            return self._done
        n_frames = round(self._audio.taken_s * self._agent.spec.frame.frame_rate_hz)
        # A piece of text is about a token.
        return ReplyDone(n_output_tokens=self._n_pieces, n_frames=n_frames)

    def _usage(self) -> AnswerUsage:
        done = self._made()
        return AnswerUsage(
            total_tokens=done.n_input_tokens + done.n_output_tokens,
            input_tokens=done.n_input_tokens,
            output_tokens=done.n_output_tokens,
            n_frames=done.n_frames,
            n_samples=self._audio.n_samples,
            audio_ms=_ms(self._audio.seconds) or 0.0,
        )

    def _timing(self) -> AnswerTiming:
        asked, begun_s = self._asked, self._begun_s
        return AnswerTiming(
            endpoint_ms=_span_ms(asked.speech_end_s, asked.at_s),
            transcript_ms=_span_ms(asked.at_s, asked.transcript_s),
            stage_ms=dict(self._made().stage_ms),
            first_audio_ms=_span_ms(begun_s, self._first_audio_s),
            ttfa_ms=_ms(self._audio.ttfa_s),
        )


def _nothing() -> None:
    pass


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _span_ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else _ms(end_s - start_s)
