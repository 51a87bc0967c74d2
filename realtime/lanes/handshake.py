"""The handshake of `parley.v1` sockets. Refusals come before the upgrade."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from realtime.errors import printable
from realtime.gateway import Gateway
from realtime.protocol import SUBPROTOCOL

MAX_OFFERS_SHOWN: Final = 4


async def serve_socket(
    socket: WebSocket, gateway: Gateway, serve: Callable[[], Awaitable[None]]
) -> None:
    """Refuse a client in words, or accept it and serve it to its close."""
    refusal = _refusal(socket, gateway)
    if refusal is not None:
        reason, response = refusal
        gateway.metrics.refusals.labels(reason).inc()
        await socket.send_denial_response(response)
        return
    if not gateway.count.enter():
        gateway.metrics.refusals.labels("server_full").inc()
        await socket.send_denial_response(_unavailable("server_full", "no room", gateway))
        return
    try:
        is_offered = bool(_offers(socket))
        await socket.accept(subprotocol=SUBPROTOCOL if is_offered else None)
        await serve()
    finally:
        gateway.count.leave()


def _refusal(socket: WebSocket, gateway: Gateway) -> tuple[str, Response] | None:
    offers = _offers(socket)
    if offers and SUBPROTOCOL not in offers:
        shown = ", ".join(printable(one) for one in offers[:MAX_OFFERS_SHOWN])
        message = f"subprotocol {shown} is not spoken here; offer {SUBPROTOCOL} or none"
        return "unknown_subprotocol", _error(400, "unknown_subprotocol", message)
    if gateway.is_stopping:
        return "server_stopping", _unavailable("server_stopping", "the server is stopping", gateway)
    if not gateway.is_alive:
        return "engine_stopped", _unavailable("engine_stopped", "the engine has stopped", gateway)
    return None


def _offers(socket: WebSocket) -> list[str]:
    return [one for one in socket.scope.get("subprotocols", []) if one]


def _unavailable(code: str, message: str, gateway: Gateway) -> Response:
    response = _error(503, code, message)
    response.headers["Retry-After"] = str(gateway.config.retry_after_s)
    return response


def _error(status: int, code: str, message: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    detail = {"type": kind, "code": code, "message": message, "param": None}
    return JSONResponse({"error": detail}, status_code=status)
