"""A step as FlashInfer runs it: index arrays on the device, and the wrapper planned for them.

Source: FlashInfer 0.7.4, `flashinfer.decode`, `flashinfer.prefill`, `flashinfer.page`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LAYOUT: Final = "NHD"
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferStep:
    """A planned step of `n_rows` rows: store, then run the wrapper that was planned for it."""

    key: tuple[int, int]
    pool: Tensor
    kernels: Any
    wrapper: Any
    rows: Rows
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
class Rows:
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
class Pages:
    """Pages of a batch on the host, as in `Rows`."""

    indptr: Ints
    indices: Ints
    last_page_len: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Prompt pieces on the host: `pages` once their rows are there, `starts` (B + 1,) in the batch.

    `of` (N,) and `positions` (N,) are the pieces of the rows, and their places in the sequences.
    """

    pages: Pages
    starts: Ints
    of: Ints
    positions: Ints


@dataclass(slots=True)
class Planner:
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
class Static:
    """What a batch size keeps for good: its planner, and the step that is captured."""

    planner: Planner
    step: FlashInferStep
