"""How an id is drawn: the settings that a family states and a request may override. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from models.errors import SpecError

MAX_REPETITION_WINDOW: Final = 256
"""Rows of history that the engine keeps of every stream, for penalties and second draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one column's id is drawn. `temperature` 0 takes the most likely id.

    `top_p` is a share of what `top_k` keeps, or of all ids (`is_top_p_of_all`). Repetition-aware
    sampling: an id that stands `redraw_count` times among those of the last `redraw_window` rows is
    put back, and one of all ids drawn in its place, whatever the filters keep.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    is_top_p_of_all: bool = False
    redraw_window: int = 0
    redraw_count: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        if self.temperature < 0:
            raise SpecError(f"temperature is {self.temperature}, must be 0 or more")
        if self.top_k < 0:
            raise SpecError(f"top_k is {self.top_k}, must be 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise SpecError(f"top_p is {self.top_p}, must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise SpecError(f"min_p is {self.min_p}, must be between 0 and 1")
        if self.repetition_penalty <= 0:
            raise SpecError(f"repetition_penalty is {self.repetition_penalty}, must be above 0")
        windows = {
            "repetition_window": self.repetition_window,
            "redraw_window": self.redraw_window,
        }
        for name, n_rows in windows.items():
            if not 0 <= n_rows <= MAX_REPETITION_WINDOW:
                most = MAX_REPETITION_WINDOW
                raise SpecError(f"{name} is {n_rows}, must be between 0 and {most}")
        if self.redraw_count < 1:
            raise SpecError(f"redraw_count is {self.redraw_count}, must be 1 or more")
