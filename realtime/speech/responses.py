"""One response: its audio in order, its events, and exactly one `response.done`. Event loop only.

A task group of two: the speaker opens engine streams, the emit loop takes their audio in order of
speech and gives it to `ResponseAudio`, which has it coded and sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from realtime.bridge import EngineBridge
from realtime.config import GatewayConfig
from realtime.events import (
    OutputInfo,
    ResponseCreated,
    ResponseDone,
    ResponseInfo,
    StatusDetails,
    StatusError,
    Timing,
    Usage,
)
from realtime.metrics import GatewayMetrics
from realtime.outlet import Outlet
from realtime.playout import PlayoutClock
from realtime.response_audio import ResponseAudio
from realtime.settings import SpeechSettings, max_seconds
from realtime.socket_link import first_of
from realtime.speech.errors import ResponseFailedError
from realtime.speech.speaker import Speaker
from realtime.speech.spoken_audio import SpokenAudio
from realtime.workers import Workers

FinalStatus = Literal["completed", "cancelled", "incomplete", "failed"]
CLIENT_CANCELLED: Final = "client_cancelled"
SESSION_ENDED: Final = "session_ended"


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
        self.n_characters = 0
        self._metadata = metadata
        self._outlet = outlet
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
        spec = bridge.spec
        self._spoken = SpokenAudio(self._speaker, spec, config, lambda: outlet.queue.is_paused)
        self._audio = ResponseAudio(
            response_id=response_id,
            number=number,
            model_rate_hz=spec.frame.sample_rate_hz,
            output=output,
            outlet=outlet,
            workers=workers,
            metrics=metrics,
            clock=clock,
            playout=self._playout,
            max_s=min(max_seconds(settings, spec) or config.max_audio_s, config.max_audio_s),
        )
        self._speaking: asyncio.Task[None] | None = None
        self._cancelled: str | None = None
        self._is_told = False
        self._failure: ResponseFailedError | None = None
        self._begun_s: float | None = None
        self._generated_s: float | None = None

    # Text side; called by the session between the response's own steps.

    def append(self, text: str) -> None:
        """More text. A response that has ended early lets it fall."""
        if self._audio.asked_s is None and text:
            self._audio.asked_s = self._clock()
        self.n_characters += len(text)
        if not self.is_done:
            self._speaker.append(text)

    def flush(self) -> None:
        """Speak what has come."""
        if not self.is_done:
            self._speaker.flush()

    def end(self) -> None:
        """No more text."""
        # With speech to answer there may be none at all.
        if self._audio.asked_s is None:
            self._audio.asked_s = self._clock()
        if not self.is_done:
            self._speaker.end()

    def cancel(self) -> None:
        """End it soon, as cancelled. Audio that waits is forgotten."""
        self._cancelled = CLIENT_CANCELLED
        self._speaker.abort()
        if self._speaking is not None:
            self._speaking.cancel()
        elif not self.is_done:
            self.is_done = True
            self._end()

    def cut_off(self) -> None:
        """Say that it ends here, because its session does; nothing of it runs any more."""
        if self._is_told:
            return
        self.is_done = True
        self._cancelled = self._cancelled or SESSION_ENDED
        self._audio.drop_unsent()
        self._audio.close()
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
        is_starved = self._spoken.is_starved and self._speaker.is_out_of_text
        return (self._speaker.is_waiting_for_text or is_starved) and self._audio.is_all_sent

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
            if not self._cancelled or (task is not None and task.cancelling()):
                raise
        finally:
            self.is_done = True
            self._speaker.abort()
        if self._cancelled:
            self._audio.drop_unsent()
        self._audio.close()
        self._end()

    async def _speak(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                speaking = tasks.create_task(self._speaker.run())
                tasks.create_task(self._emit_loop(speaking))
        except* ResponseFailedError as group:
            self._failure = first_of(group)
        self._generated_s = self._clock()
        # Until the socket has taken all of it, the response can be cancelled.
        await self._audio.wait_sent()

    async def _emit_loop(self, speaking: asyncio.Task[None]) -> None:
        while not self._audio.is_cut and (pcm := await self._spoken.next_chunk()) is not None:
            await self._audio.push(pcm)
        await self._audio.finish()
        if self._audio.is_cut:
            speaking.cancel()
            self._speaker.abort()

    # Its events.

    def _end(self) -> None:
        self._is_told = True
        status, details = self._outcome()
        self._metrics.responses.labels(status).inc()
        if details is not None and details.error is not None:
            self._metrics.failures.labels(details.error.code).inc()
        generated_s = self._clock() if self._generated_s is None else self._generated_s
        begun_s = generated_s if self._begun_s is None else self._begun_s
        ttfa_s = self._audio.ttfa_s
        info = ResponseInfo(
            id=self.response_id,
            number=self.number,
            status=status,
            status_details=details,
            usage=Usage(
                n_input_characters=self.n_characters,
                n_frames=self._spoken.n_frames,
                n_samples=self._audio.n_samples,
                audio_ms=_ms(self._audio.seconds),
            ),
            timing=Timing(
                ttfa_ms=None if ttfa_s is None else _ms(ttfa_s),
                generation_ms=_ms(generated_s - begun_s),
            ),
            metadata=self._metadata,
        )
        self._outlet.event(ResponseDone(event_id=self._outlet.next_event_id(), response=info))

    def _outcome(self) -> tuple[FinalStatus, StatusDetails | None]:
        if self._cancelled:
            return "cancelled", StatusDetails(type="cancelled", reason=self._cancelled)
        if self._failure is not None:
            fault = self._failure
            error = StatusError(type=fault.kind, code=fault.code, message=fault.message)
            return "failed", StatusDetails(
                type="failed", reason=fault.code, error=error, retry_after_s=fault.retry_after_s
            )
        if self._audio.is_cut or self._spoken.n_units_cut:
            reason = "max_seconds" if self._audio.is_cut else "max_frames"
            return "incomplete", StatusDetails(type="incomplete", reason=reason)
        return "completed", None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
