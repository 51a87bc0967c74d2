"""Captured steps of FlashInfer's double give the numbers of the torch backend, replay after replay.

Several buckets, padding rows, sequences that grow over the ends of pages, pages that move (see
`loadtest.gpu_check.scripted`, which a card runs too); and what would spoil a replay shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.attention import flashinfer, make_pool
from engine.attention.base import PADDING, Piece
from engine.attention.flashinfer import MOST_PIECES, FlashInferAttention
from engine.graphs import Graphs
from loadtest.gpu_check.scripted import N_PAGES, N_SEQUENCES, PAGE_SIZE, SIZES, How, run_script
from loadtest.gpu_check.shapes import Shape
from models.layers import fused
from tests.engine import flashinfer_rules, stand_ins

CPU = torch.device("cpu")
SHAPE = Shape(n_query_heads=4, n_kv_heads=2, head_dim=8)
CLOSE = 1e-5
"""float32, in another order of sums; a wrong index moves numbers near 1 by more than 1e-2."""


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    with stand_ins.used(), flashinfer_rules.wide(), torch.inference_mode():
        yield


def _pool(backend: str) -> Any:
    return make_pool(
        SHAPE.spec,
        backend,
        n_pages=N_PAGES,
        page_size=PAGE_SIZE,
        n_sequences=N_SEQUENCES,
        device=CPU,
        dtype=torch.float32,
    )


def hidden(backend: str, how: How) -> Tensor:
    fused.switch_on(None)
    pool = _pool(backend)
    graphs = Graphs(stand_ins.recorder) if how == "graph" else None
    return run_script(SHAPE.decoder(), pool, how, graphs)


def largest_difference() -> float:
    """Of replayed steps on the double and plain ones on the torch backend."""
    found = (hidden("flashinfer", "graph") - hidden("torch", "plain")).abs().max().item()
    return found if found == found else float("inf")


@pytest.mark.parametrize("backend", ["torch", "flashinfer"])
@pytest.mark.parametrize("how", ["plain", "static", "graph"])
def test_all_ways_to_run_a_row_give_the_same(backend, how):
    torch.testing.assert_close(
        hidden(backend, how), hidden("torch", "plain"), atol=CLOSE, rtol=0, equal_nan=False
    )


def every_third(call: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but each third time `instead` of it, after the recordings."""
    n_calls = 0

    def called(*args: Any, **named: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        return (instead if n_calls > 6 and n_calls % 3 == 0 else call)(*args, **named)

    return called


def test_a_plan_that_is_left_out_shows(monkeypatch):
    plan = FlashInferAttention._plan_rows
    skipped = every_third(plan, lambda *args: None)
    monkeypatch.setattr(FlashInferAttention, "_plan_rows", lambda *args: skipped(*args))
    assert largest_difference() > 1e-2


def test_the_plan_of_another_bucket_shows(monkeypatch):
    plan = FlashInferAttention.plan_static

    def of_a_larger_bucket(self: FlashInferAttention, sequences: Any, n_before: Any) -> Any:
        n_free = 4 - len(sequences)
        if not n_free or 4 not in self._static:
            return plan(self, sequences, n_before)
        padded = np.pad(sequences, (0, n_free), constant_values=PADDING)
        plan(self, padded, np.pad(n_before, (0, n_free)))
        return self._static[len(sequences)].step

    monkeypatch.setattr(FlashInferAttention, "plan_static", of_a_larger_bucket)
    assert largest_difference() > 1e-2


def test_a_batch_in_the_wrapper_of_another_size_is_refused():
    pool = _pool("flashinfer")
    pool.plan_static(np.array([0, 1]), np.array([3, 4]))
    static = pool._static[2]
    pages = pool._pages_of(np.array([0]), np.array([4]))
    with pytest.raises(flashinfer_rules.MisuseError, match="1 sequences; the graph"):
        pool._plan_rows(static.planner, pages, torch.from_numpy(pages.indices))


@pytest.mark.parametrize("name", ["indptr", "indices", "last_page_len"])
def test_a_buffer_that_keeps_what_was_planned_before_shows(name, monkeypatch):
    """What the kernel reads is what lies there, and not what the host knows."""
    plan = FlashInferAttention.plan_static

    def planned(self: FlashInferAttention, sequences: Any, n_before: Any) -> Any:
        static = self._static.get(len(sequences))
        before = getattr(static.step.rows, name).clone() if static else None
        step = plan(self, sequences, n_before)
        if before is not None:
            getattr(step.rows, name).copy_(before)
        return step

    monkeypatch.setattr(FlashInferAttention, "plan_static", planned)
    assert largest_difference() > 1e-2


def test_positions_of_an_earlier_step_show(monkeypatch):
    """New rows would be stored where an earlier row lies."""
    plan = FlashInferAttention.plan_static

    def planned(self: FlashInferAttention, sequences: Any, n_before: Any) -> Any:
        step = plan(self, sequences, n_before)
        step.rows.positions.sub_(1).clamp_(min=0)
        return step

    monkeypatch.setattr(FlashInferAttention, "plan_static", planned)
    assert largest_difference() > 1e-2


def test_pages_that_were_not_bound_anew_show(monkeypatch):
    bind = FlashInferAttention.bind
    once: set[int] = set()

    def bind_once(self: FlashInferAttention, sequence: int, pages: Any) -> None:
        if sequence not in once:
            once.add(sequence)
            bind(self, sequence, pages)
        else:
            self._tables[sequence] = self._tables[(sequence + 1) % N_SEQUENCES]

    monkeypatch.setattr(FlashInferAttention, "bind", bind_once)
    assert largest_difference() > 1e-2


def test_a_prompt_pass_in_the_plan_of_another_shows(monkeypatch):
    plan = FlashInferAttention._plan_pieces

    def first_pass_only(
        self: FlashInferAttention, planner: Any, laid: Any, indices: Tensor
    ) -> None:
        if laid.positions[0] == 0:
            plan(self, planner, laid, indices)

    monkeypatch.setattr(FlashInferAttention, "_plan_pieces", first_pass_only)
    assert largest_difference() > 1e-2


def test_prompt_rows_that_go_where_an_earlier_pass_put_its_own_show(monkeypatch):
    plan = FlashInferAttention.plan_static_prefill

    def planned(self: FlashInferAttention, pieces: Any, n_rows: int) -> Any:
        step = plan(self, pieces, n_rows)
        step.rows.batch_indices.zero_()
        return step

    monkeypatch.setattr(FlashInferAttention, "plan_static_prefill", planned)
    assert largest_difference() > 1e-2


def test_a_pass_of_more_pieces_than_its_buffers_hold_is_not_planned_in_them():
    pool = _pool("flashinfer")

    def pieces(n_pieces: int) -> list[Piece]:
        return [Piece(sequence=0, first_row=n, n_rows=1, n_before=n) for n in range(n_pieces)]

    assert pool.plan_static_prefill(pieces(MOST_PIECES), 16) is not None
    assert pool.plan_static_prefill(pieces(MOST_PIECES - 1), 32) is not None
    assert pool.plan_static_prefill(pieces(MOST_PIECES), 32) is None, "nor is there one for padding"


def test_a_plan_inside_a_recording_is_refused(monkeypatch):
    step = flashinfer.FlashInferStep.__call__

    def planning(self: Any, layer_idx: int, *rows: Tensor) -> Tensor:
        if flashinfer_rules.is_capturing() and self.n_rows in SIZES:
            rows = self.rows
            self.wrapper.plan(rows.indptr, rows.indices, rows.last_page_len, 4, 2, 8, PAGE_SIZE)
        return step(self, layer_idx, *rows)

    monkeypatch.setattr(flashinfer.FlashInferStep, "__call__", planning)
    with pytest.raises(Exception, match=r"plan\(\) cannot be captured"):
        hidden("flashinfer", "graph")
