"""Columns of one id space: a row's summed embedding, and one head with a shift for each column.

The S ids of a row come from one table, whose ids are disjoint by column, and so do the logits of
all columns: from the same hidden state, drawn at once. OpusLM and Bagpiper are made so.

Source: the multi-stream language models of ESPnet-SpeechLM (Tian et al. 2025).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.layers.linear import linear_of

Ranges = Sequence[tuple[int, int]]
"""Half-open ranges of ids, one after another."""


class ColumnTable(nn.Module):
    """The sum over columns of the rows of one table.

    Args:
        weight: `(V, H)`.
        is_zero_blank: id 0 adds nothing in any column but the first (Bagpiper), whatever its row
            holds. False: the literal sum (OpusLM). The first column's row 0 always counts.
    """

    def __init__(self, weight: Tensor, *, is_zero_blank: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.is_zero_blank = is_zero_blank

    def forward(self, ids: Tensor) -> Tensor:
        """Rows `ids` (N, S) to `(N, H)`."""
        shares = None
        if self.is_zero_blank:
            shares = (ids != 0).to(self.weight.dtype)
            shares[:, 0] = 1.0
        return nn.functional.embedding_bag(ids, self.weight, mode="sum", per_sample_weights=shares)


class ColumnHead(nn.Module):
    """Logits of S columns by one head: `W[ids_i] @ (h + shift_i)` for column i.

    Only the rows of W that a column may need are multiplied. `W @ (h + shift)` is `W @ h` plus
    what does not depend on `h`, so a shift is a bias, made once; and all columns that lie behind
    one another in the id space share a matrix product.

    Args:
        weight: `(V, H)`, W. The rows in use are kept as they are, without a copy.
        shifts: `(S, H)`; zeros for a column without one.
        ranges: the ids of each column, in the order of its logits.
    """

    def __init__(self, weight: Tensor, shifts: Tensor, ranges: Sequence[Ranges]) -> None:
        super().__init__()
        spans = [span for column in ranges for span in column]
        biases = [
            weight[low:high] @ shift
            for column, shift in zip(ranges, shifts, strict=True)
            for low, high in column
        ]
        runs = _joined(spans)
        by_run = torch.split(torch.cat(biases), [high - low for low, high in runs])
        self.products = nn.ModuleList(
            linear_of(weight[low:high], bias)
            for (low, high), bias in zip(runs, by_run, strict=True)
        )
        self.sizes = [sum(high - low for low, high in column) for column in ranges]

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Logits of each column `(B, n_ids)` from `hidden` (B, H)."""
        logits = torch.cat([product(hidden) for product in self.products], dim=1)
        return list(torch.split(logits, self.sizes, dim=1))


def _joined(spans: Ranges) -> list[tuple[int, int]]:
    """The same ids in the same order, ranges that touch made one."""
    joined = list(spans[:1])
    for (_, before), (low, high) in itertools.pairwise(spans):
        if low == before:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined
