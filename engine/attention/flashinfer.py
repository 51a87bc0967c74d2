"""Attention by FlashInfer's kernels, on CUDA: the same step as `engine.attention.paged`.

The page table lives on the host, where pages are handed out. A plan makes the index arrays of a
step there and sends them up from pinned memory; nothing is read back and nothing is waited for but
the copies of an earlier plan. Engine thread.

Decode runs on tensor cores whatever the group size: that is the kernel of prefill, so that one
module is built for a head size and not two, and any number of query heads a KV head is known to it.
How a long row is cut among the processors of the card follows from all lengths of the batch, so the
last bits of a row's result may depend on its neighbours.

Source: FlashInfer 0.7.4, `flashinfer.decode`, `flashinfer.prefill`, `flashinfer.page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import PADDING, Indices, Piece
from engine.attention.flashinfer_step import (
    LAYOUT,
    FlashInferStep,
    Ints,
    Laid,
    Pages,
    Planner,
    Rows,
    Static,
)
from engine.kv_pages import DUMMY_PAGE
from models.spec import BackboneSpec

WORKSPACE_BYTES: Final = 128 * 1024 * 1024
"""What FlashInfer recommends; all wrappers share it, for their steps follow one another."""
SCHEDULE_BYTES: Final = 8 * 1024 * 1024
"""Of each wrapper, on the device and again pinned on the host. Source: FlashInfer 0.7.4,
`_int_workspace_buffer`."""
MOST_PIECES: Final = 16
"""Of a prompt pass that is captured, padding included. A kernel under capture keeps room in the
workspace for a tile of each."""
LEAST_PROMPT_ROWS: Final = 16
"""Of a prompt pass that is captured."""
KERNEL: Final = "fa2"
"""The one generation of kernels that every card from SM75 on has; others would be built beside."""


class FlashInferAttention:
    """The KV pool `(n_layers, n_pages, 2, page_size, n_kv_heads, head_dim)`, tables on the host.

    Args:
        spec: shape of the backbone.
        n_pages: pages of the pool; page 0 is the dummy, which padding rows read and write.
        page_size: KV rows in a page.
        n_sequences: rows of the page table.
        device: where the pool lives.
        dtype: of keys and values: float16 or bfloat16.
        kernels: the module `flashinfer`, see `engine.attention.kernels`.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        *,
        n_pages: int,
        page_size: int,
        n_sequences: int,
        device: torch.device,
        dtype: torch.dtype,
        kernels: Any,  # noqa: ANN401  an untyped module
    ) -> None:
        self._spec = spec
        self._page_size = page_size
        self._device = device
        self._kernels = kernels
        self._pool = torch.zeros(
            (spec.n_layers, n_pages, 2, page_size, spec.n_kv_heads, spec.head_dim),
            dtype=dtype,
            device=device,
        )
        self._max_pages = -(-spec.max_positions // page_size)
        # The last row is that of padding, which is sequence -1.
        self._tables = np.full((n_sequences + 1, self._max_pages), DUMMY_PAGE, dtype=np.int32)
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._decode = Planner(self._decode_wrapper(None), device)
        self._prefill = Planner(
            kernels.BatchPrefillWithPagedKVCacheWrapper(self._workspace, LAYOUT, backend=KERNEL),
            device,
        )
        self._static: dict[int, Static] = {}
        self._static_prompts: dict[int, Static] = {}

    @property
    def static_widths(self) -> tuple[int, ...]:
        """One: the kernel reads only the pages that a row has."""
        return (self._max_pages * self._page_size,)

    def bind(self, sequence: int, pages: Sequence[int]) -> None:
        """Let a sequence use these pages, in order of rows."""
        assert len(pages) <= self._max_pages, "more pages than the model has positions"
        self._tables[sequence, : len(pages)] = pages
        self._tables[sequence, len(pages) :] = DUMMY_PAGE

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero pages whose content may not be finite: a masked row may still spread a NaN."""
        idx = torch.tensor(pages, dtype=torch.int64)
        self._pool.index_fill_(1, idx.to(self._device, non_blocking=True), 0.0)

    def plan_decode(self, sequences: Indices, n_before: Indices) -> FlashInferStep:
        """Plan one new row for each of `sequences` (N,), which hold `n_before` (N,) rows."""
        pages = self._pages_of(sequences, n_before + 1)
        rows = self._upload(pages, np.arange(len(sequences)), n_before)
        self._plan_rows(self._decode, pages, rows.indices)
        return self._step(self._decode.wrapper, rows, len(sequences))

    def plan_static(self, sequences: Indices, n_before: Indices) -> FlashInferStep:
        """Plan the same in the buffers of this batch size, which its wrapper never leaves."""
        n_rows = len(sequences)
        if n_rows not in self._static:
            self._static[n_rows] = self._make_static(n_rows)
        static = self._static[n_rows]
        pages = self._pages_of(sequences, n_before + 1)
        # By way of a copy on the device: the wrapper waits for what it is given on the host.
        indices = self._to_device(pages.indices)
        static.step.rows.positions.copy_(self._to_device(n_before.astype(np.int32)))
        self._plan_rows(static.planner, pages, indices)
        return static.step

    def plan_prefill(self, pieces: Sequence[Piece]) -> FlashInferStep:
        """Plan prompt pieces that lie one after another in the batch."""
        laid = self._laid_out(pieces)
        rows = self._upload(laid.pages, laid.of, laid.positions)
        self._plan_pieces(self._prefill, laid, rows.indices)
        return self._step(self._prefill.wrapper, rows, len(laid.of))

    def static_prompt_rows(self, n_most: int) -> tuple[int, ...]:
        """See `static_prompt_rows`."""
        return static_prompt_rows(self._spec, n_most)

    def plan_static_prefill(self, pieces: Sequence[Piece], n_rows: int) -> FlashInferStep | None:
        """Plan the same in the buffers of so many rows: what is free is a piece of padding.

        The kernel wants the same number of pieces and of rows each time, and takes pieces without
        rows: those come last.
        """
        n_free = n_rows - sum(piece.n_rows for piece in pieces)
        n_empty = MOST_PIECES - len(pieces) - (n_free > 0)
        if n_empty < 0:
            return None
        if n_rows not in self._static_prompts:
            self._static_prompts[n_rows] = self._make_static_prompts(n_rows)
        static, first_row = self._static_prompts[n_rows], n_rows - n_free
        padding = [(n_free, 0)] * (n_free > 0) + [(0, 1)] * n_empty
        filled = [
            *pieces,
            *(
                Piece(sequence=PADDING, first_row=first_row, n_rows=n, n_before=before)
                for n, before in padding
            ),
        ]
        laid, rows = self._laid_out(filled), static.step.rows
        rows.batch_indices.copy_(self._to_device(laid.of))
        rows.positions.copy_(self._to_device(laid.positions))
        self._plan_pieces(static.planner, laid, self._to_device(laid.pages.indices))
        return static.step

    def _laid_out(self, pieces: Sequence[Piece]) -> Laid:
        sequences = np.array([piece.sequence for piece in pieces])
        n_rows = np.array([piece.n_rows for piece in pieces])
        n_after = np.array([piece.n_before for piece in pieces]) + n_rows
        starts = _indptr(n_rows)
        # Position of a row: its place in the batch, moved to where its piece begins.
        positions = np.arange(starts[-1]) + np.repeat(n_after - starts[1:], n_rows)
        return Laid(
            pages=self._pages_of(sequences, n_after),
            starts=starts,
            of=np.repeat(np.arange(len(pieces)), n_rows).astype(np.int32),
            positions=positions.astype(np.int32),
        )

    def _plan_pieces(self, planner: Planner, laid: Laid, indices: Tensor) -> None:
        with planner as wrapper:
            wrapper.plan(
                self._host(laid.starts),
                self._host(laid.pages.indptr),
                indices,
                self._host(laid.pages.last_page_len),
                self._spec.n_query_heads,
                self._spec.n_kv_heads,
                self._spec.head_dim,
                self._page_size,
                causal=True,
                q_data_type=self._pool.dtype,
                kv_data_type=self._pool.dtype,
            )

    def _plan_rows(self, planner: Planner, pages: Pages, indices: Tensor) -> None:
        with planner as wrapper:
            wrapper.plan(
                self._host(pages.indptr),
                indices,
                self._host(pages.last_page_len),
                self._spec.n_query_heads,
                self._spec.n_kv_heads,
                self._spec.head_dim,
                self._page_size,
                q_data_type=self._pool.dtype,
                kv_data_type=self._pool.dtype,
            )

    def _make_static_prompts(self, n_rows: int) -> Static:
        """Buffers and wrapper of prompt passes of so many rows."""
        rows = Rows(
            batch_indices=self._zeros(n_rows),
            positions=self._zeros(n_rows),
            indices=self._zeros(MOST_PIECES * self._max_pages),
            indptr=self._zeros(MOST_PIECES + 1),
            last_page_len=self._zeros(MOST_PIECES),
        )
        wrapper = self._kernels.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace,
            LAYOUT,
            use_cuda_graph=True,
            qo_indptr_buf=self._zeros(MOST_PIECES + 1),
            paged_kv_indptr_buf=rows.indptr,
            paged_kv_indices_buf=rows.indices,
            paged_kv_last_page_len_buf=rows.last_page_len,
            backend=KERNEL,
            max_total_num_rows=n_rows,
        )
        step = self._step(wrapper, rows, n_rows)
        return Static(planner=Planner(wrapper, self._device), step=step)

    def _make_static(self, n_rows: int) -> Static:
        """Buffers and wrapper of a batch size; indices have room for the longest sequences."""
        rows = Rows(
            batch_indices=torch.arange(n_rows, dtype=torch.int32, device=self._device),
            positions=self._zeros(n_rows),
            indices=self._zeros(n_rows * self._max_pages),
            indptr=self._zeros(n_rows + 1),
            last_page_len=self._zeros(n_rows),
        )
        wrapper = self._decode_wrapper(rows)
        step = self._step(wrapper, rows, n_rows)
        return Static(planner=Planner(wrapper, self._device), step=step)

    def _decode_wrapper(self, fixed: Rows | None) -> Any:  # noqa: ANN401  an untyped library
        return self._kernels.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            LAYOUT,
            use_cuda_graph=fixed is not None,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=None if fixed is None else fixed.indptr,
            paged_kv_indices_buffer=None if fixed is None else fixed.indices,
            paged_kv_last_page_len_buffer=None if fixed is None else fixed.last_page_len,
            backend=KERNEL,
        )

    def _step(self, wrapper: Any, rows: Rows, n_rows: int) -> FlashInferStep:  # noqa: ANN401
        return FlashInferStep(
            key=(n_rows, self.static_widths[0]),
            pool=self._pool,
            kernels=self._kernels,
            wrapper=wrapper,
            rows=rows,
            n_rows=n_rows,
        )

    def _pages_of(self, sequences: Indices, n_after: Indices) -> Pages:
        """Pages of the first `n_after` (N,) rows of each sequence."""
        n_pages = -(-n_after // self._page_size)
        table = self._tables[sequences, : n_pages.max()]
        return Pages(
            indptr=_indptr(n_pages),
            indices=table[np.arange(table.shape[1]) < n_pages[:, None]],
            last_page_len=((n_after - 1) % self._page_size + 1).astype(np.int32),
        )

    def _upload(
        self, pages: Pages, batch_indices: Indices | Ints, positions: Indices | Ints
    ) -> Rows:
        """All index arrays of a step that is not captured, in one transfer."""
        parts = (batch_indices, positions, pages.indices, pages.indptr, pages.last_page_len)
        joined = self._to_device(np.concatenate(parts, dtype=np.int32))
        return Rows(*torch.split(joined, [len(part) for part in parts]))

    def _to_device(self, ints: Ints) -> Tensor:
        return self._host(ints).to(self._device, non_blocking=True)

    def _host(self, ints: Ints) -> Tensor:
        """On the host, in pinned memory where copies go to a card; torch frees it after them."""
        tensor = torch.from_numpy(ints)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _zeros(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int32, device=self._device)


def static_prompt_rows(spec: BackboneSpec, n_most: int) -> tuple[int, ...]:
    """Powers of two, up to the first that holds `n_most`, or as many as there are positions."""
    sizes = [LEAST_PROMPT_ROWS]
    while sizes[-1] < n_most:
        sizes.append(2 * sizes[-1])
    return tuple(size for size in sizes if size <= spec.max_positions)


def working_bytes(
    spec: BackboneSpec, page_size: int, sizes: Sequence[int], n_prompt_sizes: int
) -> tuple[int, int]:
    """What kernels work with, beside the pool: bytes on the device, and pinned on the host.

    Args:
        spec: shape of the backbone.
        page_size: KV rows in a page.
        sizes: rows of the batches that are planned in fixed buffers.
        n_prompt_sizes: of prompt passes that are.
    """
    n_wrappers = 2 + len(sizes) + n_prompt_sizes
    max_pages = -(-spec.max_positions // page_size)
    n_sequences = sum(sizes) + n_prompt_sizes * MOST_PIECES
    schedules = n_wrappers * SCHEDULE_BYTES
    return WORKSPACE_BYTES + schedules + 4 * n_sequences * (max_pages + 4), schedules


def _indptr(counts: Indices) -> Ints:
    """Where each of the runs begins, and the end of the last: (B + 1,)."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
