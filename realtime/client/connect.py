"""How the client finds and opens the speech socket, and what it says when it cannot."""

from __future__ import annotations

import json
import ssl
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response
from websockets.typing import Subprotocol

from realtime.client.spoken import ConnectError, ConnectionLostError
from realtime.protocol import CLOSE_NORMAL, REALTIME_PATH, SPEECH_PATH, SUBPROTOCOL

DEFAULT_URL: Final = "ws://127.0.0.1:8765"
REFUSALS: Final = frozenset({401, 403, 429, 503})
"""Answers of a server that is there and does not let this client in."""


def speech_url(url: str) -> str:
    """The WebSocket URL of the speech lane; takes `host:port`, `http://` and `ws://` forms.

    Raises:
        ConnectError: not such a URL.
    """
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        is_good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConnectError(f"{url!r} is no server address; give one like {DEFAULT_URL}")
    path = parts.path if parts.path.strip("/") else SPEECH_PATH
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, parts.query, ""))


async def open_socket(url: str, timeout_s: float, api_key: str | None = None) -> ClientConnection:
    """Open the socket at `url` (of `speech_url`). Raises: `ConnectError`."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        socket = await connect(
            url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers=headers,
            open_timeout=timeout_s,
            compression=None,
        )
    except InvalidStatus as error:
        raise _refused(url, error.response, has_key=api_key is not None) from error
    except TimeoutError as error:
        raise ConnectError(f"{url} did not answer within {timeout_s:g} s") from error
    except ssl.SSLCertVerificationError as error:
        words = "name who vouches for it with SSL_CERT_FILE=authority.pem"
        raise ConnectError(
            f"the certificate of {url} is not trusted ({error.verify_message}); {words}"
        ) from error
    except ssl.SSLError as error:
        raise ConnectError(f"{url} does not speak TLS; try ws:// instead of wss://") from error
    except OSError as error:
        raise ConnectError(f"no server answers at {url}; start one with: parley serve") from error
    except InvalidHandshake as error:
        raise ConnectError(f"{url} is no Parley speech socket: {error}") from error
    if socket.subprotocol != SUBPROTOCOL:
        await socket.close()
        raise ConnectError(f"{url} does not speak {SUBPROTOCOL}")
    return socket


def _refused(url: str, response: Response, *, has_key: bool) -> ConnectError:
    """What the server said instead of opening the socket."""
    status = response.status_code
    if status == 401:
        words = "does not accept this API key" if has_key else "wants an API key"
        return ConnectError(f"{url} {words}; give it with PARLEY_API_KEY or --api-key", status)
    try:
        told: Any = json.loads(response.body)
        return ConnectError(f"{url} refuses: {told['error']['message']}", status)
    except (ValueError, KeyError, TypeError):
        words = f"answers HTTP {status}, not a Parley speech socket"
        if status == 403 and urlsplit(url).path == REALTIME_PATH:  # a socket without a route
            words = "leads to no conversation; start the server without --no-talk"
        return ConnectError(f"{url} {words}", status)


def lost_error(closed: ConnectionClosed) -> ConnectionLostError:
    """Why the socket closed, in one line."""
    if closed.rcvd is None:
        return ConnectionLostError("the connection broke off")
    if closed.rcvd.code == CLOSE_NORMAL and not closed.rcvd.reason:
        return ConnectionLostError("the connection was closed")
    return ConnectionLostError(
        f"the server closed the connection: {closed.rcvd.reason or 'no reason given'}"
        f" ({closed.rcvd.code})"
    )
