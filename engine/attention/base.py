"""What the runner asks of an attention backend. Engine thread.

A backend owns the KV pool and the page table of every sequence on the device. A step is planned
once, outside the model (index tensors from static tables, nothing read back); the planned object is
what the model calls in every layer. FlashInfer's plan and run fit this cut, and so do graphs: a
plan writes into buffers, a run reads them.

A *sequence* here is a row of the page table: `slot` for a stream's own rows, `n_slots + slot` for
its guidance companion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from models.base import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some consecutive prompt rows of one sequence: `n_rows`, after `n_before` that have been run.

    The piece's rows lie at `first_row` onwards in the batch.
    """

    sequence: int
    first_row: int
    n_rows: int
    n_before: int


class AttentionBackend(Protocol):
    """KV pool and page tables, and the two kinds of step."""

    def bind(self, sequence: int, pages: Sequence[int]) -> None:
        """Let a sequence use these pages, in order of rows."""
        ...

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero pages whose content may not be finite: a masked row still spreads a NaN."""
        ...

    def plan_decode(self, sequences: Tensor, n_before: Tensor, longest: int) -> Attention:
        """Plan one new row for each of `sequences` (N,), which hold `n_before` (N,) rows.

        `longest` is the host's value of the largest `n_before`.
        """
        ...

    def plan_prefill(self, pieces: Sequence[Piece]) -> Attention:
        """Plan prompt pieces that lie one after another in the batch."""
        ...
