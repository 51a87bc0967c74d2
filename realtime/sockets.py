"""uvicorn's protocols, with what a voice server needs of hostile and slow clients. Event loop only.

Of a WebSocket: less is buffered before a send waits; what a client sends in one burst is read in
slices, so that other sockets get their turn between them; frames that no session ever sees (pings,
pongs, fragments) have a rate as well; a close frame goes into the buffer even when that is full
(the ASGI send would wait for the client that does not read); and whoever does not take part in the
close is cut off soon after it. Of HTTP: a request that does not come is not waited for, less is
buffered too, and an answer can be broken off, so that the client sees that it is not complete.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from asyncio.transports import BaseTransport
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHeader
from websockets.headers import parse_subprotocol

from realtime.limits import TokenBucket
from realtime.protocol import CLOSE_INTERNAL, CLOSE_NO_TEXT, CLOSE_POLICY

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame
    from websockets.http11 import Request

HIGH_BYTES: Final = 32_768
LOW_BYTES: Final = 8_192
SLICE_BYTES: Final = 4_096
"""Read at a time: 700 empty frames, 5 ms of work. A burst is 250 kB, which would be 0.4 s."""
FRAMES_PER_S: Final = 500.0
FRAME_BURST: Final = 2_000
"""Pings, pongs and fragments: a message of the largest size may come in fragments of 1 kB."""
MAX_PONG_BYTES: Final = 262_144
"""A client that pings without reading is cut off once its pongs have piled up so far."""
ABORT_AFTER_S: Final = 5.0
HEAD_TIMEOUT_S: Final = 10.0
CUT_EXTENSION: Final = "parley.http.cut"
"""Of a request's ASGI scope: `cut` ends the connection without the end of the body."""


MALFORMED: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 51\r\n\r\nThe path or Sec-WebSocket-Protocol cannot be read.\n"
)


class SpeechSocketProtocol(WebSocketsSansIOProtocol):
    """Server side of one WebSocket connection."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Set the marks between which a send waits."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)
        self._unread = bytearray()
        self._is_reading_on = False
        self._abort_timer: TimerHandle | None = None
        self._bucket = TokenBucket(
            rate_per_s=FRAMES_PER_S, burst=FRAME_BURST, now_s=self.loop.time()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to cut off, or to read."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._unread.clear()
        super().connection_lost(exc)

    # How it begins.

    def handle_connect(self, event: Request) -> None:
        """The client asks for the upgrade.

        What the layer below cannot put into words is refused here: it would raise, keep the
        connection for ever, and fail once more when the server stops. And where it can, it repeats
        the offered subprotocols, of which one may be a key.
        """
        if event.path.isascii() and _are_lists(event.headers.get_all("Sec-WebSocket-Protocol")):
            super().handle_connect(event)
            return
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(MALFORMED)
        self.transport.close()

    # What comes in.

    def data_received(self, data: bytes) -> None:
        """Take a slice now, the rest in later turns of the loop."""
        if not self.handshake_initiated:
            super().data_received(data)
            return
        self._unread += data
        if not self._is_reading_on:
            self._read_slice()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; the session has room for more."""
        message = await super().receive()
        self._read_on()
        return message

    def _read_slice(self) -> None:
        self._is_reading_on = False
        if self.read_paused or self.transport.is_closing():
            return
        data = bytes(self._unread[:SLICE_BYTES])
        del self._unread[:SLICE_BYTES]
        super().data_received(data)
        self._read_on()

    def _read_on(self) -> None:
        """Go on with what has come, before more is read from the socket."""
        if self.read_paused or self._is_reading_on or self.transport.is_closing():
            return
        if self._unread:
            self._is_reading_on = True
            self.transport.pause_reading()
            self.loop.call_soon(self._read_slice)
        else:
            self.transport.resume_reading()

    def handle_ping(self) -> None:
        """Answer a ping, unless the answers are not read."""
        self._count_frame()
        if self.transport.get_write_buffer_size() > MAX_PONG_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take a pong."""
        self._count_frame()
        super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment. One without bytes is held too: only their number bounds those."""
        self._count_frame()
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a message to the session, whose own limits hold until it has closed."""
        if self.close_sent:
            self._count_frame()
        elif self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            # The layer below would log a traceback for each.
            self._fail(CLOSE_NO_TEXT, "a text message is no UTF-8")
            return
        super().send_receive_event_to_app()

    def _count_frame(self) -> None:
        if self._bucket.take(self.loop.time()) >= 0 or self.transport.is_closing():
            return
        if self.close_sent:
            self.transport.abort()
        else:
            self._fail(CLOSE_POLICY, f"more than {FRAMES_PER_S:g} frames per second")

    # How it ends.

    def handle_close(self, event: Frame) -> None:
        """The client closes."""
        super().handle_close(event)
        self._abort_later()

    def handle_parser_exception(self) -> None:
        """The client does not speak WebSocket."""
        super().handle_parser_exception()
        self._abort_later()

    def keepalive_timeout(self) -> None:
        """The client is gone, whatever still waits to be sent to it."""
        if not self.close_sent:
            self._fail(CLOSE_INTERNAL, "keepalive ping timeout")

    async def send(self, message: ASGISendEvent) -> None:
        """Send an ASGI message; a close does not wait for room."""
        is_close = message["type"] == "websocket.close"
        if is_close:
            self.writable.set()
        elif self.close_sent and message["type"] == "websocket.send":
            raise ClientDisconnected
        await super().send(message)
        if is_close:
            self._abort_later()
            self._read_on()
        elif message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal is an answer: else uvicorn logs an app that forgot the handshake.
            self.handshake_complete = True

    def _fail(self, code: int, reason: str) -> None:
        """Close from below: the session hears of it as a disconnect."""
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        """A closing transport waits for its buffer: for ever, where the client reads nothing."""
        if self._abort_timer is None:
            self._abort_timer = self.loop.call_later(ABORT_AFTER_S, self.transport.abort)


class SpeechHttpProtocol(HttpToolsProtocol):
    """Server side of one HTTP connection, until it is upgraded."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as the base
        """Begin to wait for a request, and set the marks between which a send waits."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)
        self._seen: RequestResponseCycle | None = None
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._head_timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {CUT_EXTENSION: {"cut": self._cut}}

    def handle_websocket_upgrade(self) -> None:
        """Hand over to the WebSocket."""
        self._head_timer.cancel()
        super().handle_websocket_upgrade()

    def _cut(self) -> None:
        """End the connection once what was sent is read, or soon, where nobody reads it."""
        self.transport.close()
        self.loop.call_later(ABORT_AFTER_S, self.transport.abort)

    def _look(self) -> None:
        """Cut off a client that has asked nothing between two looks, and is not being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is self._seen and (cycle is None or cycle.response_complete):
            self.transport.abort()
            return
        self._seen = cycle
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._look)


def _is_utf8(message: bytes) -> bool:
    try:
        return message.isascii() or bool(message.decode())
    except UnicodeDecodeError:
        return False


def _are_lists(headers: Iterable[str]) -> bool:
    """Whether these are lists of subprotocols."""
    try:
        for header in headers:
            parse_subprotocol(header)
    except InvalidHeader:
        return False
    return True
