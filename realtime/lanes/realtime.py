"""`WS /v1/realtime`: which lane a client takes, and the lane `parley.v1` itself.

In `parley.v1` events are JSON as text, audio is binary frames. Clients that offer `realtime`, or no
subprotocol at all, are those of the OpenAI Realtime API (`realtime.lanes.openai`).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from starlette.websockets import WebSocket

from realtime.access.caller import caller_of
from realtime.conversation.conversing import Conversing
from realtime.conversation.manners import Manners
from realtime.conversation.protocol import (
    CONVERSATION_CLIENT_EVENTS,
    ConversationClientEvent,
)
from realtime.conversation.session import ConversationSession
from realtime.errors import ProtocolError
from realtime.frames import parse_audio_frame
from realtime.gateway import Gateway
from realtime.lanes.handshake import serve_socket
from realtime.lanes.openai.lane import OpenAiLane
from realtime.lanes.openai.opening import secret_updates
from realtime.protocol import SUBPROTOCOL, parse_event
from realtime.socket_link import obey

OPENAI_SUBPROTOCOL: Final = "realtime"


async def serve_conversation(socket: WebSocket, gateway: Gateway, conversing: Conversing) -> None:
    """Serve one client from its handshake to its close."""

    def parley() -> Awaitable[None]:
        return ParleyLane(socket, gateway, conversing).run()

    def openai() -> Awaitable[None]:
        return OpenAiLane(socket, gateway, conversing).run()

    lanes = {SUBPROTOCOL: parley, OPENAI_SUBPROTOCOL: openai, None: openai}
    await serve_socket(socket, gateway, lanes)


class ParleyLane:
    """One conversation in the form `parley.v1`.

    Args:
        socket: accepted.
        gateway: what sessions share.
        conversing: who answers and what hears.
    """

    def __init__(self, socket: WebSocket, gateway: Gateway, conversing: Conversing) -> None:
        opening = secret_updates(caller_of(socket.scope).session, conversing.specs)
        manners = Manners(opening=opening)
        self._session = ConversationSession(socket, gateway, conversing, self, manners)
        self._outlet = self._session.link.outlet

    async def run(self) -> None:
        """Serve the socket until either side ends it."""
        await self._session.run()

    def on_text(self, message: str) -> None:
        """An event came."""
        obey(message, _parse, partial(self._session.put, n_bytes=len(message)), self._outlet)

    def on_bytes(self, message: bytes) -> None:
        """A frame came."""
        try:
            frame = parse_audio_frame(message)
            self._session.put_audio(frame.codec, frame.payload)
        except ProtocolError as fault:
            self._outlet.error(fault)


def _parse(message: str) -> ConversationClientEvent:
    return parse_event(message, CONVERSATION_CLIENT_EVENTS)
