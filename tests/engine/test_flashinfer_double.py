"""The double of FlashInfer refuses what the real one would refuse or read as a wild address."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine import flashinfer_double as double
from tests.engine.flashinfer_double import MisuseError

N_PAGES, PAGE_SIZE, N_HEADS, N_KV_HEADS, HEAD_DIM = 6, 4, 4, 2, 8
SHAPE = (N_HEADS, N_KV_HEADS, HEAD_DIM, PAGE_SIZE)
HALF = torch.bfloat16


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def workspace() -> Tensor:
    return torch.zeros(128 * 1024 * 1024, dtype=torch.uint8)


def half(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(HALF)


def pool() -> Tensor:
    return half(N_PAGES, 2, PAGE_SIZE, N_KV_HEADS, HEAD_DIM)


# Two sequences: 6 rows on pages 3 and 5, 2 rows on page 2.
INDPTR, INDICES, LAST = (0, 2, 3), (3, 5, 2), (2, 2)


def pages(**other: Tensor) -> dict[str, Tensor]:
    given = {"indptr": ints(*INDPTR), "indices": ints(*INDICES), "last_page_len": ints(*LAST)}
    return given | other


def graph_wrapper(n_rows: int = 2, n_room: int = 8) -> double.BatchDecodeWithPagedKVCacheWrapper:
    return double.BatchDecodeWithPagedKVCacheWrapper(
        workspace(),
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=ints(*range(n_rows + 1)),
        paged_kv_indices_buffer=ints(*[0] * n_room),
        paged_kv_last_page_len_buffer=ints(*[1] * n_rows),
        backend="fa2",
    )


def planned(
    wrapper: double.BatchDecodeWithPagedKVCacheWrapper | None = None,
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = HALF,
    **other: Tensor,
) -> double.BatchDecodeWithPagedKVCacheWrapper:
    if wrapper is None:
        wrapper = double.BatchDecodeWithPagedKVCacheWrapper(workspace(), use_tensor_cores=True)
    wrapper.plan(**pages(**other), **_named(shape), q_data_type=dtype)
    return wrapper


def _named(shape: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(("num_qo_heads", "num_kv_heads", "head_dim", "page_size"), shape, strict=True))


def prefill(qo_indptr: Tensor, **other: Tensor) -> double.BatchPrefillWithPagedKVCacheWrapper:
    wrapper = double.BatchPrefillWithPagedKVCacheWrapper(workspace(), backend="fa2")
    given = pages(**other)
    wrapper.plan(qo_indptr, *given.values(), *SHAPE, causal=True, q_data_type=HALF)
    return wrapper


def graph_prefill(*starts: int, most: int = 6, n_sequences: int = 2) -> None:
    """A pass over prompts whose numbers of sequences and rows are fixed."""
    wrapper = double.BatchPrefillWithPagedKVCacheWrapper(
        workspace(),
        use_cuda_graph=True,
        qo_indptr_buf=ints(*range(n_sequences + 1)),
        paged_kv_indptr_buf=ints(*range(n_sequences + 1)),
        paged_kv_indices_buf=ints(*[0] * 8),
        paged_kv_last_page_len_buf=ints(*[1] * n_sequences),
        backend="fa2",
        max_total_num_rows=most,
    )
    wrapper.plan(ints(*starts), *pages().values(), *SHAPE, causal=True, q_data_type=HALF)


def append(n_rows: int = 2, **other: Any) -> None:
    """Row 5 of the first sequence, row 1 of the second."""
    given: dict[str, Any] = {
        "append_key": half(n_rows, N_KV_HEADS, HEAD_DIM),
        "append_value": half(n_rows, N_KV_HEADS, HEAD_DIM),
        "batch_indices": ints(0, 1),
        "positions": ints(5, 1),
        "paged_kv_cache": pool(),
        "kv_indices": ints(*INDICES),
        "kv_indptr": ints(*INDPTR),
        "kv_last_page_len": ints(*LAST),
    }
    double.append_paged_kv_cache(**(given | other))


Q = half(2, N_HEADS, HEAD_DIM)

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "indptr of int64": (lambda: planned(indptr=torch.tensor(INDPTR)), "int32"),
    "indices of int64": (lambda: planned(indices=torch.tensor(INDICES)), "int32"),
    "indices with gaps in memory": (
        lambda: planned(indices=ints(3, 0, 5, 0, 2)[::2]),
        "contiguous",
    ),
    "indptr that falls": (lambda: planned(indptr=ints(0, 3, 2)), "does not rise"),
    "indptr from 1": (lambda: planned(indptr=ints(1, 2, 3)), "begin at 0"),
    "a sequence without pages": (lambda: planned(indptr=ints(0, 3, 3)), "does not rise"),
    "fewer indices than indptr says": (lambda: planned(indices=ints(3, 5)), "must have 3"),
    "last page empty": (lambda: planned(last_page_len=ints(0, 2)), "1..4"),
    "last page too full": (lambda: planned(last_page_len=ints(2, 5)), "1..4"),
    "a length too many": (lambda: planned(last_page_len=ints(2, 2, 2)), "must have 2"),
    "heads that do not share evenly": (lambda: planned(shape=(4, 3, 8, 4)), "4 heads over 3"),
    "float32": (lambda: planned(dtype=torch.float32), "no kernel"),
    "an unknown layout": (
        lambda: double.BatchDecodeWithPagedKVCacheWrapper(workspace(), "HND"),
        "layout",
    ),
    "a small workspace": (
        lambda: double.BatchDecodeWithPagedKVCacheWrapper(workspace()[:1024]),
        "too small",
    ),
    "a graph without buffers": (
        lambda: double.BatchDecodeWithPagedKVCacheWrapper(workspace(), use_cuda_graph=True),
        "buffers",
    ),
    "a group that needs tensor cores": (
        lambda: planned(
            double.BatchDecodeWithPagedKVCacheWrapper(workspace()), shape=(14, 2, 8, 4)
        ),
        "groups of 7",
    ),
    "run before plan": (
        lambda: double.BatchDecodeWithPagedKVCacheWrapper(workspace()).run(Q, pool()),
        "before plan",
    ),
    "a batch of another size under a graph": (lambda: planned(graph_wrapper(n_rows=3)), "has 3"),
    "more pages than the graph's buffer": (lambda: planned(graph_wrapper(n_room=2)), "holds 2"),
    "a page outside of the pool": (
        lambda: planned(indices=ints(3, N_PAGES, 2)).run(Q, pool()),
        "of 6",
    ),
    "a page before the pool": (lambda: planned(indices=ints(3, -1, 2)), "called -1"),
    "a query too many": (lambda: planned().run(half(3, N_HEADS, HEAD_DIM), pool()), "q is"),
    "queries of other heads": (lambda: planned().run(half(2, 2, HEAD_DIM), pool()), "q is"),
    "queries of another type": (lambda: planned().run(Q.half(), pool()), "planned was"),
    "a pool of another type": (lambda: planned().run(Q, pool().half()), "planned was"),
    "a pool of other pages": (lambda: planned().run(Q, pool()[:, :, :2]), "planned was"),
    "a pool without values": (lambda: planned().run(Q, pool()[:, 0]), "planned was"),
    "more queries than keys": (lambda: prefill(ints(0, 7, 8)), "more queries"),
    "a piece without rows": (lambda: prefill(ints(0, 0, 2)), "does not rise"),
    "pieces of other sequences": (lambda: prefill(ints(0, 2)), "number of sequences"),
    "fewer prompt rows than planned": (lambda: prefill(ints(0, 2, 3)).run(Q, pool()), "q is"),
    "more prompt rows than a graph's wrapper holds": (
        lambda: graph_prefill(0, 5, 7),
        "7 rows; the wrapper has 6",
    ),
    "a graph's prompt pass of other sequences": (
        lambda: graph_prefill(0, 2, 4, n_sequences=3),
        "has 3",
    ),
    "a graph's prompt pass with starts that fall": (lambda: graph_prefill(0, 5, 3), "not rise"),
    "an append before the end": (lambda: append(positions=ints(4, 1)), "rows at"),
    "an append behind the end": (lambda: append(positions=ints(6, 1)), "rows at"),
    "an append to no sequence": (lambda: append(batch_indices=ints(0, 2)), "0..1"),
    "an append outside of the pool": (lambda: append(kv_indices=ints(3, 9, 2)), "0..5"),
    "an append of other heads": (lambda: append(append_key=half(2, 1, HEAD_DIM)), "must be"),
    "an append of another type": (lambda: append(append_value=half(2, 2, 8).half()), "the pool"),
    "positions of int64": (lambda: append(positions=torch.tensor([5, 1])), "int32"),
    "a position too few": (lambda: append(positions=ints(5)), "must have 2"),
    "two sequences on one page": (
        lambda: append(kv_indices=ints(3, 5, 5), positions=ints(5, 1)),
        "one place",
    ),
    "a norm of another width": (lambda: double.rmsnorm(half(2, 8), half(4)), "weight"),
    "a norm of another type": (lambda: double.rmsnorm(half(2, 8), half(8).float()), "weight"),
    "a norm of four axes": (lambda: double.rmsnorm(half(2, 2, 2, 8), half(8)), "2 or 3"),
    "a sum of other shapes": (
        lambda: double.fused_add_rmsnorm(half(2, 8), half(3, 8), half(8)),
        "shape",
    ),
    "an odd gate": (lambda: double.silu_and_mul(half(2, 7)), "odd"),
    "a gate with gaps": (lambda: double.silu_and_mul(half(8, 2).T), "contiguous"),
    "a head size without a kernel": (lambda: rope(head_size=80), "80 channels"),
    "a half-precision table": (lambda: rope(table=half(9, 64)), "float32"),
    "a position past the table": (lambda: rope(positions=torch.tensor([0, 9])), "9 positions"),
    "more turned than there are": (lambda: rope(table=torch.zeros(9, 66)), "66 channels"),
}


def rope(head_size: int = 64, table: Tensor | None = None, positions: Tensor | None = None) -> None:
    double.apply_rope_with_cos_sin_cache_inplace(
        torch.tensor([0, 8]) if positions is None else positions,
        half(2, head_size),
        half(2, 2 * head_size),
        head_size,
        torch.zeros(9, head_size) if table is None else table,
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_refused(name):
    call, message = WRONG[name]
    with pytest.raises(MisuseError, match=message):
        call()


def test_right_use_is_not():
    planned().run(Q, pool())
    planned(graph_wrapper()).run(Q, pool())
    prefill(ints(0, 3, 4)).run(half(4, N_HEADS, HEAD_DIM), pool())
    # Under a graph a sequence may have no new row.
    graph_prefill(0, 6, 6)
    append()
    # Padding rows may all write to the page that nobody reads.
    append(kv_indptr=ints(0, 1, 2), kv_indices=ints(0, 0), positions=ints(1, 1))
    rope()


def test_a_plan_cannot_be_captured_but_a_run_can():
    wrapper = planned(graph_wrapper())
    with double.capture():
        wrapper.run(Q, pool())
        with pytest.raises(MisuseError, match="captured"):
            planned(wrapper)


def test_a_graph_reads_its_buffers_which_must_be_those_that_were_planned():
    wrapper = graph_wrapper()
    planned(wrapper)
    assert wrapper._fixed is not None
    wrapper._fixed[1][0] = 4
    with pytest.raises(MisuseError, match="other pages"):
        wrapper.run(Q, pool())
    planned(wrapper).run(Q, pool())


def parameters(call: Callable[..., object]) -> list[inspect.Parameter]:
    found = inspect.signature(call).parameters.values()
    return [one for one in found if one.name != "self"]


@pytest.mark.parametrize("name", double.SIGNATURES)
def test_its_arguments_are_those_of_the_real_package(name):
    """By position they stand where the real ones do; by name they exist there."""
    call: Any = double
    for part in name.split("."):
        call = getattr(call, part)
    positional, _, named = double.SIGNATURES[name].partition(" * ")
    real, known = positional.split(), positional.split() + named.split()
    ours = parameters(call)
    by_place = [one.name for one in ours if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert by_place == real[: len(by_place)]
    assert {one.name for one in ours} <= set(known)
