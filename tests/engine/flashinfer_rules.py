"""What FlashInfer's kernels ask of their arguments, for `flashinfer_double`: or `MisuseError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DUMMY_PAGE = 0
DTYPES = {torch.float16, torch.bfloat16}
"""What the kernels compute in."""
HEAD_DIMS = (64, 128, 256, 512)
"""Head sizes of the rotary kernel; any goes where it is `wide`."""
LEAST_WORKSPACE = 16 * 1024 * 1024


class MisuseError(Exception):
    """A call that the real package would refuse, or answer with garbage."""


@dataclass
class _Capture:
    is_on: bool = False


_capture = _Capture()


@contextlib.contextmanager
def capture() -> Iterator[None]:
    """What a CUDA graph is captured under: nothing may be planned here, and no value is looked at.

    Addresses, shapes and types are asked for all the same.
    """
    _capture.is_on = True
    try:
        yield
    finally:
        _capture.is_on = False


def is_capturing() -> bool:
    return _capture.is_on


def expect(is_right: bool, message: str) -> None:
    if not is_right:
        raise MisuseError(message)


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """Take float32 and small heads too, which no kernel does: to compare indices, not rounding."""
    DTYPES.add(torch.float32)
    try:
        yield
    finally:
        DTYPES.discard(torch.float32)


def expect_ints(name: str, x: Tensor, length: int | None = None) -> None:
    expect(x.dtype == torch.int32, f"{name} is {x.dtype}, must be int32")
    expect(x.dim() == 1 and x.is_contiguous(), f"{name} must be one contiguous row")
    expect(length is None or len(x) == length, f"{name} has {len(x)} entries, must have {length}")


def expect_starts(name: str, indptr: Tensor, *, has_empty: bool = False) -> None:
    """Starts of runs from 0; none is empty, or some may be."""
    expect_ints(name, indptr)
    expect(len(indptr) >= 2, f"{name} is of no sequence")
    expect(int(indptr[0]) == 0, f"{name} does not begin at 0")
    n_least = 0 if has_empty else 1
    is_right = bool((indptr.diff() >= n_least).all())
    expect(is_right, f"{name} does not rise: a sequence has nothing")


def expect_pages(indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> None:
    expect_starts("indptr", indptr)
    expect_ints("indices", indices, int(indptr[-1]))
    expect_ints("last_page_len", last_page_len, len(indptr) - 1)
    is_within = (last_page_len >= 1) & (last_page_len <= page_size)
    expect(bool(is_within.all()), f"last_page_len must be in 1..{page_size}: {last_page_len}")


def expect_in_pool(indices: Tensor, n_pages: int) -> None:
    is_within = (indices >= 0) & (indices < n_pages)
    expect(bool(is_within.all()), f"indices must be in 0..{n_pages - 1}: {indices}")


def expect_head_dim(head_dim: int) -> None:
    is_known = head_dim in HEAD_DIMS or torch.float32 in DTYPES
    expect(is_known, f"heads of {head_dim} channels are not known")


def expect_half(name: str, x: Tensor) -> None:
    expect(x.dtype in DTYPES, f"{name} is {x.dtype}, which no kernel is built for")
    expect(x.stride(-1) == 1, f"the last axis of {name} must be contiguous")
