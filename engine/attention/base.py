"""What the runner asks of an attention backend. Engine thread.

A backend owns the KV pool and the page table of every sequence. A step is planned once, outside the
model, from host arrays: the host knows pages and lengths, so nothing is read back. The planned
object is what the model calls in every layer. FlashInfer's plan and run fit this cut, and so do
graphs: a plan writes into buffers, a run reads them.

A *sequence* here is a row of the page table: `slot` for a stream's own rows, `n_slots + slot` for
its guidance companion. `PADDING` stands for no sequence: a row that only fills a batch up.

What may be captured. `plan_static` is for steps that are captured once and replayed (a CUDA graph,
or `torch.compile` with static shapes); its promises:

- The planned object of a `key` is made once and is the same ever after. Every tensor that its call
  reads lies in a buffer of fixed address and shape; planning again with the same key writes into
  them. So: capture the *call* of the planned object, never `plan_static`; plan before each replay,
  on the stream that replays.
- Keys that will come are known before the first stream: one for each batch size and each of
  `static_widths`. To warm a key, plan that many padding rows with `n_before` of the width minus 1.
- Plans of different keys share the workspace: run a step before the next is planned on another
  stream. A plan may wait until the device has taken the buffers of the plan before it with the
  same key; it never waits for what the device computes.
- Prefill is captured by `static_prompt_rows`, where a backend has any: `plan_static_prefill` fills
  a pass up to one of these with padding, however many pieces it has and however long they are. A
  pass of more pieces than its buffers hold is planned as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from models.base import Attention

Indices = npt.NDArray[np.int64]

PADDING: Final = -1
"""A row of no sequence: it reads and writes memory that no stream ever sees; results are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some consecutive prompt rows of one sequence: `n_rows`, after `n_before` that have been run.

    The piece's rows lie at `first_row` onwards in the batch.
    """

    sequence: int
    first_row: int
    n_rows: int
    n_before: int


class StaticAttention(Attention, Protocol):
    """A planned step whose shapes and buffers depend on `key` alone."""

    @property
    def key(self) -> tuple[int, int]:
        """Rows of the batch, and the width: KV rows that each may reach back over."""
        ...


class AttentionBackend(Protocol):
    """KV pool and page tables, and the kinds of step."""

    @property
    def static_widths(self) -> tuple[int, ...]:
        """Widths in KV rows that `plan_static` rounds up to, ascending; the last holds any step."""
        ...

    def static_prompt_rows(self, n_most: int) -> tuple[int, ...]:
        """Rows of prompt passes that can be captured, ascending, for passes of up to `n_most`."""
        ...

    def bind(self, sequence: int, pages: Sequence[int]) -> None:
        """Let a sequence use these pages, in order of rows."""
        ...

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero pages whose content may not be finite: a masked row still spreads a NaN."""
        ...

    def plan_decode(self, sequences: Indices, n_before: Indices) -> Attention:
        """Plan one new row for each of `sequences` (N,), which hold `n_before` (N,) rows.

        Both are host arrays; entries of `sequences` may be `PADDING`. The object serves this step.
        """
        ...

    def plan_static(self, sequences: Indices, n_before: Indices) -> StaticAttention:
        """Plan the same in fixed buffers; N is the batch bucket (see the module docstring)."""
        ...

    def plan_prefill(self, pieces: Sequence[Piece]) -> Attention:
        """Plan prompt pieces that lie one after another in the batch.

        Rows of the batch after those of the last piece are padding.
        """
        ...

    def plan_static_prefill(self, pieces: Sequence[Piece], n_rows: int) -> StaticAttention | None:
        """Plan the same in the fixed buffers of `n_rows`, one of `static_prompt_rows`.

        None: there are more pieces than these hold.
        """
        ...
