"""The error that ends a response. No I/O."""

from __future__ import annotations

from engine.types import StreamFailed
from realtime.events import ErrorType


class ResponseFailedError(Exception):
    """A response cannot go on.

    Args:
        code: stable name for clients.
        message: what happened.
        retry_after_s: set when the engine has no room.
        kind: whose fault it is.
        param: the option at fault, if it is one.
    """

    def __init__(
        self,
        code: str,
        message: str,
        retry_after_s: float | None = None,
        *,
        kind: ErrorType = "server_error",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.kind = kind
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


def failure_of(outcome: StreamFailed) -> ResponseFailedError:
    """The response's failure that a stream's failure is."""
    return ResponseFailedError(outcome.code, outcome.message, outcome.retry_after_s)
