"""The handshake of a socket: which lane it gets, or why none. Refusals come before the upgrade.

Who may come in was settled before, by `realtime.access.guard`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from starlette.responses import Response
from starlette.websockets import WebSocket

from realtime.access.refusal import refusal
from realtime.errors import printable
from realtime.gateway import Gateway

MAX_OFFERS_SHOWN: Final = 4

Lane = Callable[[], Awaitable[None]]
"""Serves the accepted socket to its close."""


async def serve_socket(
    socket: WebSocket, gateway: Gateway, lanes: Mapping[str | None, Lane]
) -> None:
    """Refuse a client in words, or accept it and serve it to its close.

    Args:
        socket: not accepted yet.
        gateway: what sessions share.
        lanes: by subprotocol; the one under None serves clients that offer none.
    """
    offers = [one for one in socket.scope.get("subprotocols", []) if one]
    chosen = next((one for one in offers if one in lanes), None)
    refused = _refused(offers, chosen, lanes, gateway)
    if refused is None and not gateway.count.enter():
        refused = "server_full", _unavailable("server_full", "no room", gateway)
    if refused is not None:
        reason, response = refused
        gateway.metrics.refusals.labels(reason).inc()
        await socket.send_denial_response(response)
        return
    try:
        # Only what was offered may be selected: browsers end the connection otherwise.
        await socket.accept(subprotocol=chosen)
        await lanes[chosen]()
    finally:
        gateway.count.leave()


def _refused(
    offers: Sequence[str],
    chosen: str | None,
    lanes: Mapping[str | None, Lane],
    gateway: Gateway,
) -> tuple[str, Response] | None:
    if chosen not in lanes or (offers and chosen is None):
        return "unknown_subprotocol", _unknown_subprotocol(offers, lanes)
    if gateway.is_stopping:
        return "server_stopping", _unavailable("server_stopping", "the server is stopping", gateway)
    if not gateway.is_alive:
        return "engine_stopped", _unavailable("engine_stopped", "the engine has stopped", gateway)
    return None


def _unknown_subprotocol(offers: Sequence[str], lanes: Mapping[str | None, Lane]) -> Response:
    shown = ", ".join(printable(one) for one in offers[:MAX_OFFERS_SHOWN]) or "none"
    spoken = " or ".join("none" if one is None else one for one in lanes)
    message = f"subprotocol {shown} is not spoken here; offer {spoken}"
    return refusal(400, "unknown_subprotocol", message)


def _unavailable(code: str, message: str, gateway: Gateway) -> Response:
    headers = {"Retry-After": str(gateway.config.retry_after_s)}
    return refusal(503, code, message, headers=headers)
