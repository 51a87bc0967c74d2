"""Messages of a client's socket, which a test may leave unread for a while, or lose at once."""

from __future__ import annotations

import asyncio
import socket as sockets
from typing import Final

from websockets.asyncio.client import ClientConnection

SLOW_BUFFER_BYTES: Final = 8192
"""Receive buffer of a client that does not read. The system's own would hold minutes of speech."""


class Inlet:
    """The reading end of `socket`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._is_open = asyncio.Event()
        self._is_open.set()

    async def next(self) -> str | bytes:
        """The next message. Raises: `ConnectionClosed`."""
        await self._is_open.wait()
        return await self._socket.recv()

    def pause(self) -> None:
        """Leave all unread from the next message on, and let the system hold little of it."""
        self._is_open.clear()
        raw = self._socket.transport.get_extra_info("socket")
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, SLOW_BUFFER_BYTES)

    def resume(self) -> None:
        """Read on."""
        self._is_open.set()

    def drop(self) -> None:
        """Break the connection off without a word, as a client does that loses its network."""
        self._is_open.set()
        self._socket.transport.abort()
