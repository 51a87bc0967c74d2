"""Rows that are always the same, whatever runs them: prompts, growing sequences, pages that move.

Four sequences share batches of all sizes, so that buckets are filled up with padding; they grow
over the ends of pages; one of them is put on other pages in between. What a row comes out as must
not depend on the backend, on how its step was planned, or on whether it was replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import PADDING, AttentionBackend, Indices, Piece
from engine.graphs import Graphs, Outputs, bucket_of
from models.layers.transformer import Decoder

How = Literal["plain", "static", "graph"]
"""A step planned for itself, in the buffers of its bucket, or replayed."""
PAGE_SIZE: Final = 8
N_SEQUENCES: Final = 4
MOST_ROWS: Final = 64
N_PAGES: Final = 1 + N_SEQUENCES * MOST_ROWS // PAGE_SIZE * 2
SIZES: Final = (1, 2, 4)
PROMPTS: Final = ((13, 5, 21, 1), (8, 0, 3, 0))
"""Rows of each sequence in the first prompt pass, and in the second."""
STEPS: Final[tuple[tuple[int, ...], ...]] = (
    *((0, 1, 2, 3),) * 5,
    *((2, 0),) * 4,
    *((3, 1, 0),) * 9,
    *((1,),) * 3,
    *((0, 1, 3),) * 2,
)
"""Sequences of each step."""
MOVED: Final = 0
MOVES_AT: Final = (6, 15)
"""Before which steps the pages of that sequence are taken away, and it is fed anew on others."""
Planned = Callable[[Tensor, Indices, Indices], Tensor]
"""Runs one row of each sequence: rows, sequences, and how many rows each has; hidden states."""


PromptPass = Callable[[Tensor, Tensor, Sequence[Piece]], Tensor]
"""Runs prompt pieces: rows, positions, and where the pieces lie; hidden states."""


def run_script(
    decoder: Decoder, attention: AttentionBackend, how: How, graphs: Graphs | None = None
) -> Tensor:
    """Hidden states of all rows that are run, in order: `(rows, hidden)`.

    Args:
        decoder: on the device of `attention`, in any precision.
        attention: with pages of `PAGE_SIZE`, `N_PAGES` of them, for `N_SEQUENCES`.
        how: decode steps are run.
        graphs: that record them, for `graph`.
    """
    steps: Planned = _Planned(decoder, attention, how)
    prompts: PromptPass = _plain_prompts(decoder, attention)
    if how != "plain" and attention.static_prompt_rows(MOST_ROWS):
        prompts = _StaticPrompts(decoder, attention, graphs)
    if graphs is not None:
        steps = _Replayed(decoder, attention, graphs)
    script = _Script(decoder, attention, prompts)
    parts = [script.prompts(rows) for rows in PROMPTS]
    for idx, sequences in enumerate(STEPS):
        if idx in MOVES_AT:
            parts.append(script.move(MOVED, 1 + MOVES_AT.index(idx)))
        parts.append(script.decode(sequences, steps))
    return torch.cat(parts)


class _Script:
    def __init__(
        self, decoder: Decoder, attention: AttentionBackend, run_prompts: PromptPass
    ) -> None:
        self._run_prompts = run_prompts
        self._attention = attention
        weight = next(decoder.parameters())
        self._device = weight.device
        generator = torch.Generator().manual_seed(7)
        shape = (N_SEQUENCES, MOST_ROWS, decoder.norm.weight.shape[0])
        # Rounded once: what is compared is what is made of it.
        rows = torch.randn(shape, generator=generator).to(torch.bfloat16)
        self._rows = rows.to(weight.device, weight.dtype)
        self._n_run = np.zeros(N_SEQUENCES, dtype=np.int64)
        for sequence in range(N_SEQUENCES):
            attention.bind(sequence, _pages_of(sequence, 0))

    def prompts(self, n_rows: Sequence[int]) -> Tensor:
        """Run the next `n_rows` of each sequence in one pass."""
        pieces, parts, positions, first_row = [], [], [], 0
        for sequence, n in enumerate(n_rows):
            if not n:
                continue
            n_before = int(self._n_run[sequence])
            piece = Piece(sequence=sequence, first_row=first_row, n_rows=n, n_before=n_before)
            pieces.append(piece)
            parts.append(self._rows[sequence, n_before : n_before + n])
            positions.append(torch.arange(n_before, n_before + n))
            first_row += n
            self._n_run[sequence] += n
        at = torch.cat(positions).to(self._device)
        return self._run_prompts(torch.cat(parts), at, pieces)

    def move(self, sequence: int, n_moved: int) -> Tensor:
        """Give a sequence other pages, and run there what it has run."""
        self._attention.bind(sequence, _pages_of(sequence, n_moved))
        n_rows = [0] * N_SEQUENCES
        n_rows[sequence] = int(self._n_run[sequence])
        self._n_run[sequence] = 0
        return self.prompts(n_rows)

    def decode(self, sequences: Sequence[int], run: Planned) -> Tensor:
        """Run the next row of each of `sequences`."""
        of = np.array(sequences)
        n_before = self._n_run[of]
        self._n_run[of] += 1
        return run(self._rows[torch.from_numpy(of), torch.from_numpy(n_before)], of, n_before)


def _plain_prompts(decoder: Decoder, attention: AttentionBackend) -> PromptPass:
    """Prompt passes planned for themselves."""

    def run(rows: Tensor, positions: Tensor, pieces: Sequence[Piece]) -> Tensor:
        hidden: Tensor = decoder(rows, positions, attention.plan_prefill(pieces))
        return hidden

    return run


class _Planned:
    """Steps planned for themselves, or in the buffers of their bucket; not replayed."""

    def __init__(self, decoder: Decoder, attention: AttentionBackend, how: How) -> None:
        self._decoder = decoder
        self._plan = attention.plan_decode if how == "plain" else attention.plan_static
        self._is_padded = how != "plain"

    def __call__(self, rows: Tensor, sequences: Indices, n_before: Indices) -> Tensor:
        """Run one row of each."""
        n_rows = len(rows)
        if self._is_padded:
            sequences, n_before, rows = _padded(sequences, n_before, rows)
        positions = torch.from_numpy(n_before).to(rows.device)
        out: Tensor = self._decoder(rows, positions, self._plan(sequences, n_before))
        return out[:n_rows]


class _StaticPrompts:
    """Prompt passes filled up to a size, recorded and replayed where there are `graphs`."""

    def __init__(
        self, decoder: Decoder, attention: AttentionBackend, graphs: Graphs | None
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._graphs = graphs
        self._sizes = attention.static_prompt_rows(MOST_ROWS)
        self._buffers = {size: _buffers_of(decoder, size) for size in self._sizes}
        for size in self._sizes if graphs is not None else ():
            self._record(size)

    def _record(self, size: int) -> None:
        assert self._graphs is not None, "asked of those who record"
        plan, buffers = self._attention.plan_static_prefill((), size), self._buffers[size]
        assert plan is not None, "padding alone fits"

        def call() -> Outputs:
            buffers.hidden.copy_(self._decoder(buffers.rows, buffers.positions, plan))
            return ()

        self._graphs.record(("prompt", size), call, {"plan": plan, "rows": buffers.rows})

    def __call__(self, rows: Tensor, positions: Tensor, pieces: Sequence[Piece]) -> Tensor:
        """Run or replay the size that holds these rows."""
        size = bucket_of(len(rows), self._sizes)
        plan, buffers = self._attention.plan_static_prefill(pieces, size), self._buffers[size]
        assert plan is not None, "few pieces"
        buffers.rows[: len(rows)] = rows
        buffers.positions.zero_()
        buffers.positions[: len(rows)] = positions
        if self._graphs is None:
            buffers.hidden.copy_(self._decoder(buffers.rows, buffers.positions, plan))
        else:
            self._graphs.run(("prompt", size), {"plan": plan, "rows": buffers.rows})
        return buffers.hidden[: len(rows)].clone()


@dataclass(frozen=True, slots=True)
class _Buffers:
    rows: Tensor
    positions: Tensor
    hidden: Tensor


def _buffers_of(decoder: Decoder, size: int) -> _Buffers:
    weight = decoder.norm.weight
    rows = weight.new_zeros((size, weight.shape[0]))
    at = torch.zeros(size, dtype=torch.int64, device=weight.device)
    return _Buffers(rows, at, torch.zeros_like(rows))


class _Replayed:
    """Steps by bucket, recorded on padding and replayed."""

    def __init__(self, decoder: Decoder, attention: AttentionBackend, graphs: Graphs) -> None:
        self._decoder = decoder
        self._attention = attention
        self._graphs = graphs
        self._buffers = {size: _buffers_of(decoder, size) for size in SIZES}
        for size in SIZES:
            for width in attention.static_widths:
                padding = np.full(size, PADDING), np.full(size, width - 1)
                self._record(size, padding)

    def _record(self, size: int, padding: tuple[Indices, Indices]) -> None:
        plan, buffers = self._attention.plan_static(*padding), self._buffers[size]

        def call() -> Outputs:
            hidden = self._decoder(buffers.rows, buffers.positions, plan)
            buffers.hidden.copy_(hidden)
            return ()

        self._graphs.record(plan.key, call, {"plan": plan, "rows": buffers.rows})

    def __call__(self, rows: Tensor, sequences: Indices, n_before: Indices) -> Tensor:
        """Replay the bucket of these rows."""
        n_rows = len(rows)
        buffers = self._buffers[bucket_of(n_rows, SIZES)]
        sequences, n_before, rows = _padded(sequences, n_before, rows)
        plan = self._attention.plan_static(sequences, n_before)
        buffers.rows.copy_(rows)
        buffers.positions.copy_(torch.from_numpy(n_before))
        self._graphs.run(plan.key, {"plan": plan, "rows": buffers.rows})
        return buffers.hidden[:n_rows].clone()


def _padded(sequences: Indices, n_before: Indices, rows: Tensor) -> tuple[Indices, Indices, Tensor]:
    """The same filled up to a bucket with rows of nobody."""
    n_free = bucket_of(len(rows), SIZES) - len(rows)
    return (
        np.pad(sequences, (0, n_free), constant_values=PADDING),
        np.pad(n_before, (0, n_free)),
        torch.nn.functional.pad(rows, (0, 0, 0, n_free)),
    )


def _pages_of(sequence: int, n_moved: int) -> list[int]:
    """Pages out of order, others each time that a sequence is moved; 0 is nobody's."""
    n_each = MOST_ROWS // PAGE_SIZE
    first = 1 + n_each * (sequence if n_moved == 0 else N_SEQUENCES + n_moved - 1)
    return [first + (5 * nth + 3) % n_each for nth in range(n_each)]
