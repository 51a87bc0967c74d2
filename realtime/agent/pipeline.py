"""An agent for models that only speak: speech to text, text model, speech model, in a row.

Every stage streams into the next: text is handed to the speech model while it is being written, in
clauses (the first one short) or as it comes where the model takes a stream, and audio is handed on
while it is being generated. Event loop only; the stages bring their own threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from engine.types import Pcm
from models.spec import ModelSpec
from realtime.agent.base import (
    AudioDelta,
    FunctionCall,
    ReplyDone,
    ReplyEvent,
    ReplyRequest,
    Stage,
    StageFailed,
    TextDelta,
    Transcription,
)
from realtime.agent.clauses import ANSWER_TEXT, SentenceGate, SpokenPlaces
from realtime.agent.errors import StageError
from realtime.agent.history import prompt_messages
from realtime.agent.outbox import Outbox
from realtime.agent.recitation import Recitation
from realtime.agent.text_model import Brake, TextDone, TextEvent, TextModel, TextRequest
from realtime.agent.transcriber import Transcriber
from realtime.bridge import EngineBridge
from realtime.config import GatewayConfig
from realtime.playout import PlayoutClock
from realtime.settings import MAX_SEED, SpeechSettings
from realtime.speech.errors import ResponseFailedError
from realtime.speech.speaker import GUESSED_S_PER_CHARACTER, Speaker
from realtime.speech.spoken_audio import SpokenAudio
from realtime.workers import Workers

logger = logging.getLogger(__name__)

FIRST_CLAUSE: Final = "first_clause"
"""In `ReplyDone.stage_ms`, beside the stages: when the first text could be spoken."""
LONGEST_BRAKE_S: Final = 0.5
"""The text model waits no longer for the first sound than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a pipeline is made of; shared by all replies.

    Args:
        transcriber: None where users only write.
        text_model: that answers.
        bridge: of the engine that speaks.
        workers: where the speech model plans.
        config: of the gateway.
        clock: monotonic seconds.
    """

    transcriber: Transcriber | None
    text_model: TextModel
    bridge: EngineBridge
    workers: Workers
    config: GatewayConfig
    clock: Callable[[], float]


class PipelineAgent:
    """Implements `realtime.agent.base.Agent`.

    Args:
        name: what clients choose it by.
        stages: of the pipeline.
    """

    needs_transcript = True

    def __init__(self, name: str, stages: Stages) -> None:
        self._name = name
        config = replace(stages.config, text=ANSWER_TEXT)
        self._stages = replace(stages, config=config)

    @property
    def name(self) -> str:
        """What clients choose it by."""
        return self._name

    @property
    def spec(self) -> ModelSpec:
        """Facts of the model that speaks."""
        return self._stages.bridge.spec

    @property
    def can_transcribe(self) -> bool:
        """Whether it hears at all."""
        return self._stages.transcriber is not None

    @property
    def transcribed_languages(self) -> tuple[str, ...]:
        """Those of the speech to text."""
        transcriber = self._stages.transcriber
        return () if transcriber is None else transcriber.languages

    @property
    def calls_tools(self) -> bool:
        """Whether the text model can ask for function calls."""
        return self._stages.text_model.facts.calls_tools

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """See `Agent.transcribe`."""
        assert self._stages.transcriber is not None, "the session asks only what can be done"
        return self._stages.transcriber.transcribe(pcm, language=language)

    def reply(self, request: ReplyRequest, playout: PlayoutClock) -> PipelineReply:
        """See `Agent.reply`."""
        return PipelineReply(self._stages, request, playout)

    def reciting(self, text: str) -> PipelineAgent:
        """See `Agent.reciting`. It shares the stages with this one, which closes them."""
        return PipelineAgent(self._name, replace(self._stages, text_model=Recitation(text)))

    async def close(self) -> None:
        """Give the stages back. No transcription and no reply goes on."""
        if self._stages.transcriber is not None:
            await self._stages.transcriber.close()
        await self._stages.text_model.close()


class PipelineReply:
    """Implements `realtime.agent.base.Reply`: one task, in which all stages of a reply live.

    Args:
        stages: of the pipeline.
        request: what is to be answered.
        playout: of this reply.
    """

    def __init__(self, stages: Stages, request: ReplyRequest, playout: PlayoutClock) -> None:
        self._stages = stages
        self._request = request
        self._clock = stages.clock
        self._begun_s = self._clock()
        self._stage_ms: dict[str, float] = {}
        self._places = SpokenPlaces(stages.config.text, stages.bridge.spec.sound_tags)
        self._outbox = Outbox(stages.bridge.spec.frame.sample_rate_hz)
        self._is_paused = False
        self._is_cut = False
        self._n_samples = 0
        self._text_end = 0
        self._n_pieces = 0
        self._text_done = TextDone(reason="stop")
        self._brake = Brake()
        self._release: asyncio.TimerHandle | None = None
        self._speaker = Speaker(
            bridge=stages.bridge,
            settings=_speech_settings(request, stages.bridge.spec),
            seed=request.seed & MAX_SEED,
            workers=stages.workers,
            config=stages.config,
            clock=stages.clock,
            playout=playout,
        )
        self._audio = SpokenAudio(
            self._speaker, stages.bridge.spec, stages.config, lambda: self._is_paused
        )
        self._task = asyncio.create_task(self._run(), name="pipeline reply")

    async def next_event(self) -> ReplyEvent | None:
        """See `Reply.next_event`."""
        return await self._outbox.get()

    def cancel(self) -> None:
        """See `Reply.cancel`. The stages end with the task that they live in."""
        self._task.cancel()
        self._speaker.abort()
        self._outbox.discard()

    def set_paused(self, is_paused: bool) -> None:
        """See `Reply.set_paused`."""
        self._is_paused = is_paused
        self._speaker.set_paused(is_paused)

    def report_playout(self, heard_s: float, now_s: float) -> None:
        """See `Reply.report_playout`."""
        self._speaker.report_playout(heard_s, now_s)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._guard("text_model", self._write))
                if self._request.wants_audio:
                    tasks.create_task(self._guard("speech_model", self._speaker.run))
                    tasks.create_task(self._guard("speech_model", self._speak))
            self._outbox.put(self._done())
        except* _StageFailedError as group:
            self._outbox.put(_first_failure(group))
        finally:
            if self._release is not None:
                self._release.cancel()
            self._speaker.abort()
            self._outbox.close()

    async def _guard(self, stage: Stage, work: Callable[[], Awaitable[None]]) -> None:
        """Run a stage; its fault ends the others, and is the reply's."""
        try:
            await work()
        except (StageError, ResponseFailedError) as fault:
            failed = StageFailed(
                stage=stage,
                code=fault.code,
                message=fault.message,
                retry_after_s=fault.retry_after_s,
            )
            raise _StageFailedError(failed) from None
        # Whatever a model or a library raises must end this reply and nothing else.
        except Exception as error:
            logger.exception("the %s of a reply failed", stage)
            failed = StageFailed(stage=stage, code="model_error", message=f"it failed: {error}")
            raise _StageFailedError(failed) from error

    # Text.

    async def _write(self) -> None:
        asked = self._text_request()
        # A limit of ours ends with a sentence; one that the client set cuts where it falls.
        is_ours = self._request.max_output_tokens is None and asked.max_tokens is not None
        gate = SentenceGate() if is_ours else None
        async with aclosing(self._stages.text_model.stream(asked)) as events:
            async for event in events:
                self._take(event, gate)
                if self._is_cut or (gate is not None and gate.is_looping):
                    # Its own count comes at its end: a piece is about a token.
                    self._text_done = replace(self._text_done, n_output_tokens=self._n_pieces)
                    break
        if gate is not None:
            is_cut = self._text_done.reason == "length"
            rest, is_whole = gate.finish(is_cut=is_cut)
            self._add_text(rest)
            if is_whole and not self._is_cut:
                self._text_done = replace(self._text_done, reason="stop")
        self._places.end()
        self._mark_clause()
        self._speaker.end()

    def _text_request(self) -> TextRequest:
        request, facts = self._request, self._stages.text_model.facts
        messages = prompt_messages(
            request.items,
            instructions=request.instructions or facts.instructions,
            max_tokens=facts.history_tokens,
            calls_tools=facts.calls_tools,
        )
        return TextRequest(
            messages=messages,
            seed=request.seed,
            asked_s=request.asked_s,
            max_tokens=request.max_output_tokens or facts.reply_tokens,
            tools=request.tools if facts.calls_tools else (),
            tool_choice=request.tool_choice,
            brake=self._brake,
        )

    def _take(self, event: TextEvent, gate: SentenceGate | None) -> None:
        match event:
            case TextDelta(text=text):
                self._n_pieces += 1
                self._mark("text_model")
                self._add_text(text if gate is None else gate.push(text))
            case FunctionCall():
                self._mark("text_model")
                self._outbox.put(event)
            case TextDone():
                self._text_done = event

    def _add_text(self, text: str) -> None:
        n_left = self._stages.config.max_text_characters - self._places.n_characters
        if len(text) > n_left:
            self._is_cut = True
            self._text_done = TextDone(reason="length")
            text = text[:n_left]
        if not text:
            return
        self._outbox.put(TextDelta(text=text))
        self._places.push(text)
        self._mark_clause()
        if self._request.wants_audio:
            self._speaker.append(text)

    # Speech.

    async def _speak(self) -> None:
        while (pcm := await self._audio.next_chunk()) is not None:
            if self._mark("speech_model"):
                self._brake.set(False)
            self._n_samples += len(pcm)
            await self._outbox.wait_room()
            # A guess may turn out too high; what was said to be spoken stays so.
            self._text_end = max(self._text_end, self._spoken_place())
            self._outbox.put(AudioDelta(pcm=pcm, text_end=self._text_end))

    def _spoken_place(self) -> int:
        if self._speaker.is_streaming:
            # One stream speaks all of the text, and does not say where in it it is.
            rate_hz = self._stages.bridge.spec.frame.sample_rate_hz
            n_spoken = self._n_samples / rate_hz / GUESSED_S_PER_CHARACTER
            return min(int(n_spoken), self._places.n_characters)
        return self._places.place_of(self._audio.n_characters)

    # What is told of it.

    def _mark_clause(self) -> None:
        is_first = bool(self._places.n_units) and self._mark(FIRST_CLAUSE)
        if is_first and self._request.wants_audio:
            self._brake.set(True)
            # A unit in which the speech model finds nothing to say makes no sound.
            loop = asyncio.get_running_loop()
            self._release = loop.call_later(LONGEST_BRAKE_S, self._brake.set, False)

    def _mark(self, name: str) -> bool:
        """A stage gives something. Returns whether it is its first, of which the time is kept."""
        is_first = name not in self._stage_ms
        if is_first:
            self._stage_ms[name] = round((self._clock() - self._begun_s) * 1000, 3)
        return is_first

    def _done(self) -> ReplyDone:
        done = self._text_done
        is_cut = done.reason == "length" or bool(self._audio.n_units_cut)
        return ReplyDone(
            reason="length" if is_cut else "stop",
            n_input_tokens=done.n_input_tokens,
            n_output_tokens=done.n_output_tokens,
            n_frames=self._audio.n_frames,
            stage_ms=dict(self._stage_ms),
        )


class _StageFailedError(Exception):
    """A stage of a reply has failed."""

    def __init__(self, failed: StageFailed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def _first_failure(group: BaseExceptionGroup[_StageFailedError]) -> StageFailed:
    first = group.exceptions[0]
    return _first_failure(first) if isinstance(first, BaseExceptionGroup) else first.failed


def _speech_settings(request: ReplyRequest, spec: ModelSpec) -> SpeechSettings:
    options = dict(request.options)
    if request.max_seconds is not None:
        options["max_seconds"] = request.max_seconds
    return SpeechSettings(
        model=spec.name, voice=request.voice, language=request.language, options=options
    )
