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
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.attention.base import Indices, Piece
from engine.kv_pages import DUMMY_PAGE
from models.spec import BackboneSpec

WORKSPACE_BYTES: Final = 128 * 1024 * 1024
"""What FlashInfer recommends; all wrappers share it, for their steps follow one another."""
SCHEDULE_BYTES: Final = 8 * 1024 * 1024
"""Of each wrapper, on the device and again pinned on the host. Source: FlashInfer 0.7.4,
`_int_workspace_buffer`."""
LAYOUT: Final = "NHD"
KERNEL: Final = "fa2"
"""The one generation of kernels that every card from SM75 on has; others would be built beside."""
Ints = npt.NDArray[np.int32]


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
        self._decode = _Planner(self._decode_wrapper(None), device)
        self._prefill = _Planner(
            kernels.BatchPrefillWithPagedKVCacheWrapper(self._workspace, LAYOUT, backend=KERNEL),
            device,
        )
        self._static: dict[int, _Static] = {}

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
        sequences = np.array([piece.sequence for piece in pieces])
        n_rows = np.array([piece.n_rows for piece in pieces])
        n_after = np.array([piece.n_before for piece in pieces]) + n_rows
        pages = self._pages_of(sequences, n_after)
        starts = _indptr(n_rows)
        # Position of a row: its place in the batch, moved to where its piece begins.
        places = np.arange(starts[-1]) + np.repeat(n_after - starts[1:], n_rows)
        rows = self._upload(pages, np.repeat(np.arange(len(pieces)), n_rows), places)
        with self._prefill as wrapper:
            wrapper.plan(
                self._host(starts),
                self._host(pages.indptr),
                rows.indices,
                self._host(pages.last_page_len),
                self._spec.n_query_heads,
                self._spec.n_kv_heads,
                self._spec.head_dim,
                self._page_size,
                causal=True,
                q_data_type=self._pool.dtype,
                kv_data_type=self._pool.dtype,
            )
        return self._step(self._prefill.wrapper, rows, int(starts[-1]))

    def _plan_rows(self, planner: _Planner, pages: _Pages, indices: Tensor) -> None:
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

    def _make_static(self, n_rows: int) -> _Static:
        """Buffers and wrapper of a batch size; indices have room for the longest sequences."""
        rows = _Rows(
            batch_indices=torch.arange(n_rows, dtype=torch.int32, device=self._device),
            positions=self._zeros(n_rows),
            indices=self._zeros(n_rows * self._max_pages),
            indptr=self._zeros(n_rows + 1),
            last_page_len=self._zeros(n_rows),
        )
        wrapper = self._decode_wrapper(rows)
        step = self._step(wrapper, rows, n_rows)
        return _Static(planner=_Planner(wrapper, self._device), step=step)

    def _decode_wrapper(self, fixed: _Rows | None) -> Any:  # noqa: ANN401  an untyped library
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

    def _step(self, wrapper: Any, rows: _Rows, n_rows: int) -> FlashInferStep:  # noqa: ANN401
        return FlashInferStep(
            key=(n_rows, self.static_widths[0]),
            pool=self._pool,
            kernels=self._kernels,
            wrapper=wrapper,
            rows=rows,
            n_rows=n_rows,
        )

    def _pages_of(self, sequences: Indices, n_after: Indices) -> _Pages:
        """Pages of the first `n_after` (N,) rows of each sequence."""
        n_pages = -(-n_after // self._page_size)
        table = self._tables[sequences, : n_pages.max()]
        return _Pages(
            indptr=_indptr(n_pages),
            indices=table[np.arange(table.shape[1]) < n_pages[:, None]],
            last_page_len=((n_after - 1) % self._page_size + 1).astype(np.int32),
        )

    def _upload(self, pages: _Pages, batch_indices: Indices, positions: Indices) -> _Rows:
        """All index arrays of a step that is not captured, in one transfer."""
        parts = (batch_indices, positions, pages.indices, pages.indptr, pages.last_page_len)
        joined = self._to_device(np.concatenate(parts, dtype=np.int32))
        return _Rows(*torch.split(joined, [len(part) for part in parts]))

    def _to_device(self, ints: Ints) -> Tensor:
        return self._host(ints).to(self._device, non_blocking=True)

    def _host(self, ints: Ints) -> Tensor:
        """On the host, in pinned memory where copies go to a card; torch frees it after them."""
        tensor = torch.from_numpy(ints)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _zeros(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int32, device=self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferStep:
    """A planned step of `n_rows` rows: store, then run the wrapper that was planned for it."""

    key: tuple[int, int]
    pool: Tensor
    kernels: Any
    wrapper: Any
    rows: _Rows
    n_rows: int

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the rows and attend; rows of the batch after those planned come back as zeros."""
        layer, rows, n_rows = self.pool[layer_idx], self.rows, self.n_rows
        self.kernels.append_paged_kv_cache(
            k[:n_rows].to(layer.dtype),
            v[:n_rows].to(layer.dtype),
            rows.batch_indices,
            rows.positions,
            layer,
            rows.indices,
            rows.indptr,
            rows.last_page_len,
            LAYOUT,
        )
        context: Tensor = self.wrapper.run(q[:n_rows].to(layer.dtype), layer).to(q.dtype)
        if n_rows == len(q):
            return context
        return torch.cat([context, torch.zeros_like(q[n_rows:])])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Index arrays of a step on the device, int32: N rows of B sequences with P pages.

    `batch_indices` (N,) and `positions` (N,) of the new rows; `indices` (P,), `indptr` (B + 1,) and
    `last_page_len` (B,) of the pages once those rows are there.
    """

    batch_indices: Tensor
    positions: Tensor
    indices: Tensor
    indptr: Tensor
    last_page_len: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pages:
    """Pages of a batch on the host, as in `_Rows`."""

    indptr: Ints
    indices: Ints
    last_page_len: Ints


@dataclass(slots=True)
class _Planner:
    """A wrapper that is planned again and again.

    A plan is written into pinned memory of the wrapper and copied from there, so that the next may
    not begin before that copy is through. It is when the step that it served has begun, which was
    planned a step ago: no wait in practice.
    """

    wrapper: Any
    device: torch.device
    copied: torch.cuda.Event | None = field(init=False, default=None)

    def __enter__(self) -> Any:  # noqa: ANN401  an untyped library
        if self.copied is not None:
            self.copied.synchronize()
        return self.wrapper

    def __exit__(self, *exc: object) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
            # Not of the current device, which need not be this one.
            event.record(torch.cuda.current_stream(self.device))
            self.copied = event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Static:
    """What a batch size keeps for good: its planner, and the step that is captured."""

    planner: _Planner
    step: FlashInferStep


def working_bytes(spec: BackboneSpec, page_size: int, sizes: Sequence[int]) -> tuple[int, int]:
    """What kernels work with, beside the pool: bytes on the device, and pinned on the host.

    Args:
        spec: shape of the backbone.
        page_size: KV rows in a page.
        sizes: rows of the batches that are planned in fixed buffers.
    """
    n_wrappers = 2 + len(sizes)
    max_pages = -(-spec.max_positions // page_size)
    n_numbers = sum(n_rows * (max_pages + 4) + 1 for n_rows in sizes)
    schedules = n_wrappers * SCHEDULE_BYTES
    return WORKSPACE_BYTES + schedules + 4 * n_numbers, schedules


def _indptr(counts: Indices) -> Ints:
    """Where each of the runs begins, and the end of the last: (B + 1,)."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
