"""uvicorn's WebSocket protocol, with what a voice server needs of a slow client. Event loop only.

Three differences: less is buffered before a send waits, a close frame goes into the buffer even
when that is full (the ASGI send would wait for the client that does not read), and a client that
takes nothing is cut off in the end.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from realtime.protocol import CLOSE_TRY_AGAIN

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

HIGH_BYTES: Final = 32_768
LOW_BYTES: Final = 8_192
MAX_PONG_BYTES: Final = 262_144
"""A client that pings without reading is cut off once its pongs have piled up so far."""
ABORT_AFTER_S: Final = 5.0


class SpeechSocketProtocol(WebSocketsSansIOProtocol):
    """Server side of one WebSocket connection."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Set the marks between which a send waits."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)

    def handle_ping(self) -> None:
        """Answer a ping, unless the answers are not read."""
        if self.transport.get_write_buffer_size() > MAX_PONG_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    async def send(self, message: ASGISendEvent) -> None:
        """Send an ASGI message; a close does not wait for room."""
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if message["type"] == "websocket.close" and message.get("code") == CLOSE_TRY_AGAIN:
            asyncio.get_running_loop().call_later(ABORT_AFTER_S, self.transport.abort)
