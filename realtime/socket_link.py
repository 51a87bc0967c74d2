"""One accepted WebSocket: receive loop, send loop, watch, and the last word. Event loop only.

What is said over the socket is its handler's business; every lane uses this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from realtime.errors import ProtocolError
from realtime.gateway import Gateway
from realtime.limits import TokenBucket
from realtime.outlet import Outlet
from realtime.protocol import (
    CLOSE_GOING_AWAY,
    CLOSE_INTERNAL,
    CLOSE_NORMAL,
    CLOSE_POLICY,
    CLOSE_TOO_BIG,
    CLOSE_TRY_AGAIN,
)
from realtime.send_queue import SendQueue
from realtime.wire_form import ParleyForm, WireForm

logger = logging.getLogger(__name__)

WATCH_TICK_S: Final = 0.2
LAST_WORD_S: Final = 1.0
FAIR_MESSAGES: Final = 32
"""Messages of one client that may be handled before other sockets get a turn."""

Loop = Callable[[], Coroutine[Any, Any, None]]


class SessionEndError(Exception):
    """The session is over. `code` None: the client has left, there is nobody to tell."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class MessageReader(Protocol):
    """Reads what a client sends, in its wire form."""

    def on_text(self, message: str) -> None:
        """A text message came."""
        ...

    def on_bytes(self, message: bytes) -> None:
        """A binary message came."""
        ...


class SocketHandler(Protocol):
    """What a session says of its work, and is told of its socket."""

    def on_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether something is under way that a stop of the server waits for."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can go on until the client says more: its idle time counts."""
        ...


class SocketLink:
    """A socket and its loops.

    Args:
        name: of the session, for logs and tasks.
        socket: accepted.
        gateway: what sessions share.
        reader: of its messages.
        handler: the session that is served.
        form: that messages to the client take.
        may_be_silent: a client that sends nothing is not sent away.
        lasts_s: longest time that it is served.
        max_message_bytes: a larger message ends the session; None: as configured.
    """

    def __init__(
        self,
        name: str,
        socket: WebSocket,
        gateway: Gateway,
        reader: MessageReader,
        handler: SocketHandler,
        form: WireForm | None = None,
        *,
        may_be_silent: bool = False,
        lasts_s: float = math.inf,
        max_message_bytes: int | None = None,
    ) -> None:
        self._name = name
        self._socket = socket
        self._gateway = gateway
        self._config = gateway.config
        self._clock = gateway.clock
        self._reader = reader
        self._handler = handler
        self.queue = SendQueue(gateway.config.send, self._set_paused)
        self.outlet = Outlet(self.queue, gateway.metrics, form or ParleyForm())
        self._opened_s = self._active_s = self._clock()
        self._lasts_s = lasts_s
        self._max_message_bytes = max_message_bytes or self._config.max_message_bytes
        self._has_spoken = self._may_be_silent = may_be_silent
        self._bucket = TokenBucket(
            rate_per_s=self._config.max_messages_per_s,
            burst=self._config.message_burst,
            now_s=self._opened_s,
        )
        self._is_over_rate = False
        self._send_began_s: float | None = None
        self.is_stopping = False
        self._must_stop_now = False

    def request_stop(self) -> None:
        """End once the handler has no work."""
        self.is_stopping = True

    def stop_now(self) -> None:
        """End at once."""
        self._must_stop_now = True

    def touch(self) -> None:
        """Something was done for the client: its idle time starts again."""
        self._active_s = self._clock()

    async def run(self, loops: Sequence[Loop], on_ending: Callable[[], None]) -> None:
        """Run the socket's loops and the handler's own until one ends the session; then close.

        Args:
            loops: of the handler.
            on_ending: called before the close, where the client can still be told what that cuts.
        """
        end = SessionEndError(CLOSE_INTERNAL, "internal error")
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in (self._receive_loop, self._send_loop, self._watch, *loops):
                    tasks.create_task(loop(), name=f"{self._name} {loop.__name__}")
        except* SessionEndError as group:
            end = first_of(group)
        except* Exception:
            logger.exception("%s: ended by a fault of ours", self._name)
        if end.code not in (None, CLOSE_TRY_AGAIN):
            on_ending()
        await self._close(end)

    async def _receive_loop(self) -> None:
        n_messages = 0
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise SessionEndError(None)
            self.touch()
            self._has_spoken = True
            self._count_message()
            text = message.get("text")
            if text is not None:
                self._check_size(len(text))
                self._reader.on_text(text)
            else:
                payload = message.get("bytes") or b""
                self._check_size(len(payload))
                self._reader.on_bytes(payload)
            n_messages += 1
            if n_messages % FAIR_MESSAGES == 0:
                await asyncio.sleep(0)

    def _check_size(self, n_bytes: int) -> None:
        """What is larger than any lane takes has been refused below, while it came."""
        if n_bytes > self._max_message_bytes:
            limit = f"the limit is {self._max_message_bytes}"
            raise SessionEndError(CLOSE_TOO_BIG, f"a message of {n_bytes} bytes; {limit}")

    def _count_message(self) -> None:
        n_left = self._bucket.take(self._clock())
        limit = f"{self._config.max_messages_per_s:g} messages per second"
        if n_left < -self._bucket.burst:
            raise SessionEndError(CLOSE_POLICY, f"more than {limit}")
        if n_left < 0 and not self._is_over_rate:
            self.outlet.error(
                ProtocolError("rate_limited", f"more than {limit}; slow down or be closed"),
                "rate_limit_error",
            )
        self._is_over_rate = n_left < 0

    async def _send_loop(self) -> None:
        bytes_sent = self._gateway.metrics.bytes_sent
        n_audio, n_events = bytes_sent.labels("audio"), bytes_sent.labels("events")
        while True:
            outgoing = await self.queue.get()
            self._send_began_s = self._clock()
            await self._send(outgoing.message)
            self._send_began_s = None
            (n_audio if outgoing.is_audio else n_events).inc(len(outgoing.message))
            self.queue.sent(outgoing)

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
        self._handler.on_paused(is_paused)

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
        patience_s = limits.hard_blocked_s if self.queue.is_over_hard_mark else limits.blocked_s
        if self._send_began_s is not None and now_s - self._send_began_s > patience_s:
            reason = f"client took nothing for {patience_s:g} s"
            raise SessionEndError(CLOSE_TRY_AGAIN, reason)
        if self._must_stop_now or (self.is_stopping and not self._handler.has_work):
            raise SessionEndError(CLOSE_GOING_AWAY, "server is stopping")
        if not self._has_spoken and now_s - self._opened_s > self._config.first_message_timeout_s:
            reason = f"no message within {self._config.first_message_timeout_s:g} s"
            raise SessionEndError(CLOSE_POLICY, reason)
        if now_s - self._opened_s > self._lasts_s:
            message = f"the session is over: it lasts {self._lasts_s:g} s at most"
            self.outlet.error(ProtocolError("session_expired", message))
            raise SessionEndError(CLOSE_GOING_AWAY, f"session expired after {self._lasts_s:g} s")
        if self._may_be_silent:
            return
        if self._handler.is_waiting and now_s - self._active_s > self._config.idle_timeout_s:
            raise SessionEndError(CLOSE_NORMAL, f"idle for {self._config.idle_timeout_s:g} s")

    async def _close(self, end: SessionEndError) -> None:
        if end.code is None:
            return
        self._gateway.metrics.closes.labels(str(end.code)).inc()
        logger.info("%s: closed with %d, %s", self._name, end.code, end.reason)
        try:
            if end.code != CLOSE_TRY_AGAIN:
                await self._send_rest()
            # It does not wait for room, and begins the end of the connection below: without it
            # a client that reads nothing would be held for ever.
            await self._socket.close(end.code, end.reason)
        except (SessionEndError, WebSocketDisconnect, RuntimeError):
            logger.debug("%s: the client had left", self._name)

    async def _send_rest(self) -> None:
        """The events that still wait, if the client takes them soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                for message in self.queue.drain_events():
                    await self._send(message)


class _Identified(Protocol):
    @property
    def event_id(self) -> str | None: ...


Event = TypeVar("Event", bound=_Identified)
Fault = TypeVar("Fault", bound=BaseException)


def obey(
    message: str,
    parse: Callable[[str], Event],
    perform: Callable[[Event], None],
    outlet: Outlet,
) -> None:
    """Read a text message and do what it says; a fault of the client's becomes an error event."""
    event: Event | None = None
    try:
        event = parse(message)
        perform(event)
    except ProtocolError as fault:
        if event is not None:
            fault.event_id = event.event_id
        outlet.error(fault)


def first_of(group: BaseExceptionGroup[Fault]) -> Fault:
    """The first exception in a group of groups."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
