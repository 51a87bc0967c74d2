"""What can go wrong with the stages of an agent. No I/O."""

from __future__ import annotations

from realtime.errors import GatewayError


class AgentSetupError(GatewayError):
    """A stage cannot be had; the message says what to install or to set. Raised at the start."""


class StageError(GatewayError):
    """One transcription or reply cannot go on. Ends that one alone.

    Args:
        code: stable name for clients.
        message: what happened; may be shown to the client.
        retry_after_s: set when trying again later may help.
    """

    def __init__(self, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
