"""What a captured graph of FlashInfer does when it is replayed, for `flashinfer_double`.

A replay asks nothing and refuses nothing: it reads the fixed buffers as they are then, along the
schedule that the last plan left in the wrapper's own memory. So all of this is tensor operations on
those buffers. Where buffers and schedule are not of one plan, or an index leads nowhere, the real
kernel reads what it should not; here the rows come out as NaN, which no test takes for an answer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Fixed = tuple[Tensor, Tensor, Tensor]
"""`indptr`, `indices` and `last_page_len` of a wrapper."""


def attend(
    q: Tensor, pool: Tensor, fixed: Fixed, starts: Tensor, planned: Tensor, *, is_causal: bool
) -> Tensor:
    """Rows `q` (N, heads, head_dim), those of sequence b from `starts[b]` on, over its pages.

    Args:
        q: queries.
        pool: of the layer, `(pages, 2, page_size, KV heads, head_dim)`.
        fixed: the buffers as they are.
        starts: (B + 1,) of the queries, a fixed buffer too.
        planned: (B + 1,) rows that each sequence has by the schedule; the last entry is how many
            rows of queries there are.
        is_causal: queries are the last rows of their sequence.
    """
    kept, n_kept, is_sound = _rows_of(pool, fixed)
    n_sequences, width = len(n_kept), kept.shape[2]
    row = torch.arange(len(q))
    of = (row.unsqueeze(1) >= starts[1:]).sum(dim=1).clamp(max=n_sequences - 1)
    last = n_kept[of] - 1
    if is_causal:
        last = last - (starts[of + 1] - 1 - row)
    is_seen = torch.arange(width) <= last.unsqueeze(1)
    keys, values = kept[:, of]
    group = q.shape[1] // keys.shape[2]
    keys, values = (x.float().repeat_interleave(group, dim=2) for x in (keys, values))
    values = values.masked_fill(~is_seen[:, :, None, None], 0)
    scores = torch.einsum("nhd,nmhd->nhm", q.float(), keys) / math.sqrt(q.shape[2])
    scores = scores.masked_fill(~is_seen.unsqueeze(1), -math.inf)
    out = torch.einsum("nhm,nmhd->nhd", scores.softmax(dim=-1), values)
    is_sound = is_sound & (n_kept == planned[:-1]) & (starts[-1] == planned[-1])
    return out.masked_fill(~is_sound[of][:, None, None], math.nan).to(q.dtype)


def append(
    rows: tuple[Tensor, Tensor], at: tuple[Tensor, Tensor], pool: Tensor, fixed: Fixed
) -> None:
    """Write keys and values at (sequence, position), as the buffers lead there."""
    (of, position), (indptr, indices, last_page_len) = at, fixed
    page_size = pool.shape[2]
    n_after = (indptr.diff() - 1) * page_size + last_page_len
    place = (indptr[of] + position // page_size).clamp(0, len(indices) - 1)
    page, offset = indices[place].long(), (position % page_size).long()
    is_sound = (position >= 0) & (position < n_after[of]) & (page >= 0) & (page < len(pool))
    page = page.clamp(0, len(pool) - 1)
    for half, values in enumerate(rows):
        pool[page, half, offset] = values.masked_fill(~is_sound[:, None, None], math.nan)


def _rows_of(pool: Tensor, fixed: Fixed) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values `(2, B, width, KV heads, head_dim)`, how many rows count, who is sound."""
    indptr, indices, last_page_len = fixed
    n_pages, page_size = indptr.diff(), pool.shape[2]
    # All of the buffer may be one sequence's; a narrower view serves where each has its share.
    n_most = -(-len(indices) // len(n_pages))
    nth = torch.arange(n_most)
    page = indices[(indptr[:-1].unsqueeze(1) + nth).clamp(0, len(indices) - 1)]
    is_used = nth < n_pages.unsqueeze(1)
    is_known = (page >= 0) & (page < len(pool))
    is_sound = (is_known | ~is_used).all(dim=1) & (n_pages >= 1) & (n_pages <= n_most)
    page = page.masked_fill(~is_used | ~is_known, 0).long()
    kept = pool[page].movedim(2, 0).flatten(2, 3)
    return kept, (n_pages - 1) * page_size + last_page_len, is_sound
