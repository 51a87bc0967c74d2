"""Errors of the engine. No torch."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything that `engine` raises on purpose."""


class EngineConfigError(EngineError):
    """A setting is out of range or does not fit the model. Raised before weights load."""


class MemoryShortError(EngineError):
    """The device has too little memory for what was asked. The message says what to lower."""


class EngineStoppedError(EngineError):
    """The engine thread has ended; nothing can be asked of it."""


class GraphError(EngineError):
    """A recorded call cannot be made or replayed (`engine.graphs`)."""


class StreamError(EngineError):
    """One stream cannot go on. Ends that stream alone.

    Args:
        code: stable name, see `engine.types.StreamFailed`.
        message: for the client.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
