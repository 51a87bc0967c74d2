"""A microphone that is always open: silence, and what is put before it, at the pace of speech."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.clients.voice import RATE_HZ, say

PIECE_S = 0.1
PIECE_BYTES = 2 * round(PIECE_S * RATE_HZ)


class Microphone:
    """Gives a client its pieces of sound."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def put(self, text: str) -> None:
        """Somebody says this now."""
        self._waiting += say(text)

    def piece(self) -> bytes:
        """The next `PIECE_S` of sound."""
        sound = bytes(self._waiting[:PIECE_BYTES])
        del self._waiting[:PIECE_BYTES]
        return sound.ljust(PIECE_BYTES, b"\0")


@asynccontextmanager
async def open_microphone(
    send: Callable[[bytes], Awaitable[object]],
) -> AsyncIterator[Microphone]:
    """A microphone whose sound goes to `send`."""
    microphone = Microphone()

    async def run() -> None:
        while True:
            await send(microphone.piece())
            await asyncio.sleep(PIECE_S)

    task = asyncio.create_task(run())
    try:
        yield microphone
    finally:
        task.cancel()
        await asyncio.wait([task])
