"""`POST /v1/audio/speech`: one text to one audio file, sent while it is spoken. Event loop only."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from engine.types import Pcm
from realtime.audio.containers import CONTAINERS, Container, ContainerWriter
from realtime.gateway import Gateway
from realtime.lanes.http_bodies import read_text
from realtime.lanes.http_errors import RefusedError
from realtime.lanes.http_session import HttpSession
from realtime.lanes.http_stream import server_event
from realtime.lanes.speech_order import SpeechOrder, read_order
from realtime.speech.errors import ResponseFailedError
from realtime.speech.text_response import TextResponse

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RATE_HZ: Final = 24_000
"""Of all formats, as in the OpenAI API, where PCM does not state it."""


async def create_speech(request: Request) -> Response:
    """Speak the text of the body."""
    gateway: Gateway = request.app.state.gateway
    return SpeechAnswer(gateway)


class SpeechAnswer(HttpSession):
    """One text being spoken to one client."""

    _order: SpeechOrder
    _container: Container
    _model_rate_hz: int
    _response: TextResponse | None = None
    _writer: ContainerWriter | None = None
    _asked_s = 0.0
    _unsent_s = 0.0
    _is_first_sent = False

    async def read(self, request: Request) -> None:
        """Read and check the body."""
        config = self.gateway.config
        body = await read_text(request, config.max_message_bytes, config.first_message_timeout_s)
        self._order = read_order(body, self.gateway)
        self._asked_s = self.gateway.clock()

    async def work(self) -> Response | None:
        """Speak."""
        order, stream = self._order, self.stream
        self._container = CONTAINERS[order.audio_format]
        self._model_rate_hz = self.gateway.specs[order.settings.model].frame.sample_rate_hz
        self.is_event_stream = order.is_event_stream
        if not order.is_event_stream:
            stream.content_type = self._container.content_type
        response = self._response = TextResponse(
            order.text,
            settings=order.settings,
            gateway=self.gateway,
            playout=stream.playout,
            is_paused=lambda: stream.queue.is_paused,
        )
        await response.run(self._take)
        if self._writer is None:
            message = "nothing in input can be spoken: it has no letter and no digit"
            raise RefusedError(400, "empty_text", message, param="input")
        self._put(await self._code(self._writer.finish))
        if order.is_event_stream:
            stream.put(server_event(_done(response)), 0.0, lambda: None)
        return None

    def on_pause(self, is_paused: bool) -> None:
        """Hold the engine back, or let it go on."""
        assert self._response is not None, "nothing waits for the socket before it is spoken"
        if is_paused:
            self.gateway.metrics.pauses.inc()
        self._response.set_paused(is_paused)

    def on_end(self, refusal: RefusedError | None, *, is_gone: bool) -> None:
        """Count what was spoken."""
        if self._response is None:
            return
        metrics = self.gateway.metrics
        if refusal is not None:
            metrics.failures.labels(refusal.code).inc()
            status = "failed"
        elif is_gone:
            status = "cancelled"
        else:
            status = "incomplete" if self._response.is_cut else "completed"
        metrics.responses.labels(status).inc()
        if self._is_first_sent:
            metrics.underrun_s.inc(self.stream.playout.underrun_s)
            metrics.count_heard(self.stream.playout)

    async def _take(self, pcm: Pcm) -> None:
        await self.stream.queue.wait_room()
        if self._writer is None:
            rates_hz = (self._model_rate_hz, RATE_HZ)
            self._writer = await self._code(ContainerWriter, self._container, *rates_hz)
        self._unsent_s += len(pcm) / self._model_rate_hz
        self._put(await self._code(self._writer.push, pcm))

    async def _code(self, work: Callable[..., Result], *arguments: object) -> Result:
        try:
            return await self.gateway.workers.run(work, *arguments)
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
        self.stream.put(message, seconds, lambda: self._count(len(message), seconds))

    def _count(self, n_bytes: int, seconds: float) -> None:
        metrics = self.gateway.metrics
        if not self._is_first_sent:
            self._is_first_sent = True
            metrics.ttfa_s.observe(self.gateway.clock() - self._asked_s)
        metrics.bytes_sent.labels("audio").inc(n_bytes)
        metrics.audio_s.inc(seconds)


def _done(response: TextResponse) -> dict[str, Any]:
    n_in, n_out = response.n_prompt_rows, response.n_frames
    return {
        "type": "speech.audio.done",
        "status": "incomplete" if response.is_cut else "completed",
        "usage": {"input_tokens": n_in, "output_tokens": n_out, "total_tokens": n_in + n_out},
    }
