"""`POST /v1/audio/speech`: one text to one audio file, sent while it is spoken. Event loop only."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.types import Pcm
from realtime.audio.containers import CONTAINERS, ContainerWriter
from realtime.gateway import Gateway
from realtime.lanes.http_bodies import read_text
from realtime.lanes.http_errors import (
    RefusedError,
    check_open,
    counted,
    full,
    refusing,
    stopping,
)
from realtime.lanes.http_stream import (
    EVENT_STREAM,
    ClientGoneError,
    ClientTooSlowError,
    HttpStream,
    StoppedError,
    server_event,
    while_wanted,
)
from realtime.lanes.speech_order import SpeechOrder, read_order
from realtime.socket_link import first_of
from realtime.speech.speaker import ResponseFailedError
from realtime.speech.text_response import TextResponse

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RATE_HZ: Final = 24_000
"""Of all formats, as in the OpenAI API, where PCM does not state it."""
FAILURE_STATUS: Final = {"overloaded": 503, "engine_stopped": 503, "engine_timeout": 504}
TOO_SLOW: Final = "client_too_slow"


@refusing
async def create_speech(request: Request) -> Response:
    """Speak the text of the body."""
    gateway: Gateway = request.app.state.gateway
    check_open(gateway)
    config = gateway.config
    body = await read_text(request, config.max_message_bytes, config.first_message_timeout_s)
    return SpeechAnswer(read_order(body, gateway), gateway)


class SpeechAnswer(Response):
    """One text being spoken to one client: a session as long as it lasts.

    Args:
        order: what is spoken how.
        gateway: what sessions share.
    """

    def __init__(self, order: SpeechOrder, gateway: Gateway) -> None:
        super().__init__()
        self._order = order
        self._gateway = gateway
        self._asked_s = gateway.clock()
        self._model_rate_hz = gateway.specs[order.settings.model].frame.sample_rate_hz
        self._container = CONTAINERS[order.audio_format]
        self._writer: ContainerWriter | None = None
        self._unsent_s = 0.0
        self._is_first_sent = False
        self._stop = asyncio.Event()
        self._stream: HttpStream
        self._response: TextResponse

    # A session, as the gateway sees it.

    has_work = True

    @property
    def queue_s(self) -> float:
        """Seconds of audio that wait for the socket."""
        return self._stream.queue.seconds

    def request_stop(self) -> None:
        """It ends by itself."""

    def stop_now(self) -> None:
        """End at once."""
        self._stop.set()

    # Its life.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        gateway = self._gateway
        if not gateway.count.enter():
            await counted(full(gateway), gateway)(scope, receive, send)
            return
        is_event_stream = self._order.is_event_stream
        self._stream = HttpStream(
            scope,
            receive,
            send,
            content_type=EVENT_STREAM if is_event_stream else self._container.content_type,
            limits=gateway.config.send,
            clock=gateway.clock,
            on_pause=self._on_pause,
        )
        self._response = TextResponse(
            self._order.text,
            settings=self._order.settings,
            gateway=gateway,
            playout=self._stream.playout,
            is_paused=lambda: self._stream.queue.is_paused,
        )
        gateway.enter(self)
        try:
            await self._answer(scope, receive, send)
        finally:
            gateway.leave(self)
            gateway.count.leave()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, refusal = "completed", None
        try:
            stream = self._stream
            await while_wanted(
                self._speak_and_send(), receive, self._stop, lambda: stream.has_ended
            )
            status = "incomplete" if self._response.is_cut else status
        except ClientGoneError:
            status = "cancelled"
        except RefusedError as fault:
            status, refusal = "failed", fault
        except StoppedError:
            status, refusal = "failed", stopping(self._gateway)
        self._gateway.metrics.responses.labels(status).inc()
        if refusal is None:
            return
        self._gateway.metrics.failures.labels(refusal.code).inc()
        if not self._stream.has_begun:
            await counted(refusal, self._gateway)(scope, receive, send)
            return
        logger.info("an answer was broken off: %s", refusal.message)
        is_last_word = self._order.is_event_stream and refusal.code != TOO_SLOW
        event = server_event({"type": "error", "error": refusal.detail()}, name="error")
        await self._stream.break_off(event if is_last_word else b"")

    async def _speak_and_send(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._stream.send_loop())
                watching = tasks.create_task(self._stream.watch())
                await self._speak()
                await sending
                watching.cancel()
        except* (ResponseFailedError, ClientTooSlowError, RefusedError) as group:
            fault = first_of(group)
        else:
            return
        raise answer_to(fault)

    async def _speak(self) -> None:
        await self._response.run(self._take)
        if self._writer is None:
            message = "nothing in input can be spoken: it has no letter and no digit"
            raise RefusedError(400, "empty_text", message, param="input")
        self._put(await self._code(self._writer.finish))
        if self._order.is_event_stream:
            self._stream.put(server_event(self._done()), 0.0, lambda: None)
        self._stream.end()

    async def _take(self, pcm: Pcm) -> None:
        await self._stream.queue.wait_room()
        if self._writer is None:
            rates_hz = (self._model_rate_hz, RATE_HZ)
            self._writer = await self._code(ContainerWriter, self._container, *rates_hz)
        self._unsent_s += len(pcm) / self._model_rate_hz
        self._put(await self._code(self._writer.push, pcm))

    async def _code(self, work: Callable[..., Result], *arguments: object) -> Result:
        try:
            return await self._gateway.workers.run(work, *arguments)
        # Whatever the encoders raise must end this answer and nothing else.
        except Exception as error:
            logger.exception("coding failed")
            raise ResponseFailedError("encoder_error", f"coding failed: {error}") from error

    def _put(self, coded: bytes) -> None:
        """Send what an encoder gave; what it holds back goes with what follows."""
        if not coded:
            return
        seconds, self._unsent_s = self._unsent_s, 0.0
        message = coded
        if self._order.is_event_stream:
            audio = base64.b64encode(coded).decode()
            message = server_event({"type": "speech.audio.delta", "audio": audio})
        self._stream.put(message, seconds, lambda: self._count(len(message), seconds))

    def _count(self, n_bytes: int, seconds: float) -> None:
        metrics = self._gateway.metrics
        if not self._is_first_sent:
            self._is_first_sent = True
            metrics.ttfa_s.observe(self._gateway.clock() - self._asked_s)
        metrics.bytes_sent.labels("audio").inc(n_bytes)
        metrics.audio_s.inc(seconds)

    def _done(self) -> dict[str, Any]:
        n_in, n_out = self._response.n_prompt_rows, self._response.n_frames
        return {
            "type": "speech.audio.done",
            "status": "incomplete" if self._response.is_cut else "completed",
            "usage": {"input_tokens": n_in, "output_tokens": n_out, "total_tokens": n_in + n_out},
        }

    def _on_pause(self, is_paused: bool) -> None:
        if is_paused:
            self._gateway.metrics.pauses.inc()
        self._response.set_paused(is_paused)


def answer_to(fault: ResponseFailedError | ClientTooSlowError | RefusedError) -> RefusedError:
    """What the client is told of a failure."""
    if isinstance(fault, RefusedError):
        return fault
    if isinstance(fault, ClientTooSlowError):
        return RefusedError(408, TOO_SLOW, str(fault))
    if fault.kind == "invalid_request_error":
        return RefusedError(400, fault.code, fault.message, param="input")
    status = FAILURE_STATUS.get(fault.code, 500)
    return RefusedError(status, fault.code, fault.message, retry_after_s=fault.retry_after_s)
