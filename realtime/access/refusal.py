"""A refusal in words, in the error form of the OpenAI API; for sockets, before the upgrade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response


def error_detail(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """The value of `error`, in a body or in an event."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    kind = "rate_limit_error" if status == 429 else kind
    return {"type": kind, "code": code, "message": message, "param": param}


def refusal(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer that says no.

    Args:
        status: of HTTP.
        code: stable name for programs.
        message: what is wrong and what to do.
        param: the field at fault, if there is one.
        headers: `Retry-After` and the like.
    """
    body = {"error": error_detail(status, code, message, param)}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))
