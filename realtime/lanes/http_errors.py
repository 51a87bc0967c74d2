"""Refusals of the HTTP routes, in the form of the OpenAI API. Event loop only."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from realtime.access.refusal import error_detail, refusal
from realtime.errors import GatewayError, ProtocolError
from realtime.gateway import Gateway

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(GatewayError):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        code: stable name for programs.
        message: what was wrong and what would be accepted.
        param: the field at fault, if there is one.
        retry_after_s: set when trying again later may help.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def detail(self) -> dict[str, Any]:
        """The value of `error`, in a body or in an event."""
        return error_detail(self.status, self.code, self.message, self.param)

    def response(self) -> Response:
        """The answer."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after_s))
        if self.status == 408:
            # What is still under way of the body is not waited for.
            headers["Connection"] = "close"
        return refusal(self.status, self.code, self.message, param=self.param, headers=headers)


def refusal_of(fault: ProtocolError) -> RefusedError:
    """A client's fault as an answer."""
    return RefusedError(400, fault.code, fault.message, param=fault.param)


def check_open(gateway: Gateway) -> None:
    """Refuse while the server cannot serve anybody.

    Raises:
        RefusedError: 503.
    """
    if gateway.is_stopping:
        raise stopping(gateway)
    if not gateway.is_alive:
        raise unavailable("engine_stopped", "the engine has stopped", gateway)


def stopping(gateway: Gateway) -> RefusedError:
    """The server stops."""
    return unavailable("server_stopping", "the server is stopping", gateway)


def full(gateway: Gateway) -> RefusedError:
    """All places are taken."""
    return unavailable("server_full", "no room", gateway)


def unavailable(code: str, message: str, gateway: Gateway) -> RefusedError:
    """What may be there again soon."""
    return RefusedError(503, code, message, retry_after_s=gateway.config.retry_after_s)


def refusing(handler: Handler) -> Handler:
    """`handler`, whose refusals become answers and are counted."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        gateway: Gateway = request.app.state.gateway
        try:
            return await handler(request)
        except ProtocolError as fault:
            refused = refusal_of(fault)
        except RefusedError as fault:
            refused = fault
        except ClientDisconnect:
            # Nobody is left to be answered.
            return Response(status_code=499)
        return counted(refused, gateway)

    return answer


def counted(refused: RefusedError, gateway: Gateway) -> Response:
    """The answer, counted: what the client did wrong as its errors, the rest as refusals."""
    if refused.status < 500:
        gateway.metrics.errors.labels(refused.code).inc()
    else:
        gateway.metrics.refusals.labels(refused.code).inc()
    return refused.response()
