"""An open microphone: a frame every 20 ms on a clock, of speech or of silence. Event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from loadtest.traffic.recordings import FRAME_SAMPLES, RATE_HZ, Recording
from realtime.client.spoken import ClientError
from realtime.client.talk import TalkClient

FRAME_S = FRAME_SAMPLES / RATE_HZ


class Microphone:
    """What one caller's microphone sends.

    Args:
        client: of a connected conversation.
        silence: a frame of it.
        note_lag: told by how much each frame was late, in s.
    """

    def __init__(
        self, client: TalkClient, silence: bytes, note_lag: Callable[[float], None]
    ) -> None:
        self._client = client
        self._silence = silence
        self._note_lag = note_lag
        self._waiting: deque[bytes] = deque()
        self._begun: asyncio.Future[float] | None = None
        self._said = asyncio.Event()
        self._fault: ClientError | None = None

    async def say(self, recording: Recording) -> float:
        """Say it, to its end. Gives when its first sample was taken, on the client's clock.

        Raises:
            ClientError: the connection is lost.
        """
        self._waiting.extend(recording.frames)
        self._begun = asyncio.get_running_loop().create_future()
        self._said.clear()
        if self._fault is not None:
            raise self._fault
        await self._said.wait()
        if self._fault is not None:
            raise self._fault
        return self._begun.result()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Send meanwhile."""
        task = asyncio.create_task(self._send(), name="microphone")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _send(self) -> None:
        now_s = self._client.now_s
        # A microphone gives a frame when its last sample has been taken.
        due_s = now_s() + FRAME_S
        try:
            while True:
                await asyncio.sleep(max(0.0, due_s - now_s()))
                self._note_lag(max(0.0, now_s() - due_s))
                await self._client.send_payload(self._next_frame(due_s), FRAME_SAMPLES)
                due_s += FRAME_S
        except ClientError as error:
            self._fault = error
            self._said.set()

    def _next_frame(self, due_s: float) -> bytes:
        if not self._waiting:
            return self._silence
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(due_s - FRAME_S)
        frame = self._waiting.popleft()
        if not self._waiting:
            self._said.set()
        return frame
