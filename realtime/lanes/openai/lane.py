"""`WS /v1/realtime` for clients of the OpenAI Realtime API: JSON events, audio as base64 in them.

The name of the model in the URL chooses who answers; a name that is not served takes the first.
"""

from __future__ import annotations

from functools import partial

from starlette.websockets import WebSocket

from realtime.access.caller import caller_of
from realtime.conversation.conversing import Conversing
from realtime.conversation.manners import Manners
from realtime.conversation.protocol import ConversationClientEvent
from realtime.conversation.session import ConversationSession
from realtime.errors import ProtocolError
from realtime.gateway import Gateway
from realtime.lanes.openai.client_events import OPENAI_CLIENT_EVENTS
from realtime.lanes.openai.form import OpenAiForm
from realtime.lanes.openai.opening import opening_of
from realtime.lanes.openai.translate import core_event
from realtime.protocol import parse_event
from realtime.socket_link import obey


class OpenAiLane:
    """One conversation with a client of the OpenAI Realtime API.

    Args:
        socket: accepted.
        gateway: what sessions share.
        conversing: who answers and what hears.
    """

    def __init__(self, socket: WebSocket, gateway: Gateway, conversing: Conversing) -> None:
        self._specs = conversing.specs
        manners = Manners(
            form=OpenAiForm(),
            opening=opening_of(
                socket.query_params.get("model"), caller_of(socket.scope).session, conversing
            ),
            is_client_truncating=True,
            may_be_silent=True,
        )
        self._session = ConversationSession(socket, gateway, conversing, self, manners)
        self._outlet = self._session.link.outlet

    async def run(self) -> None:
        """Serve the socket until either side ends it."""
        await self._session.run()

    def on_text(self, message: str) -> None:
        """An event came."""
        put = partial(self._session.put, n_bytes=len(message))
        obey(message, self._parse, put, self._outlet)

    def on_bytes(self, message: bytes) -> None:
        """A frame came: these clients have none."""
        fault = f"a binary message of {len(message)} bytes; events are JSON in text messages"
        self._outlet.error(ProtocolError("invalid_event", fault))

    def _parse(self, message: str) -> ConversationClientEvent:
        event = parse_event(message, OPENAI_CLIENT_EVENTS)
        try:
            return core_event(event, self._specs)
        except ProtocolError as fault:
            fault.event_id = event.event_id
            raise
