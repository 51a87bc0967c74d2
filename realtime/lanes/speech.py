"""`WS /v1/audio/speech/stream`: text in, speech out."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.websockets import WebSocket

from realtime.gateway import Gateway
from realtime.lanes.handshake import serve_socket
from realtime.protocol import SUBPROTOCOL
from realtime.speech.session import SpeechSession


async def serve_speech(socket: WebSocket, gateway: Gateway) -> None:
    """Serve one client from its handshake to its close."""

    def lane() -> Awaitable[None]:
        return SpeechSession(socket, gateway).run()

    await serve_socket(socket, gateway, {SUBPROTOCOL: lane, None: lane})
