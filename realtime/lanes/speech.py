"""`WS /v1/audio/speech/stream`: text in, speech out."""

from __future__ import annotations

from starlette.websockets import WebSocket

from realtime.gateway import Gateway
from realtime.lanes.handshake import serve_socket
from realtime.speech.session import SpeechSession


async def serve_speech(socket: WebSocket, gateway: Gateway) -> None:
    """Serve one client from its handshake to its close."""
    await serve_socket(socket, gateway, lambda: SpeechSession(socket, gateway).run())
