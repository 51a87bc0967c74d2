"""Where a call's positions lie in their streams. Rows of a batch may be at different times."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of tokens or frames, one after another; all `(B,)` int64.

    Args:
        start: time of the call's first, at the border of a chunk.
        begin: time of the stream's first; what lies before it is silent.
        end: time behind the stream's last, or more where that is not known yet.
    """

    start: Tensor
    begin: Tensor
    end: Tensor

    def finer(self, factor: int) -> Place:
        """The same on a grid of `factor` positions for each one here."""
        return Place(start=self.start * factor, begin=self.begin * factor, end=self.end * factor)

    def times(self, low: int, high: int) -> Tensor:
        """Times `(B, high - low)` from `low` to `high`, seen from the call's first position."""
        return self.start.unsqueeze(1) + torch.arange(low, high, device=self.start.device)

    def holds(self, time: Tensor) -> Tensor:
        """Whether times `(B, n)` lie within their stream, bool of the same shape."""
        return (time >= self.begin.unsqueeze(1)) & (time < self.end.unsqueeze(1))


def whole(n_valid: Tensor) -> Place:
    """Of whole streams of so many positions `(B,)`."""
    zero = torch.zeros_like(n_valid)
    return Place(start=zero, begin=zero, end=n_valid)
