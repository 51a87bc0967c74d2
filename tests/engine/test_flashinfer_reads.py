"""What FlashInfer's backend does on the host between steps: it reads nothing of the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.attention.base import PADDING, Piece
from engine.attention.flashinfer import FlashInferAttention
from models.spec import BackboneSpec

SPEC = BackboneSpec(
    n_layers=2, n_query_heads=4, n_kv_heads=2, head_dim=8, hidden=24, max_positions=64
)
N_ROWS = {"decode": 3, "static": 3, "prefill": 4, "static prefill": 16}
"""Of a batch; the last of a prompt's is padding."""
HOST_READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.unique_dim.default,
)


class Silent:
    """Kernels that do nothing and read nothing."""

    class _Wrapper:
        def __init__(self, *args: object, **named: object) -> None:
            pass

        def plan(self, *args: object, **named: object) -> None:
            pass

        def run(self, q: Tensor, pool: Tensor) -> Tensor:
            return torch.zeros_like(q)

    BatchDecodeWithPagedKVCacheWrapper = _Wrapper
    BatchPrefillWithPagedKVCacheWrapper = _Wrapper

    @staticmethod
    def append_paged_kv_cache(*args: object) -> None:
        pass


class ForbidReads(TorchDispatchMode):
    """Operations whose result or shape the host must wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in HOST_READS, f"the host reads: {func}"
        by_mask = func is torch.ops.aten.index.Tensor and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        assert not by_mask, "the host reads: how much a mask takes"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def attention() -> FlashInferAttention:
    return FlashInferAttention(
        SPEC,
        n_pages=20,
        page_size=4,
        n_sequences=3,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        kernels=Silent,
    )


def rows(n_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    n_heads = (SPEC.n_query_heads, SPEC.n_kv_heads, SPEC.n_kv_heads)
    q, k, v = (torch.zeros(n_rows, n, SPEC.head_dim) for n in n_heads)
    return q, k, v


@pytest.mark.parametrize("kind", N_ROWS)
def test_a_step_reads_nothing(attention, kind, monkeypatch):
    sequences, n_before = np.array([1, PADDING, 0]), np.array([6, 0, 9])
    pieces = [Piece(sequence=1, first_row=0, n_rows=3, n_before=6)]

    def step() -> None:
        attention.bind(0, [3, 9, 4])
        attention.bind(1, [5, 8, 2])
        if kind == "prefill":
            plan = attention.plan_prefill(pieces)
        elif kind == "static prefill":
            plan = attention.plan_static_prefill(pieces, 16)
        elif kind == "decode":
            plan = attention.plan_decode(sequences, n_before)
        else:
            plan = attention.plan_static(sequences, n_before)
        for layer_idx in range(SPEC.n_layers):
            plan(layer_idx, *rows(N_ROWS[kind]))
        attention.scrub([7])

    step()

    def refuse(*args: object) -> None:
        raise AssertionError("the host reads a tensor")

    for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__index__"):
        monkeypatch.setattr(Tensor, name, refuse)
    with ForbidReads():
        step()
