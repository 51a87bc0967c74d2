"""One response: its audio in order, its events, and exactly one `response.done`. Event loop only.

A task group of two: the speaker opens engine streams, the emit loop takes their audio in order of
speech, has it coded in a worker thread, and puts the frames into the session's outlet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, TypeVar

import numpy as np

from engine.types import Pcm, StreamFinished
from models.text.breaks import Pause
from realtime.bridge import EngineBridge
from realtime.coder import AudioCoder, Packet
from realtime.config import GatewayConfig
from realtime.events import (
    OutputAudioDone,
    OutputAudioStarted,
    OutputInfo,
    ResponseCreated,
    ResponseDone,
    ResponseInfo,
    StatusDetails,
    StatusError,
    Timing,
    Usage,
)
from realtime.frames import AudioFrame
from realtime.metrics import GatewayMetrics
from realtime.outlet import Outlet
from realtime.playout import PlayoutClock
from realtime.protocol import PACKET_MS
from realtime.settings import SpeechSettings, max_seconds
from realtime.speaker import ResponseFailedError, Speaker, SpokenSegment, failure_of
from realtime.workers import Workers

logger = logging.getLogger(__name__)

FinalStatus = Literal["completed", "cancelled", "incomplete", "failed"]
Result = TypeVar("Result")
CLIENT_CANCELLED: Final = "client_cancelled"
SILENCE_PIECE_S: Final = 1.0
"""A long pause is coded in pieces, so that it can be cancelled and waits for a slow client."""


class _CutError(Exception):
    """The response has reached its `max_seconds`."""


class SpeechResponse:
    """A response from its creation to its last event.

    Args:
        response_id: unique in the process.
        number: in its session, from 1.
        settings: checked; fixed for this response.
        output: the form of its audio.
        metadata: the client's own, given back.
        seed: of its random draws.
        bridge: the engine that speaks.
        outlet: where events and audio go.
        workers: where audio is coded.
        config: of the gateway.
        metrics: of the app.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        response_id: str,
        number: int,
        settings: SpeechSettings,
        output: OutputInfo,
        metadata: dict[str, str] | None,
        seed: int,
        bridge: EngineBridge,
        outlet: Outlet,
        workers: Workers,
        config: GatewayConfig,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
    ) -> None:
        self.response_id = response_id
        self.number = number
        self.is_done = False
        self.is_text_ended = False
        self.n_characters = 0
        self._output = output
        self._metadata = metadata
        self._spec = bridge.spec
        self._outlet = outlet
        self._workers = workers
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._playout = PlayoutClock()
        self._speaker = Speaker(
            bridge=bridge,
            settings=settings,
            seed=seed,
            workers=workers,
            config=config,
            clock=clock,
            playout=self._playout,
        )
        limit_s = min(max_seconds(settings, bridge.spec) or config.max_audio_s, config.max_audio_s)
        self._samples_left = round(limit_s * self._model_rate_hz)
        self._coder: AudioCoder | None = None
        self._speaking: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._is_cut = False
        self._failure: ResponseFailedError | None = None
        self._n_frames = 0
        self._n_heard_samples = 0
        self._n_packets = 0
        self._n_unsent = 0
        self._all_sent = asyncio.Event()
        self._n_units_cut = 0
        self._first_text_s: float | None = None
        self._begun_s: float | None = None
        self._generated_s: float | None = None
        self._ttfa_s: float | None = None

    # Text side; called by the session between the response's own steps.

    def append(self, text: str) -> None:
        """More text. A response that has ended early lets it fall."""
        if self._first_text_s is None and text:
            self._first_text_s = self._clock()
        self.n_characters += len(text)
        if not self.is_done:
            self._speaker.append(text)

    def flush(self) -> None:
        """Speak what has come."""
        if not self.is_done:
            self._speaker.flush()

    def end(self) -> None:
        """No more text."""
        self.is_text_ended = True
        if not self.is_done:
            self._speaker.end()

    def cancel(self) -> None:
        """End it soon, as cancelled. Audio that waits is forgotten."""
        self._is_cancelled = True
        self._speaker.abort()
        if self._speaking is not None:
            self._speaking.cancel()
        elif not self.is_done:
            self.is_done = True
            self._end()

    def set_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        self._speaker.set_paused(is_paused)

    def report_playout(self, heard_s: float) -> None:
        """The client has heard so much of it."""
        now_s = self._clock()
        self._speaker.report_playout(self._playout.report(heard_s, now_s), now_s)

    @property
    def is_waiting_for_text(self) -> bool:
        """Whether nothing can be spoken until the client sends more."""
        return self._speaker.is_waiting_for_text and not self._n_unsent

    def announce(self) -> None:
        """Tell the client that it exists."""
        info = ResponseInfo(
            id=self.response_id, number=self.number, status="in_progress", metadata=self._metadata
        )
        self._outlet.event(ResponseCreated(event_id=self._outlet.next_event_id(), response=info))

    # Its life.

    async def run(self) -> None:
        """Speak it. Ends with `response.done`, except when the session itself is being ended."""
        if self.is_done:
            return
        self._begun_s = self._clock()
        self._speaking = asyncio.create_task(self._speak(), name=self.response_id)
        try:
            await self._speaking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_cancelled or (task is not None and task.cancelling()):
                raise
        finally:
            self.is_done = True
            self._speaker.abort()
        self._end_audio()
        self._end()

    async def _speak(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._speaker.run())
                tasks.create_task(self._emit_loop())
        except* ResponseFailedError as group:
            self._failure = _first_failure(group)
        except* _CutError:
            self._is_cut = True
        self._generated_s = self._clock()
        # Until the socket has taken all of it, the response can be cancelled.
        while self._n_unsent:
            self._all_sent.clear()
            await self._all_sent.wait()

    async def _emit_loop(self) -> None:
        while (segment := await self._speaker.next_segment()) is not None:
            self._speaker.on_started(segment, self._n_heard_samples / self._model_rate_hz)
            if isinstance(segment, Pause):
                await self._emit_silence(segment.seconds)
            else:
                await self._emit_stream(segment)
        await self._flush()

    async def _emit_silence(self, seconds: float) -> None:
        n_left = round(seconds * self._model_rate_hz)
        while n_left:
            n_samples = min(n_left, round(SILENCE_PIECE_S * self._model_rate_hz))
            await self._emit(np.zeros(n_samples, dtype=np.float32))
            n_left -= n_samples

    async def _emit_stream(self, segment: SpokenSegment) -> None:
        feed = segment.feed
        while (pcm := await self._next_chunk(segment)) is not None:
            await self._emit(pcm)
        outcome = feed.outcome
        self._n_frames += feed.n_samples // self._spec.frame.samples_per_frame
        if not isinstance(outcome, StreamFinished):
            assert outcome is not None, "a feed without more chunks has ended"
            raise failure_of(outcome)
        if outcome.reason == "aborted":
            raise ResponseFailedError("engine_aborted", "the engine ended the stream")
        self._n_units_cut += outcome.reason == "length"
        self._speaker.on_ended(segment)

    async def _next_chunk(self, segment: SpokenSegment) -> Pcm | None:
        while True:
            try:
                return await segment.feed.next_chunk(self._config.engine_silence_s)
            except TimeoutError:
                # A paused stream is silent because we asked for it.
                if not self._outlet.queue.is_paused:
                    message = f"no answer of the engine in {self._config.engine_silence_s:g} s"
                    raise ResponseFailedError("engine_timeout", message) from None

    async def _emit(self, pcm: Pcm) -> None:
        await self._outlet.queue.wait_room()
        pcm = pcm[: self._samples_left]
        self._samples_left -= len(pcm)
        self._n_heard_samples += len(pcm)
        if self._coder is None:
            self._coder = await self._code(AudioCoder, self._model_rate_hz, self._output)
            self._start_audio(self._coder)
        self._put(await self._code(self._coder.push, pcm))
        if self._samples_left == 0:
            await self._flush()
            raise _CutError

    async def _flush(self) -> None:
        if self._coder is not None:
            self._put(await self._code(self._coder.finish))

    async def _code(self, work: Callable[..., Result], *arguments: object) -> Result:
        try:
            return await self._workers.run(work, *arguments)
        # Whatever the Opus library raises must end this response and nothing else.
        except Exception as error:
            logger.exception("%s: coding failed", self.response_id)
            raise ResponseFailedError("encoder_error", f"coding failed: {error}") from error

    def _put(self, packets: list[Packet]) -> None:
        for packet in packets:
            frame = AudioFrame(
                codec=self._output.codec,
                response_number=self.number,
                media_time_ms=self._n_packets * PACKET_MS,
                payload=packet.payload,
            )
            self._n_packets += 1
            self._n_unsent += 1
            seconds = packet.n_samples / self._output.sample_rate_hz
            self._outlet.audio(frame, seconds, partial(self._on_sent, seconds))

    def _on_sent(self, seconds: float) -> None:
        now_s = self._clock()
        self._n_unsent -= 1
        if not self._n_unsent:
            self._all_sent.set()
        underrun_s = self._playout.underrun_s
        self._playout.on_sent(seconds, now_s)
        self._metrics.underrun_s.inc(self._playout.underrun_s - underrun_s)
        if self._ttfa_s is None:
            self._ttfa_s = now_s - (self._first_text_s or now_s)
            self._metrics.ttfa_s.observe(self._ttfa_s)

    # Its events.

    def _start_audio(self, coder: AudioCoder) -> None:
        self._outlet.event(
            OutputAudioStarted(
                event_id=self._outlet.next_event_id(),
                response_id=self.response_id,
                response_number=self.number,
                codec=self._output.codec,
                sample_rate_hz=self._output.sample_rate_hz,
                packet_ms=PACKET_MS,
                pre_skip_samples=coder.pre_skip_samples,
            )
        )

    def _end_audio(self) -> None:
        if self._is_cancelled:
            self._n_packets -= self._outlet.drop_audio(self.number)
        if self._coder is None:
            return
        self._outlet.event(
            OutputAudioDone(
                event_id=self._outlet.next_event_id(),
                response_id=self.response_id,
                n_samples=self._n_samples,
                duration_ms=self._audio_ms,
                n_packets=self._n_packets,
            )
        )

    @property
    def _n_samples(self) -> int:
        return self._coder.n_decodable(self._n_packets) if self._coder else 0

    @property
    def _audio_ms(self) -> float:
        return _ms(self._n_samples / self._output.sample_rate_hz)

    @property
    def _model_rate_hz(self) -> int:
        return self._spec.frame.sample_rate_hz

    def _end(self) -> None:
        status, details = self._outcome()
        self._metrics.responses.labels(status).inc()
        if details is not None and details.error is not None:
            self._metrics.failures.labels(details.error.code).inc()
        generated_s = self._clock() if self._generated_s is None else self._generated_s
        begun_s = generated_s if self._begun_s is None else self._begun_s
        ttfa_ms = None if self._ttfa_s is None else _ms(self._ttfa_s)
        info = ResponseInfo(
            id=self.response_id,
            number=self.number,
            status=status,
            status_details=details,
            usage=Usage(
                n_input_characters=self.n_characters,
                n_frames=self._n_frames,
                n_samples=self._n_samples,
                audio_ms=self._audio_ms,
            ),
            timing=Timing(ttfa_ms=ttfa_ms, generation_ms=round((generated_s - begun_s) * 1000, 3)),
            metadata=self._metadata,
        )
        self._outlet.event(ResponseDone(event_id=self._outlet.next_event_id(), response=info))

    def _outcome(self) -> tuple[FinalStatus, StatusDetails | None]:
        if self._is_cancelled:
            return "cancelled", StatusDetails(type="cancelled", reason=CLIENT_CANCELLED)
        if self._failure is not None:
            fault = self._failure
            error = StatusError(code=fault.code, message=fault.message)
            return "failed", StatusDetails(
                type="failed", reason=fault.code, error=error, retry_after_s=fault.retry_after_s
            )
        if self._is_cut or self._n_units_cut:
            reason = "max_seconds" if self._is_cut else "max_frames"
            return "incomplete", StatusDetails(type="incomplete", reason=reason)
        return "completed", None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _first_failure(group: BaseExceptionGroup[ResponseFailedError]) -> ResponseFailedError:
    first = group.exceptions[0]
    return _first_failure(first) if isinstance(first, BaseExceptionGroup) else first
