"""Bodies of requests, read within bounds of size and time. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import Request

from realtime.lanes.http_errors import RefusedError

SILENCE_S: Final = 10.0
"""Longest wait for the next piece of a body."""
LONGEST_S: Final = 300.0
"""For a whole body: 25 MiB at 0.7 Mbit/s."""


async def bounded(
    request: Request,
    max_bytes: int,
    *,
    silence_s: float = SILENCE_S,
    longest_s: float = LONGEST_S,
) -> AsyncGenerator[bytes]:
    """The pieces of a body.

    Raises:
        RefusedError: 413 when it is too large, before it is read where its length is stated; 408
            when it does not come.
        ClientDisconnect: of Starlette.
    """
    stated = request.headers.get("content-length", "0")
    _check_size(int(stated) if stated.isdigit() else 0, max_bytes)
    end_s = asyncio.get_running_loop().time() + longest_s
    n_bytes = 0
    pieces = request.stream()
    try:
        while True:
            wait_s = min(silence_s, end_s - asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(wait_s):
                    piece = await anext(pieces, None)
            except TimeoutError:
                message = f"the body did not come: {silence_s:g} s a piece, {longest_s:g} s in all"
                raise RefusedError(408, "request_timeout", message) from None
            if piece is None:
                return
            n_bytes += len(piece)
            _check_size(n_bytes, max_bytes)
            yield piece
    finally:
        await pieces.aclose()


async def read_text(request: Request, max_bytes: int, silence_s: float) -> str:
    """A JSON body as text.

    Raises:
        RefusedError: as `bounded`; 415 for another content type, 400 for bytes that are not UTF-8.
        ClientDisconnect: of Starlette.
    """
    content_type = request.headers.get("content-type", "application/json")
    main_type = content_type.partition(";")[0].strip().lower()
    if main_type != "application/json" and not main_type.endswith("+json"):
        message = f"the body must be JSON: send Content-Type: application/json, not {main_type}"
        raise RefusedError(415, "unsupported_media_type", message)
    pieces = bounded(request, max_bytes, silence_s=silence_s, longest_s=silence_s)
    body = b"".join([piece async for piece in pieces])
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} of {len(body)}"
        raise RefusedError(400, "invalid_json", message) from None


def _check_size(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        message = f"the body is larger than {max_bytes} bytes"
        raise RefusedError(413, "request_too_large", message)
