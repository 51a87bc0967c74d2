"""What a client has sent and nobody has looked at yet, in order and bounded. Event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from realtime.conversation.input_audio import Piece
from realtime.conversation.protocol import ConversationClientEvent
from realtime.errors import ProtocolError
from realtime.protocol import CLOSE_POLICY
from realtime.socket_link import SessionEndError

MAX_EVENTS: Final = 2000
MAX_AUDIO_BYTES: Final = 6_291_456
"""As much as one message can hold as base64: two minutes of PCM16 at 24 kHz."""
JOINED_BYTES: Final = 8192
"""Samples that wait are joined up to so much: what they cost does not depend on how they came."""
MAX_EVENT_BYTES: Final = 16_777_216
"""Of messages other than audio: two of the largest."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An event that waits, and how large its message was."""

    event: ConversationClientEvent
    n_bytes: int


class Incoming:
    """Events and audio of one session in one line, so that a commit follows its audio."""

    def __init__(self) -> None:
        self._waiting: deque[Piece | _Event] = deque()
        self._n_audio_bytes = 0
        self._n_event_bytes = 0
        self._arrived = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether everything has been taken."""
        return not self._waiting

    def put(self, event: ConversationClientEvent, n_bytes: int) -> None:
        """Add an event whose message had so many bytes.

        Raises:
            ProtocolError: too much waits; it is not taken then.
            SessionEndError: too many wait.
        """
        if self._n_event_bytes + n_bytes > MAX_EVENT_BYTES:
            message = f"{self._n_event_bytes} bytes of events wait already; send them more slowly"
            raise ProtocolError("too_many_events", message)
        if len(self._waiting) >= MAX_EVENTS:
            raise SessionEndError(CLOSE_POLICY, f"more than {MAX_EVENTS} messages wait")
        self._waiting.append(_Event(event, n_bytes))
        self._n_event_bytes += n_bytes
        self._arrived.set()

    def put_audio(self, piece: Piece) -> None:
        """Add audio.

        Raises:
            ProtocolError: too much waits; it is not taken then.
            SessionEndError: too many messages wait.
        """
        if self._n_audio_bytes + len(piece.payload) > MAX_AUDIO_BYTES:
            message = f"{MAX_AUDIO_BYTES} bytes of audio wait already; send in real time"
            raise ProtocolError("input_audio_buffer_full", message)
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Piece) and _can_join(last, piece):
            self._waiting[-1] = replace(last, payload=last.payload + piece.payload)
        elif len(self._waiting) >= MAX_EVENTS:
            raise SessionEndError(CLOSE_POLICY, f"more than {MAX_EVENTS} messages wait")
        else:
            self._waiting.append(piece)
        self._n_audio_bytes += len(piece.payload)
        self._arrived.set()

    async def next(self) -> list[Piece] | ConversationClientEvent:
        """The next event, or all the audio up to it."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        first = self._waiting.popleft()
        if isinstance(first, _Event):
            self._n_event_bytes -= first.n_bytes
            return first.event
        pieces = [first]
        while self._waiting and isinstance(piece := self._waiting[0], Piece):
            pieces.append(piece)
            self._waiting.popleft()
        self._n_audio_bytes -= sum(len(piece.payload) for piece in pieces)
        return pieces


def _can_join(first: Piece, second: Piece) -> bool:
    """Whether two pieces are as good as one; a client may send very small ones."""
    is_same = (first.codec, first.rate_hz) == (second.codec, second.rate_hz)
    return is_same and first.codec != "opus" and len(first.payload) < JOINED_BYTES
