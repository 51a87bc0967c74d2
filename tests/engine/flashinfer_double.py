"""Stands for the package `flashinfer` where there is no card: what it takes, and what it computes.

Only what Parley calls. Whatever the real kernels would read as a wild address, or would take and
compute something else from, raises `MisuseError` here; the answers are computed in torch. Two rules
are ours, not theirs: a new row is appended at the end of its sequence, and no two rows of an append
go to one place, but on `DUMMY_PAGE`, which no stream ever reads.

`SIGNATURES` are those of the real package, read with `inspect.signature` from `VERSION`. To read
them again, install that wheel somewhere without what it depends on and print
`str(inspect.signature(f))`; the named arguments of a decode `plan` are those of `_plan_impl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.engine import flashinfer_captured as captured
from tests.engine.flashinfer_layers import (
    apply_rope_with_cos_sin_cache_inplace,
    fused_add_rmsnorm,
    rmsnorm,
    silu_and_mul,
)
from tests.engine.flashinfer_rules import (
    DTYPES,
    DUMMY_PAGE,
    LEAST_WORKSPACE,
    MisuseError,
    capture,
    expect,
    expect_half,
    expect_in_pool,
    expect_ints,
    expect_pages,
    expect_starts,
    is_capturing,
)

__all__ = [
    "SIGNATURES",
    "VERSION",
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "MisuseError",
    "append_paged_kv_cache",
    "apply_rope_with_cos_sin_cache_inplace",
    "capture",
    "fused_add_rmsnorm",
    "rmsnorm",
    "silu_and_mul",
]

VERSION = "0.7.4"
SIGNATURES = {
    "BatchDecodeWithPagedKVCacheWrapper": (
        "float_workspace_buffer kv_layout use_cuda_graph use_tensor_cores paged_kv_indptr_buffer "
        "paged_kv_indices_buffer paged_kv_last_page_len_buffer backend jit_args jit_kwargs"
    ),
    "BatchDecodeWithPagedKVCacheWrapper.plan": (
        "indptr indices last_page_len num_qo_heads num_kv_heads head_dim page_size * "
        "pos_encoding_mode window_left window_right logits_soft_cap q_data_type kv_data_type "
        "o_data_type data_type sm_scale rope_scale rope_theta non_blocking block_tables seq_lens "
        "fixed_split_size disable_split_kv q_len_per_req is_causal use_token_head_sf"
    ),
    "BatchPrefillWithPagedKVCacheWrapper": (
        "float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf paged_kv_indptr_buf "
        "paged_kv_indices_buf paged_kv_last_page_len_buf custom_mask_buf mask_indptr_buf backend "
        "jit_args jit_kwargs variant_owns_mask max_total_num_rows"
    ),
    "BatchPrefillWithPagedKVCacheWrapper.plan": (
        "qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads "
        "num_kv_heads head_dim_qk page_size head_dim_vo custom_mask packed_custom_mask causal "
        "pos_encoding_mode use_fp16_qk_reduction sm_scale window_left logits_soft_cap rope_scale "
        "rope_theta q_data_type kv_data_type o_data_type non_blocking prefix_len_ptr "
        "token_pos_in_items_ptr token_pos_in_items_len max_item_len_ptr seq_lens seq_lens_q "
        "block_tables max_token_per_sequence max_sequence_kv fixed_split_size disable_split_kv "
        "uniform_q_len use_token_head_sf"
    ),
    "append_paged_kv_cache": (
        "append_key append_value batch_indices positions paged_kv_cache kv_indices kv_indptr "
        "kv_last_page_len kv_layout"
    ),
    "apply_rope_with_cos_sin_cache_inplace": (
        "positions query key head_size cos_sin_cache is_neox"
    ),
    "fused_add_rmsnorm": "input residual weight eps enable_pdl",
    "rmsnorm": "input weight eps out enable_pdl",
    "silu_and_mul": "input out enable_pdl",
}
"""Names of arguments in order; those after `*` by name only. A class stands for its `__init__`."""


@dataclass(frozen=True)
class _Plan:
    """What a plan says, by value: what the kernel's schedule was made for."""

    starts: list[int]
    pages: list[list[int]]
    n_kept: list[int]
    shape: tuple[int, int, int, int]
    dtypes: tuple[torch.dtype, torch.dtype]


class _Wrapper:
    """What both wrappers share: planned once, run for each layer."""

    def __init__(self, workspace: Tensor, kv_layout: str, backend: str) -> None:
        expect(kv_layout == "NHD", f"kv_layout {kv_layout!r} is not what the pool has")
        expect(backend in ("auto", "fa2", "fa3"), f"no backend is called {backend!r}")
        expect(workspace.dtype == torch.uint8, "the workspace is counted in bytes")
        expect(workspace.numel() >= LEAST_WORKSPACE, "the workspace is too small")
        expect(workspace.data_ptr() % 16 == 0, "the workspace must be aligned to 16 bytes")
        self._plan: _Plan | None = None
        self._fixed: captured.Fixed | None = None

    def _fix(self, pages: tuple[Tensor | None, ...], starts: Tensor | None) -> None:
        """Take the buffers of a graph, for good."""
        indptr, indices, last_page_len = pages
        if indptr is None or indices is None or last_page_len is None or starts is None:
            raise MisuseError("a graph needs buffers for indptr, indices and last_page_len")
        expect_ints("indptr buffer", indptr, len(last_page_len) + 1)
        expect_ints("qo_indptr buffer", starts, len(last_page_len) + 1)
        expect_ints("indices buffer", indices)
        expect_ints("last_page_len buffer", last_page_len)
        self._fixed, self._starts = (indptr, indices, last_page_len), starts
        self._addresses = [part.data_ptr() for part in (*self._fixed, starts)]
        # The schedule: memory of the wrapper that a plan writes and a replay reads.
        self._planned = torch.full_like(starts, -1)

    def _set(
        self,
        starts: Tensor,
        pages: tuple[Tensor, Tensor, Tensor],
        shape: tuple[int, int, int, int],
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        n_query_heads, n_kv_heads, _, page_size = shape
        expect(not is_capturing(), "plan() cannot be captured")
        expect(n_query_heads % n_kv_heads == 0, f"{n_query_heads} heads over {n_kv_heads}")
        expect(set(dtypes) <= DTYPES, f"no kernel is built for {dtypes}")
        expect_pages(*pages, page_size)
        indptr, indices, last_page_len = pages
        expect(int(indices.min()) >= 0, f"no page is called {int(indices.min())}")
        by_sequence = [part.tolist() for part in indices.split(indptr.diff().tolist())]
        self._plan = _Plan(
            starts=starts.tolist(),
            pages=by_sequence,
            n_kept=((indptr.diff() - 1) * page_size + last_page_len).tolist(),
            shape=shape,
            dtypes=dtypes,
        )
        if self._fixed is not None:
            n_fixed, n_room = len(self._fixed[2]), len(self._fixed[1])
            n_now = len(last_page_len)
            expect(n_now == n_fixed, f"{n_now} sequences; the graph's wrapper has {n_fixed}")
            expect(len(indices) <= n_room, f"{len(indices)} pages; the buffer holds {n_room}")
            self._fixed[0].copy_(indptr)
            self._fixed[1][: len(indices)].copy_(indices)
            self._fixed[2].copy_(last_page_len)
            self._starts.copy_(starts)
            self._planned.copy_(torch.tensor([*self._plan.n_kept, int(starts[-1])]))

    def _run(self, q: Tensor, paged_kv_cache: Tensor, *, is_causal: bool) -> Tensor:
        fixed = self._fixed
        if is_capturing():
            expect(fixed is not None, "a wrapper without fixed buffers cannot be captured")
            assert fixed is not None
            self._expect_planned(q, paged_kv_cache)
            return captured.attend(
                q, paged_kv_cache, fixed, self._starts, self._planned, is_causal=is_causal
            )
        if fixed is not None and self._plan is not None:
            found = [part.data_ptr() for part in (*fixed, self._starts)]
            expect(found == self._addresses, "a buffer of the graph has moved")
            planned = [page for pages in self._plan.pages for page in pages]
            held = fixed[1][: len(planned)].tolist()
            expect(held == planned, "the graph's buffers hold other pages than were planned")
        return self._attend(q, paged_kv_cache, is_causal=is_causal)

    def _expect_planned(self, q: Tensor, paged_kv_cache: Tensor) -> _Plan:
        """The plan, if it is one for these tensors."""
        expect(self._plan is not None, "run() before plan()")
        assert self._plan is not None
        plan = self._plan
        n_query_heads, n_kv_heads, head_dim, page_size = plan.shape
        wanted = (2, page_size, n_kv_heads, head_dim)
        expect_half("q", q)
        expect(
            paged_kv_cache.dim() == 5 and paged_kv_cache.shape[1:] == wanted,
            f"the pool is {tuple(paged_kv_cache.shape)}, planned was (pages, *{wanted})",
        )
        found = (q.dtype, paged_kv_cache.dtype)
        expect(found == plan.dtypes, f"q and KV are {found}, planned was {plan.dtypes}")
        expected = (plan.starts[-1], n_query_heads, head_dim)
        expect(tuple(q.shape) == expected, f"q is {tuple(q.shape)}, planned was {expected}")
        return plan

    def _attend(self, q: Tensor, paged_kv_cache: Tensor, *, is_causal: bool) -> Tensor:
        plan = self._expect_planned(q, paged_kv_cache)
        parts = []
        for idx, pages in enumerate(plan.pages):
            expect(max(pages) < len(paged_kv_cache), f"pages {pages} of {len(paged_kv_cache)}")
            kept = paged_kv_cache[pages].transpose(0, 1).flatten(1, 2)[:, : plan.n_kept[idx]]
            rows = q[plan.starts[idx] : plan.starts[idx + 1]]
            parts.append(_attention(rows, kept[0], kept[1], is_causal=is_causal))
        return torch.cat(parts)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """One new row of each sequence."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        self._use_tensor_cores = use_tensor_cores
        if use_cuda_graph:
            last_page_len = paged_kv_last_page_len_buffer
            n_rows = 0 if last_page_len is None else len(last_page_len)
            starts = torch.arange(n_rows + 1, dtype=torch.int32)
            self._fix((paged_kv_indptr_buffer, paged_kv_indices_buffer, last_page_len), starts)

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        n_rows = len(last_page_len)
        group = num_qo_heads // num_kv_heads
        expect(
            self._use_tensor_cores or group in (1, 2, 3, 4, 8),
            f"groups of {group} heads are not known without tensor cores",
        )
        self._set(
            torch.arange(n_rows + 1),
            (indptr, indices, last_page_len),
            (num_qo_heads, num_kv_heads, head_dim, page_size),
            (q_data_type, kv_data_type or q_data_type),
        )

    def run(self, q: Tensor, paged_kv_cache: Tensor) -> Tensor:
        return self._run(q, paged_kv_cache, is_causal=False)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Several new rows of each sequence, the last of those that its pages hold."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        *,
        backend: str = "auto",
        max_total_num_rows: int | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        self._is_causal = False
        self._most_rows = max_total_num_rows
        expect(use_cuda_graph or max_total_num_rows is None, "a number of rows is of graphs")
        if use_cuda_graph:
            pages = (paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
            self._fix(pages, qo_indptr_buf)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        # Sequences without a new row are known where their number is fixed.
        expect_starts("qo_indptr", qo_indptr, has_empty=self._fixed is not None)
        n_sequences = len(paged_kv_last_page_len)
        expect(len(qo_indptr) == n_sequences + 1, "qo_indptr is of another number of sequences")
        if self._fixed is not None:
            n_rows = int(qo_indptr[-1])
            self._most_rows = self._most_rows or n_rows
            expect(n_rows <= self._most_rows, f"{n_rows} rows; the wrapper has {self._most_rows}")
        self._set(
            qo_indptr,
            (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len),
            (num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            (q_data_type, kv_data_type or q_data_type),
        )
        assert self._plan is not None
        n_new = qo_indptr.diff().tolist()
        pairs = zip(n_new, self._plan.n_kept, strict=True)
        expect(all(new <= kept for new, kept in pairs), "more queries than keys to see")
        self._is_causal = causal

    def run(self, q: Tensor, paged_kv_cache: Tensor) -> Tensor:
        return self._run(q, paged_kv_cache, is_causal=self._is_causal)


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Write rows at their positions; the pages are those that hold them afterwards."""
    expect(kv_layout == "NHD", f"kv_layout {kv_layout!r} is not what the pool has")
    expect(paged_kv_cache.dim() == 5, f"the pool is {tuple(paged_kv_cache.shape)}")
    n_pages, _, page_size, n_heads, head_dim = paged_kv_cache.shape
    n_rows = len(append_key)
    for name, rows in (("key", append_key), ("value", append_value)):
        expect_half(name, rows)
        expect(rows.dtype == paged_kv_cache.dtype, f"{name} is {rows.dtype}, the pool is not")
        wanted = (n_rows, n_heads, head_dim)
        expect(tuple(rows.shape) == wanted, f"{name} is {tuple(rows.shape)}, must be {wanted}")
    expect_ints("batch_indices", batch_indices, n_rows)
    expect_ints("positions", positions, n_rows)
    if is_capturing():
        fixed = (kv_indptr, kv_indices, kv_last_page_len)
        captured.append(
            (append_key, append_value), (batch_indices, positions), paged_kv_cache, fixed
        )
        return
    # The buffers of a graph are longer than what they hold.
    used = kv_indices[: int(kv_indptr[-1])]
    expect_pages(kv_indptr, used, kv_last_page_len, page_size)
    expect_in_pool(used, n_pages)
    n_sequences = len(kv_last_page_len)
    is_known = (batch_indices >= 0) & (batch_indices < n_sequences)
    expect(bool(is_known.all()), f"batch_indices must be in 0..{n_sequences - 1}")
    _expect_at_the_end(batch_indices, positions, kv_indptr, kv_last_page_len, page_size)
    page = used[kv_indptr[batch_indices] + positions // page_size].long()
    offset = (positions % page_size).long()
    place = (page * page_size + offset)[page != DUMMY_PAGE]
    expect(len(place.unique()) == len(place), "two rows of an append go to one place")
    paged_kv_cache[page, 0, offset] = append_key
    paged_kv_cache[page, 1, offset] = append_value


def _expect_at_the_end(
    batch_indices: Tensor, positions: Tensor, indptr: Tensor, last_page_len: Tensor, page_size: int
) -> None:
    n_after = ((indptr.diff() - 1) * page_size + last_page_len).tolist()
    for idx, end in enumerate(n_after):
        own = positions[batch_indices == idx].tolist()
        wanted = list(range(end - len(own), end))
        expect(own == wanted, f"rows at {own} of a sequence that has {end} with them")


def _attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Rows `q` (n, heads, head_dim): the last of those of `k` and `v` (m, KV heads, head_dim)."""
    n_rows, n_kept, group = len(q), len(k), q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), keys) / math.sqrt(q.shape[2])
    if is_causal:
        last = torch.arange(n_kept - n_rows, n_kept).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(n_kept) > last, -math.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(dim=-1), values).to(q.dtype)
