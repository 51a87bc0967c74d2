"""What a mark is: changes to a signal's short-time spectra, made by a network of finite reach.

Columns are transforms under a periodic Hann window, centred on multiples of `n_hop` samples, with
the signal mirrored at both ends, as `torch.stft` has them. All is at the mark's own rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of each stream a call brings: some more at either side than it changes.

    Args:
        first: `(B,)` int64, the number of the first; those before 0 do not exist.
        n_all: `(B,)` int64, columns of the whole signal, or endlessly many.
        count: of the call.
        needed: `(B, 2)` int64, from which to before which of the changed ones something will be
            heard, counted from the first that is changed.
    """

    first: Tensor
    n_all: Tensor
    count: int
    needed: Tensor

    @property
    def numbers(self) -> Tensor:
        """Of each column, `(B, count)`."""
        return self.first.unsqueeze(1) + torch.arange(self.count, device=self.first.device)

    @property
    def exist(self) -> Tensor:
        """Whether a column lies within its signal, `(B, count)`."""
        numbers = self.numbers
        return (numbers >= 0) & (numbers < self.n_all.unsqueeze(1))


class Mark(nn.Module, ABC):
    """A kind of mark, with its weights.

    Args:
        name: for people.
        rate_hz: of the signals that it is made for.
        n_fft: samples of a transform.
        n_hop: samples between transforms.
        reach: columns to either side that the change of one depends on.
        level_size: floats that a stream carries from call to call, beside its signal.
    """

    def __init__(
        self, name: str, *, rate_hz: int, n_fft: int, n_hop: int, reach: int, level_size: int
    ) -> None:
        super().__init__()
        self.name = name
        self.rate_hz = rate_hz
        self.n_fft = n_fft
        self.n_hop = n_hop
        self.reach = reach
        self.level_size = level_size

    def padded(self, n_samples: Tensor) -> Tensor:
        """Length of a whole signal with the zeros that stand behind it."""
        return n_samples

    @abstractmethod
    def changes(self, spectra: Tensor, columns: Columns, level: Tensor) -> tuple[Tensor, Tensor]:
        """What the mark adds to columns, all but `reach` at either side.

        Args:
            spectra: `(B, count, n_fft / 2 + 1)` complex.
            columns: where they stand.
            level: `(B, level_size)`, carried to the first of them; zeros at a stream's start.

        Returns:
            `(B, n, n_fft / 2 + 1)` complex for the n columns that are changed, and levels
            `(B, n + 1, level_size)` carried to each of the first n + 1 columns of the call.
        """
        ...


def by_need(
    network: Callable[[Tensor, Columns], Tensor], x: Tensor, columns: Columns, reach: int
) -> Tensor:
    """What a network gives for the columns of `x` `(B, ..., count)`, all but `reach` at the sides.

    On a CPU each stream by itself, and only what will be heard: mostly a third of a call.

    Args:
        network: gives `(B, n, width)`.
        x: columns last.
        columns: where they stand.
        reach: of the network.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return network(x, columns)
    n_changed = columns.count - 2 * reach
    rows: list[Tensor | None] = []
    for row, (low, high) in enumerate(columns.needed.tolist()):
        if low >= high:
            rows.append(None)
            continue
        own = slice(row, row + 1)
        part = Columns(
            first=columns.first[own] + low,
            n_all=columns.n_all[own],
            count=high - low + 2 * reach,
            needed=columns.needed[own],
        )
        given = network(x[own, ..., low : high + 2 * reach], part)
        rows.append(nn.functional.pad(given, (0, 0, low, n_changed - high)))
    width = next((row.shape[2] for row in rows if row is not None), 1)
    nothing = x.new_zeros(1, n_changed, width)
    return torch.cat([nothing if row is None else row for row in rows])
