"""A refusal in words, in the error form of the OpenAI API; for sockets, before the upgrade."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response


def refusal(
    status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer that says no.

    Args:
        status: of HTTP.
        code: stable name for programs.
        message: what is wrong and what to do.
        headers: `Retry-After` and the like.
    """
    kind = "invalid_request_error" if status < 500 else "server_error"
    detail = {"type": "rate_limit_error" if status == 429 else kind, "code": code}
    body = {"error": {**detail, "message": message, "param": None}}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))
