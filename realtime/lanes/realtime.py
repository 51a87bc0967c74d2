"""`WS /v1/realtime` in the form `parley.v1`: JSON events as text, audio as binary frames.

The handshake, and the translation between the wire and the session. Refusals come before the
upgrade.
"""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.websockets import WebSocket

from realtime.conversation.conversing import Conversing
from realtime.conversation.protocol import (
    CONVERSATION_CLIENT_EVENTS,
    ConversationClientEvent,
)
from realtime.conversation.session import ConversationSession
from realtime.errors import ProtocolError
from realtime.frames import parse_audio_frame
from realtime.gateway import Gateway
from realtime.lanes.handshake import serve_socket
from realtime.protocol import SUBPROTOCOL, parse_event
from realtime.socket_link import obey


async def serve_conversation(socket: WebSocket, gateway: Gateway, conversing: Conversing) -> None:
    """Serve one client from its handshake to its close."""

    def parley() -> Awaitable[None]:
        return ParleyLane(socket, gateway, conversing).run()

    await serve_socket(socket, gateway, {SUBPROTOCOL: parley, None: parley})


class ParleyLane:
    """One conversation in the form `parley.v1`.

    Args:
        socket: accepted.
        gateway: what sessions share.
        conversing: who answers and what hears.
    """

    def __init__(self, socket: WebSocket, gateway: Gateway, conversing: Conversing) -> None:
        self._session = ConversationSession(socket, gateway, conversing, self)
        self._outlet = self._session.link.outlet

    async def run(self) -> None:
        """Serve the socket until either side ends it."""
        await self._session.run()

    def on_text(self, message: str) -> None:
        """An event came."""
        obey(message, _parse, self._session.put, self._outlet)

    def on_bytes(self, message: bytes) -> None:
        """A frame came."""
        try:
            frame = parse_audio_frame(message)
            self._session.put_audio(frame.codec, frame.payload)
        except ProtocolError as fault:
            self._outlet.error(fault)

    def on_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        self._session.on_paused(is_paused)

    @property
    def has_work(self) -> bool:
        """Whether an answer is being made."""
        return self._session.has_work

    @property
    def is_waiting(self) -> bool:
        """Whether nobody speaks and nothing is being made."""
        return self._session.is_waiting


def _parse(message: str) -> ConversationClientEvent:
    return parse_event(message, CONVERSATION_CLIENT_EVENTS)
