"""The layers of FlashInfer that Parley calls, for `flashinfer_double`."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.engine.flashinfer_rules import (
    expect,
    expect_half,
    expect_head_dim,
    is_capturing,
)


def rmsnorm(input: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None) -> Tensor:
    """Of rows, or of heads of rows."""
    expect(input.dim() in (2, 3), f"input is {tuple(input.shape)}, must have 2 or 3 axes")
    _expect_weight(input, weight)
    normed = _normed(input.float(), weight, eps).to(input.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    """`residual += input`, then `input` is that normalised."""
    expect(input.dim() == 2, f"input is {tuple(input.shape)}, must have 2 axes")
    expect(residual.shape == input.shape, "residual is of another shape")
    expect(residual.dtype == input.dtype, "residual is of another type")
    expect(residual.stride(-1) == 1, "the last axis of residual must be contiguous")
    _expect_weight(input, weight)
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(_normed(total, weight, eps))


def silu_and_mul(input: Tensor, out: Tensor | None = None) -> Tensor:
    """The first half through SiLU, times the second."""
    expect_half("input", input)
    expect(input.is_contiguous(), "input must be contiguous")
    expect(input.shape[-1] % 2 == 0, "input has an odd number of channels")
    gate, up = input.float().chunk(2, dim=-1)
    gated = (torch.nn.functional.silu(gate) * up).to(input.dtype)
    return gated if out is None else out.copy_(gated)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """Turn the first channels of each head; the table holds cosines, then sines."""
    expect_head_dim(head_size)
    expect(cos_sin_cache.dtype == torch.float32, "the table must be float32")
    expect(cos_sin_cache.dim() == 2 and cos_sin_cache.is_contiguous(), "the table is no table")
    n_turned = cos_sin_cache.shape[1]
    expect(n_turned <= head_size, f"{n_turned} channels of {head_size} cannot be turned")
    expect(positions.dtype in (torch.int32, torch.int64), "positions are no integers")
    expect(positions.is_contiguous(), "positions must be contiguous")
    is_within = (positions >= 0) & (positions < len(cos_sin_cache))
    expect(
        is_capturing() or bool(is_within.all()),
        f"the table has {len(cos_sin_cache)} positions: {positions}",
    )
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    for name, x in (("query", query), ("key", key)):
        expect_half(name, x)
        expect(x.dim() == 2 and len(x) == len(positions), f"{name} is {tuple(x.shape)}")
        expect(x.shape[1] % head_size == 0, f"{name} is no number of heads")
        turned = x.view(len(x), -1, head_size)[..., :n_turned]
        if is_neox:
            first, second = turned[..., : n_turned // 2], turned[..., n_turned // 2 :]
        else:
            first, second = turned[..., 0::2], turned[..., 1::2]
        a, b = first.float(), second.float()
        first.copy_(a * cos - b * sin)
        second.copy_(b * cos + a * sin)


def _expect_weight(x: Tensor, weight: Tensor) -> None:
    expect_half("input", x)
    expect(weight.dtype == x.dtype, f"weight is {weight.dtype}, input is {x.dtype}")
    expect(tuple(weight.shape) == (x.shape[-1],), f"weight is {tuple(weight.shape)}")


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
