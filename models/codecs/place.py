"""Where a call's positions lie in their streams. Rows of a batch may be at different times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_NEVER: Final = -(1 << 40)


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


def old_times(start: Tensor, first: int, last: int) -> Tensor:
    """Time of each position remembered before `start` `(B,)`: `(B, first + last)`.

    Those from 0 on, then those right before; far before all time where there is none.

    Args:
        start: of a call.
        first: positions that are remembered however long ago they were.
        last: positions before a call.
    """
    pinned = torch.arange(first, device=start.device).expand(len(start), -1)
    recent = start.unsqueeze(1) + torch.arange(-last, 0, device=start.device)
    # What is among the first and among the last counts once.
    return torch.cat(
        [
            pinned.masked_fill(pinned >= start.unsqueeze(1), _NEVER),
            recent.masked_fill(recent < first, _NEVER),
        ],
        dim=1,
    )


def rows_after(start: Tensor, n_new: int, first: int, last: int) -> Tensor:
    """Which of the rows remembered and `n_new` new ones are remembered next, `(B, first + last)`.

    Args:
        start: time of the first new one, `(B,)`.
        n_new: positions of a call.
        first: see `old_times`.
        last: see `old_times`.
    """
    time = torch.arange(first, device=start.device)
    since = time - start.unsqueeze(1)
    pinned = torch.where((since >= 0) & (since < n_new), first + last + since, time)
    recent = torch.arange(first + n_new, first + last + n_new, device=start.device)
    return torch.cat([pinned, recent.expand(len(start), -1)], dim=1)


def whole(n_valid: Tensor) -> Place:
    """Of whole streams of so many positions `(B,)`."""
    zero = torch.zeros_like(n_valid)
    return Place(start=zero, begin=zero, end=n_valid)
