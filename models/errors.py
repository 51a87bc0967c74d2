"""Errors that models raise. No torch."""

from __future__ import annotations


class ModelError(Exception):
    """Base of everything that `models` raises on purpose."""


class SpecError(ModelError):
    """A `ModelSpec` contradicts itself. Raised at construction, before weights load."""


class WeightError(ModelError):
    """Weights are missing, damaged or of another layout. The message says what to do."""


class WatermarkError(ModelError):
    """A mark cannot be put on a model. The message says which, and why."""


class PlanError(ModelError):
    """A request cannot be turned into a prompt.

    Args:
        code: stable name for clients, e.g. `unsupported_language`.
        message: what was wrong and what would be accepted.
        param: the field at fault, if there is one.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
