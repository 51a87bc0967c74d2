"""Reference attention: gather the pages of each sequence, then scaled dot-product attention.

Plain torch on any device; what faster backends are compared with. Engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.base import Indices, Piece
from models.spec import BackboneSpec

WIDTH_STEP: Final = 4
"""A static width is so many times the one before it: few shapes, at most so much wasted reading."""
NARROW: Final = 256
"""KV rows of a width that is not divided further."""


class PagedAttention:
    """The KV pool `(n_layers, n_pages, 2, page_size, n_kv_heads, head_dim)` and its page tables.

    Args:
        spec: shape of the backbone.
        n_pages: pages of the pool. Page 0 is the dummy: unbound entries of a table point there, and
            it is read behind a mask, so nothing may write there. Padding rows have a page more.
        page_size: KV rows in a page.
        n_sequences: rows of the page table.
        device: where the pool lives.
        dtype: of keys and values.
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
    ) -> None:
        self._spec = spec
        self._page_size = page_size
        self._device = device
        shape = (spec.n_layers, n_pages + 1, 2, page_size, spec.n_kv_heads, spec.head_dim)
        self._pool = _untouched_zeros(shape, dtype, device)
        max_pages = -(-spec.max_positions // page_size)
        # The last row is that of padding, which is sequence -1: all of it leads to the last page.
        self._tables = torch.zeros((n_sequences + 1, max_pages), dtype=torch.int64, device=device)
        self._tables[-1] = n_pages
        self._widths = tuple(n * page_size for n in _static_pages(max_pages, page_size))
        self._static: dict[tuple[int, int], PagedDecode] = {}

    @property
    def static_widths(self) -> tuple[int, ...]:
        """See `AttentionBackend`."""
        return self._widths

    def static_prompt_rows(self, n_most: int) -> tuple[int, ...]:
        """None: pieces are attended to one after another, each in its own size."""
        return ()

    def bind(self, sequence: int, pages: Sequence[int]) -> None:
        """Let a sequence use these pages, in order of rows."""
        assert len(pages) <= self._tables.shape[1], "more pages than the model has positions"
        self._tables[sequence, : len(pages)] = torch.tensor(pages, dtype=torch.int64)
        self._tables[sequence, len(pages) :] = 0

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero pages whose content may not be finite: a masked row still spreads a NaN."""
        self._pool.index_fill_(1, torch.tensor(pages, dtype=torch.int64, device=self._device), 0.0)

    def plan_decode(self, sequences: Indices, n_before: Indices) -> PagedDecode:
        """Plan one new row for each of `sequences` (N,), which hold `n_before` (N,) rows."""
        width = (int(n_before.max()) // self._page_size + 1) * self._page_size
        return self._plan_rows(sequences, n_before, width)

    def plan_static(self, sequences: Indices, n_before: Indices) -> PagedDecode:
        """Plan the same in the buffers of this batch size and width."""
        longest = int(n_before.max())
        width = next(width for width in self._widths if width > longest)
        planned = self._plan_rows(sequences, n_before, width)
        fixed = self._static.setdefault(planned.key, planned)
        if fixed is not planned:
            fixed.take(planned)
        return fixed

    def _plan_rows(self, sequences: Indices, n_before: Indices, width: int) -> PagedDecode:
        host = torch.from_numpy(np.stack([sequences, n_before]))
        of, before = host.to(self._device, non_blocking=True)
        pages = self._tables[of, : width // self._page_size]
        page = pages.gather(1, (before // self._page_size).unsqueeze(1)).squeeze(1)
        is_past = torch.arange(width, device=self._device) <= before.unsqueeze(1)
        return PagedDecode(
            key=(len(sequences), width),
            pool=self._pool,
            write_rows=self._rows_of(page, before % self._page_size),
            blocks=(pages * 2).flatten(),
            mask=is_past[:, None, None, :],
            is_grouped=self._spec.n_query_heads != self._spec.n_kv_heads,
        )

    def plan_prefill(self, pieces: Sequence[Piece]) -> PagedPrefill:
        """Plan prompt pieces that lie one after another in the batch."""
        planned = [self._plan_piece(piece) for piece in pieces]
        return PagedPrefill(
            pool=self._pool,
            pieces=tuple(planned),
            write_rows=torch.cat([piece.write_rows for piece in planned]),
            is_grouped=self._spec.n_query_heads != self._spec.n_kv_heads,
        )

    def plan_static_prefill(self, pieces: Sequence[Piece], n_rows: int) -> None:
        """Nothing: see `static_prompt_rows`."""

    def _plan_piece(self, piece: Piece) -> PlannedPiece:
        n_after = piece.n_before + piece.n_rows
        n_pages = -(-n_after // self._page_size)
        pages = self._tables[piece.sequence, :n_pages]
        rows = torch.arange(piece.n_before, n_after, device=self._device)
        past = torch.arange(n_after, device=self._device)
        return PlannedPiece(
            first_row=piece.first_row,
            n_rows=piece.n_rows,
            n_after=n_after,
            write_rows=self._rows_of(pages[rows // self._page_size], rows % self._page_size),
            blocks=pages * 2,
            mask=past <= rows.unsqueeze(1),
        )

    def _rows_of(self, page: Tensor, offset: Tensor) -> Tensor:
        """Rows of the flattened pool of a layer that hold the keys; values lie a page further."""
        return page * (2 * self._page_size) + offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedDecode:
    """A planned decode step: `write_rows` (N,), `blocks` (N * P,), `mask` (N, 1, 1, width)."""

    key: tuple[int, int]
    pool: Tensor
    write_rows: Tensor
    blocks: Tensor
    mask: Tensor
    is_grouped: bool

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store one row of each sequence and attend over all of its rows."""
        layer = self.pool[layer_idx]
        _store(layer, self.write_rows, k, v)
        keys, values = _gather(layer, self.blocks, q.shape[0])
        context = scaled_dot_product_attention(
            q.unsqueeze(2).to(keys.dtype),
            keys,
            values,
            attn_mask=self.mask,
            enable_gqa=self.is_grouped,
        )
        return context.squeeze(2).to(q.dtype)

    def take(self, other: PagedDecode) -> None:
        """Write what another plan of the same key says into the tensors of this one."""
        self.write_rows.copy_(other.write_rows)
        self.blocks.copy_(other.blocks)
        self.mask.copy_(other.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPiece:
    """Where a piece's rows lie, in the batch and in the pool; `mask` (n_rows, n_after)."""

    first_row: int
    n_rows: int
    n_after: int
    write_rows: Tensor
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedPrefill:
    """Planned prompt pieces; each attends causally to its own sequence alone."""

    pool: Tensor
    pieces: tuple[PlannedPiece, ...]
    write_rows: Tensor
    is_grouped: bool

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store all rows, then attend piece by piece."""
        layer = self.pool[layer_idx]
        n_rows = len(self.write_rows)
        _store(layer, self.write_rows, k[:n_rows], v[:n_rows])
        parts = [self._attend(layer, piece, q) for piece in self.pieces]
        return torch.cat([*parts, torch.zeros_like(q[n_rows:])])

    def _attend(self, layer: Tensor, piece: PlannedPiece, q: Tensor) -> Tensor:
        keys, values = _gather(layer, piece.blocks, 1)
        queries = q[piece.first_row : piece.first_row + piece.n_rows].transpose(0, 1).unsqueeze(0)
        context = scaled_dot_product_attention(
            queries.to(keys.dtype),
            keys[:, :, : piece.n_after],
            values[:, :, : piece.n_after],
            attn_mask=piece.mask,
            enable_gqa=self.is_grouped,
        )
        return context[0].transpose(0, 1).to(q.dtype)


def _untouched_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU the system gives memory only where something is written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch writes its zeros, numpy asks for clean memory: pico's pool of 200 MB is never full.
    n_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(n_bytes, dtype=np.uint8)).view(dtype).view(shape)


def _store(layer: Tensor, rows: Tensor, k: Tensor, v: Tensor) -> None:
    """Write `k`, `v` (N, heads, head_dim) into a layer (n_pages, 2, page_size, heads, head_dim)."""
    page_size = layer.shape[2]
    flat = layer.view(-1, layer.shape[3] * layer.shape[4])
    flat.index_copy_(0, rows, k.flatten(1).to(flat.dtype))
    flat.index_copy_(0, rows + page_size, v.flatten(1).to(flat.dtype))


def _gather(layer: Tensor, blocks: Tensor, n_sequences: int) -> tuple[Tensor, Tensor]:
    """Keys and values `(n_sequences, heads, rows, head_dim)` of the pages whose keys are `blocks`.

    Whole pages are copied: a row of the two-dimensional view is one page of keys or of values.
    """
    _, _, page_size, n_heads, head_dim = layer.shape
    flat = layer.view(-1, page_size * n_heads * head_dim)
    shape = (n_sequences, -1, n_heads, head_dim)
    keys = flat.index_select(0, blocks).view(shape).transpose(1, 2)
    values = flat.index_select(0, blocks + 1).view(shape).transpose(1, 2)
    return keys, values


def _static_pages(max_pages: int, page_size: int) -> list[int]:
    """Static widths in pages, ascending: the longest sequence, a quarter of it, and so on."""
    widths = [max_pages]
    while widths[0] * page_size > NARROW:
        widths.insert(0, -(-widths[0] // WIDTH_STEP))
    return widths
