"""What a client has sent and nobody has looked at yet, in order and bounded. Event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from realtime.conversation_protocol import ConversationClientEvent
from realtime.errors import ProtocolError
from realtime.input_audio import Piece
from realtime.protocol import CLOSE_POLICY
from realtime.socket_link import SessionEndError

MAX_EVENTS: Final = 2000
MAX_AUDIO_BYTES: Final = 4_194_304


class Incoming:
    """Events and audio of one session in one line, so that a commit follows its audio."""

    def __init__(self) -> None:
        self._waiting: deque[Piece | ConversationClientEvent] = deque()
        self._n_bytes = 0
        self._arrived = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether everything has been taken."""
        return not self._waiting

    def put(self, event: ConversationClientEvent) -> None:
        """Add an event.

        Raises:
            SessionEndError: too many wait.
        """
        if len(self._waiting) >= MAX_EVENTS:
            raise SessionEndError(CLOSE_POLICY, f"more than {MAX_EVENTS} messages wait")
        self._waiting.append(event)
        self._arrived.set()

    def put_audio(self, piece: Piece) -> None:
        """Add audio.

        Raises:
            ProtocolError: too much waits; it is not taken then.
            SessionEndError: too many messages wait.
        """
        if self._n_bytes + len(piece.payload) > MAX_AUDIO_BYTES:
            message = f"{MAX_AUDIO_BYTES} bytes of audio wait already; send in real time"
            raise ProtocolError("input_audio_buffer_full", message)
        if len(self._waiting) >= MAX_EVENTS:
            raise SessionEndError(CLOSE_POLICY, f"more than {MAX_EVENTS} messages wait")
        self._n_bytes += len(piece.payload)
        self._waiting.append(piece)
        self._arrived.set()

    async def next(self) -> list[Piece] | ConversationClientEvent:
        """The next event, or all the audio up to it."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        first = self._waiting.popleft()
        if not isinstance(first, Piece):
            return first
        pieces = [first]
        while self._waiting and isinstance(piece := self._waiting[0], Piece):
            pieces.append(piece)
            self._waiting.popleft()
        self._n_bytes -= sum(len(piece.payload) for piece in pieces)
        return pieces
