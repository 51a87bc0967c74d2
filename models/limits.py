"""How long a model may go on: by its text, by the request, by its positions. No torch."""

from __future__ import annotations

import math
from typing import Final

from models.spec import ModelSpec, PlanRequest

LEAST_S: Final = 5.0
"""Speech of the shortest text."""
S_PER_TEXT_ID: Final = 1.0
"""Most speech of a token of text. A model that never stops is cut there."""


def least_frames(spec: ModelSpec) -> int:
    """Frames that every prompt must leave room for."""
    return math.ceil(LEAST_S * spec.frame.frame_rate_hz)


def frame_limit(request: PlanRequest, spec: ModelSpec, n_text_ids: int | None) -> int:
    """Most frames of a stream.

    Args:
        request: may ask for less.
        spec: of the model.
        n_text_ids: tokens of the text; None: more will come.
    """
    seconds = math.inf if n_text_ids is None else LEAST_S + S_PER_TEXT_ID * n_text_ids
    if request.max_seconds is not None:
        seconds = min(seconds, request.max_seconds)
    if seconds == math.inf:
        return spec.backbone.max_positions
    return max(1, math.floor(seconds * spec.frame.frame_rate_hz))
