"""One speech socket: receive loop, send loop, the responses in turn, a watch. Event loop only.

Text between two `input_text.end` is one response. Responses are spoken one after another; those
that wait are bounded. A response that ends early (failed, cut) lets its remaining text fall up to
its `input_text.end`, so that the client need not know in the middle of a sentence.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from models.text.errors import TextError, check_text
from realtime.errors import ProtocolError
from realtime.events import (
    ClientEvent,
    InputTextAppend,
    InputTextEnd,
    InputTextFlush,
    OutputAudioPlayout,
    ResponseCancel,
    ResponseCreate,
    ResponsePatch,
    SessionCreated,
    SessionInfo,
    SessionUpdate,
    SessionUpdated,
)
from realtime.frames import parse_audio_frame
from realtime.gateway import Gateway
from realtime.limits import TokenBucket
from realtime.outlet import Outlet
from realtime.protocol import (
    CLOSE_GOING_AWAY,
    CLOSE_INTERNAL,
    CLOSE_NORMAL,
    CLOSE_POLICY,
    CLOSE_TRY_AGAIN,
    parse_client_event,
)
from realtime.responses import SpeechResponse
from realtime.send_queue import SendQueue
from realtime.settings import (
    MAX_SEED,
    SpeechSettings,
    asked_seed,
    merge_settings,
    output_in_force,
    session_info,
)

logger = logging.getLogger(__name__)

WATCH_TICK_S: Final = 0.2
LAST_WORD_S: Final = 1.0
N_KNOWN_RESPONSES: Final = 64
FAIR_MESSAGES: Final = 32
"""Messages of one client that may be handled before other sockets get a turn."""


class SessionEndError(Exception):
    """The session is over. `code` None: the client has left, there is nobody to tell."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class SpeechSession:
    """A conversation of text in and audio out.

    Args:
        socket: accepted.
        gateway: what sessions share.
    """

    def __init__(self, socket: WebSocket, gateway: Gateway) -> None:
        self.session_id = f"sess_{secrets.token_hex(8)}"
        self._socket = socket
        self._gateway = gateway
        self._config = gateway.config
        self._clock = gateway.clock
        self._queue = SendQueue(gateway.config.send, self._set_paused)
        self._outlet = Outlet(self._queue, gateway.metrics)
        self._settings = SpeechSettings(model=next(iter(gateway.specs)))
        self._responses: deque[SpeechResponse] = deque()
        self._open: SpeechResponse | None = None
        self._has_warned_end = False
        self._n_responses = 0
        self._known_ids: deque[str] = deque(maxlen=N_KNOWN_RESPONSES)
        self._arrived = asyncio.Event()
        self._opened_s = self._active_s = self._clock()
        self._has_spoken = False
        self._bucket = TokenBucket(
            rate_per_s=self._config.max_messages_per_s,
            burst=self._config.message_burst,
            now_s=self._opened_s,
        )
        self._is_over_rate = False
        self._send_began_s: float | None = None
        self._is_stopping = False
        self._must_stop_now = False

    @property
    def queue_s(self) -> float:
        """Seconds of audio that wait for the socket."""
        return self._queue.seconds

    def request_stop(self) -> None:
        """End once nothing is being spoken, and begin nothing."""
        self._is_stopping = True

    def stop_now(self) -> None:
        """End at once."""
        self._must_stop_now = True

    async def run(self) -> None:
        """Serve the socket until either side ends it. Leaves nothing behind in the engine."""
        self._gateway.enter(self)
        try:
            await self._close(await self._serve())
        finally:
            self._gateway.leave(self)

    async def _serve(self) -> SessionEndError:
        end = SessionEndError(CLOSE_INTERNAL, "internal error")
        self._outlet.event(
            SessionCreated(event_id=self._outlet.next_event_id(), session=self._info())
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in (self._receive_loop, self._send_loop, self._respond_loop, self._watch):
                    tasks.create_task(loop(), name=f"{self.session_id} {loop.__name__}")
        except* SessionEndError as group:
            end = _first_end(group)
        except* Exception:
            logger.exception("%s: ended by a fault of ours", self.session_id)
        return end

    # Down from the client.

    async def _receive_loop(self) -> None:
        n_messages = 0
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise SessionEndError(None)
            self._active_s = self._clock()
            self._has_spoken = True
            self._count_message()
            text = message.get("text")
            if text is not None:
                self._take_text(text)
            else:
                self._take_frame(message.get("bytes") or b"")
            n_messages += 1
            if n_messages % FAIR_MESSAGES == 0:
                await asyncio.sleep(0)

    def _count_message(self) -> None:
        n_left = self._bucket.take(self._clock())
        limit = f"{self._config.max_messages_per_s:g} messages per second"
        if n_left < -self._bucket.burst:
            raise SessionEndError(CLOSE_POLICY, f"more than {limit}")
        if n_left < 0 and not self._is_over_rate:
            self._outlet.error(
                ProtocolError("rate_limited", f"more than {limit}; slow down or be closed"),
                "rate_limit_error",
            )
        self._is_over_rate = n_left < 0

    def _take_text(self, text: str) -> None:
        event: ClientEvent | None = None
        try:
            event = parse_client_event(text)
            self._perform(event)
        except ProtocolError as fault:
            if event is not None:
                fault.event_id = event.event_id
            self._outlet.error(fault)

    def _take_frame(self, message: bytes) -> None:
        try:
            parse_audio_frame(message)
            raise ProtocolError("unexpected_audio", "this socket takes text, not audio")
        except ProtocolError as fault:
            self._outlet.error(fault)

    def _perform(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate():
                self._update(event)
            case ResponseCreate():
                self._create_asked(event)
            case InputTextAppend():
                self._append(event)
            case InputTextFlush():
                if self._open is not None:
                    self._open.flush()
            case InputTextEnd():
                (self._open or self._create(ResponsePatch())).end()
                self._open = None
            case ResponseCancel():
                self._cancel(event)
            case OutputAudioPlayout():
                self._report_playout(event)

    def _update(self, event: SessionUpdate) -> None:
        self._settings = merge_settings(
            self._settings, event.session, self._gateway.specs, prefix="session"
        )
        self._outlet.event(
            SessionUpdated(event_id=self._outlet.next_event_id(), session=self._info())
        )

    def _create_asked(self, event: ResponseCreate) -> None:
        if self._open is not None and not self._open.is_done:
            raise ProtocolError(
                "conversation_already_has_active_response",
                f"response {self._open.response_id} still takes text; send input_text.end first",
            )
        self._create(event.response)

    def _append(self, event: InputTextAppend) -> None:
        try:
            check_text(event.text)
        except TextError as error:
            raise ProtocolError("invalid_text", str(error), param="text") from None
        n_before = 0 if self._open is None else self._open.n_characters
        limit = self._config.max_text_characters
        if n_before + len(event.text) > limit:
            message = f"a response takes at most {limit} characters of text, {n_before} have come"
            raise ProtocolError("text_too_long", message, param="text")
        response = self._open or self._create(ResponsePatch())
        response.append(event.text)
        if response.is_done and not self._has_warned_end:
            self._has_warned_end = True
            message = f"response {response.response_id} has ended; its text falls until its end"
            raise ProtocolError("response_ended", message)

    def _create(self, patch: ResponsePatch) -> SpeechResponse:
        if self._is_stopping:
            raise ProtocolError("server_stopping", "the server is stopping; connect again")
        n_max = self._config.max_queued_responses
        if len(self._responses) > n_max:
            message = f"{n_max} responses wait already; send more when one is done"
            raise ProtocolError("too_many_responses", message)
        settings = merge_settings(self._settings, patch, self._gateway.specs, prefix="response")
        bridge = self._gateway.bridges[settings.model]
        seed = asked_seed(settings, bridge.spec)
        self._n_responses += 1
        response = SpeechResponse(
            response_id=f"resp_{self.session_id[5:]}_{self._n_responses}",
            number=self._n_responses,
            settings=settings,
            output=output_in_force(settings.output, bridge.spec, self._config),
            metadata=patch.metadata,
            seed=self._gateway.random.randint(0, MAX_SEED) if seed is None else seed,
            bridge=bridge,
            outlet=self._outlet,
            workers=self._gateway.workers,
            config=self._config,
            metrics=self._gateway.metrics,
            clock=self._clock,
        )
        response.announce()
        self._open = response
        self._has_warned_end = False
        self._responses.append(response)
        self._known_ids.append(response.response_id)
        self._arrived.set()
        return response

    def _cancel(self, event: ResponseCancel) -> None:
        wanted = event.response_id
        for response in self._responses:
            if not response.is_done and wanted in (None, response.response_id):
                response.cancel()
                if response is self._open:
                    self._open = None
                return
        named = "no response is active" if wanted is None else f"{wanted!r} is not active"
        param = None if wanted is None else "response_id"
        message = f"Cancellation failed: {named}"
        raise ProtocolError("response_cancel_not_active", message, param=param)

    def _report_playout(self, event: OutputAudioPlayout) -> None:
        if event.response_id not in self._known_ids:
            message = f"unknown response {event.response_id!r}"
            raise ProtocolError("unknown_response", message, param="response_id")
        if self._responses and self._responses[0].response_id == event.response_id:
            self._responses[0].report_playout(event.heard_ms / 1000)

    # Up to the client.

    async def _respond_loop(self) -> None:
        while True:
            while not self._responses:
                self._arrived.clear()
                await self._arrived.wait()
            response = self._responses[0]
            response.set_paused(self._queue.is_paused)
            await response.run()
            self._responses.popleft()
            self._active_s = self._clock()

    async def _send_loop(self) -> None:
        bytes_sent = self._gateway.metrics.bytes_sent
        n_audio, n_events = bytes_sent.labels("audio"), bytes_sent.labels("events")
        while True:
            outgoing = await self._queue.get()
            self._send_began_s = self._clock()
            await self._send(outgoing.message)
            self._send_began_s = None
            (n_audio if isinstance(outgoing.message, bytes) else n_events).inc(
                len(outgoing.message)
            )
            self._queue.sent(outgoing)

    async def _send(self, message: str | bytes) -> None:
        try:
            if isinstance(message, bytes):
                await self._socket.send_bytes(message)
            else:
                await self._socket.send_text(message)
        except WebSocketDisconnect:
            raise SessionEndError(None) from None

    def _set_paused(self, is_paused: bool) -> None:
        if is_paused:
            self._gateway.metrics.pauses.inc()
        if self._responses:
            self._responses[0].set_paused(is_paused)

    # Its end.

    async def _watch(self) -> None:
        while True:
            self.check(self._clock())
            await asyncio.sleep(WATCH_TICK_S)

    def check(self, now_s: float) -> None:
        """End the session if it is time to.

        Raises:
            SessionEndError: the client does not read, does not speak, or the server stops.
        """
        limits = self._config.send
        patience_s = limits.hard_blocked_s if self._queue.is_over_hard_mark else limits.blocked_s
        if self._send_began_s is not None and now_s - self._send_began_s > patience_s:
            reason = f"client took nothing for {patience_s:g} s"
            raise SessionEndError(CLOSE_TRY_AGAIN, reason)
        is_speaking = any(not response.is_waiting_for_text for response in self._responses)
        if self._must_stop_now or (self._is_stopping and not self._responses):
            raise SessionEndError(CLOSE_GOING_AWAY, "server is stopping")
        if not self._has_spoken and now_s - self._opened_s > self._config.first_message_timeout_s:
            reason = f"no message within {self._config.first_message_timeout_s:g} s"
            raise SessionEndError(CLOSE_POLICY, reason)
        if not is_speaking and now_s - self._active_s > self._config.idle_timeout_s:
            raise SessionEndError(CLOSE_NORMAL, f"idle for {self._config.idle_timeout_s:g} s")

    async def _close(self, end: SessionEndError) -> None:
        if end.code is None:
            return
        self._gateway.metrics.closes.labels(str(end.code)).inc()
        logger.info("%s: closed with %d, %s", self.session_id, end.code, end.reason)
        try:
            async with asyncio.timeout(LAST_WORD_S):
                if end.code != CLOSE_TRY_AGAIN:
                    for message in self._queue.drain_events():
                        await self._send(message)
                await self._socket.close(end.code, end.reason)
        except (TimeoutError, SessionEndError, WebSocketDisconnect, RuntimeError):
            # The client left, or takes nothing: it will see a broken connection.
            logger.debug("%s: no last word", self.session_id)

    def _info(self) -> SessionInfo:
        spec = self._gateway.specs[self._settings.model]
        return session_info(self.session_id, self._settings, spec, self._config)


def _first_end(group: BaseExceptionGroup[SessionEndError]) -> SessionEndError:
    first = group.exceptions[0]
    return _first_end(first) if isinstance(first, BaseExceptionGroup) else first
