"""Errors of the gateway. No I/O.

`ProtocolError` is what a client did wrong: it becomes an `error` event and the socket stays open.
`OpusMissingError`, `ConfigError` stop a start.
"""

from __future__ import annotations

from typing import Final

MAX_SHOWN_CHARACTERS: Final = 80


class GatewayError(Exception):
    """Base of everything that `realtime` raises on purpose."""


class ConfigError(GatewayError):
    """A setting is out of range. Raised before a socket is opened."""


class OpusMissingError(GatewayError):
    """No Opus library can be loaded; the message says what to install."""


class ServerStartError(GatewayError):
    """The server cannot listen; the message says on what and why."""


class ProtocolError(GatewayError):
    """A client message that cannot be obeyed. The session goes on.

    Args:
        code: stable name for programs, e.g. `invalid_event`.
        message: what was wrong and what would be accepted.
        param: the field at fault (dotted path), if there is one.
        event_id: the client's id of the message at fault, if it gave one.
    """

    def __init__(
        self, code: str, message: str, *, param: str | None = None, event_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id


def printable(value: object) -> str:
    """`value` as short, valid Unicode text for a message: lone surrogates are escaped."""
    text = value if isinstance(value, str) else repr(value)
    shown = text[:MAX_SHOWN_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    return shown + "..." if len(text) > MAX_SHOWN_CHARACTERS else shown
