"""The paged reference against plain attention over whole sequences, and the depth cache."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.base import Piece
from engine.attention.depth import DepthKV
from engine.attention.paged import PagedAttention
from models.spec import BackboneSpec, DepthSpec
from tests.models.toy.reference import FullAttention

CPU = torch.device("cpu")
SPEC = BackboneSpec(
    n_layers=2, n_query_heads=4, n_kv_heads=2, head_dim=8, hidden=24, max_positions=64
)
PAGE_SIZE = 4
TOLERANCE = 1e-5
"""float32 sums of at most 64 terms in another order."""


def make_attention(
    n_sequences: int = 3, n_pages: int = 60, dtype: torch.dtype = torch.float32
) -> PagedAttention:
    return PagedAttention(
        SPEC,
        n_pages=n_pages,
        page_size=PAGE_SIZE,
        n_sequences=n_sequences,
        device=CPU,
        dtype=dtype,
    )


def qkv(n_rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n_rows, SPEC.n_query_heads, SPEC.head_dim, generator=generator),
        torch.randn(n_rows, SPEC.n_kv_heads, SPEC.head_dim, generator=generator),
        torch.randn(n_rows, SPEC.n_kv_heads, SPEC.head_dim, generator=generator),
    )


@given(
    prompt_rows=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    cut=st.integers(1, 7),
    n_decode=st.integers(0, 6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_pieces_and_decode_equal_attention_over_whole_sequences(prompt_rows, cut, n_decode, seed):
    attention = make_attention()
    generator = torch.Generator().manual_seed(seed)
    shuffled = (1 + torch.randperm(59, generator=generator)).tolist()
    n_pages = 8
    for sequence in range(len(prompt_rows)):
        attention.bind(sequence, shuffled[sequence * n_pages : (sequence + 1) * n_pages])
    data = [qkv(n + n_decode, seed + i) for i, n in enumerate(prompt_rows)]
    got: list[list[Tensor]] = [[] for _ in prompt_rows]
    done = [0] * len(prompt_rows)
    while done != prompt_rows:
        pieces, spans, first_row = [], [], 0
        for sequence, total in enumerate(prompt_rows):
            n_rows = min(cut, total - done[sequence])
            if n_rows:
                pieces.append(
                    Piece(
                        sequence=sequence,
                        first_row=first_row,
                        n_rows=n_rows,
                        n_before=done[sequence],
                    )
                )
                spans.append((sequence, slice(done[sequence], done[sequence] + n_rows)))
                first_row += n_rows
                done[sequence] += n_rows
        call = attention.plan_prefill(pieces)
        parts = [torch.cat([data[s][i][span] for s, span in spans]) for i in range(3)]
        out = call(1, *parts)
        for piece, (sequence, _) in zip(pieces, spans, strict=True):
            got[sequence].append(out[piece.first_row : piece.first_row + piece.n_rows])
    for step in range(n_decode):
        n_before = torch.tensor([n + step for n in prompt_rows])
        call = attention.plan_decode(
            torch.arange(len(prompt_rows)), n_before, max(prompt_rows) + step
        )
        rows = [
            torch.stack([data[s][i][n + step] for s, n in enumerate(prompt_rows)]) for i in range(3)
        ]
        out = call(1, *rows)
        for sequence in range(len(prompt_rows)):
            got[sequence].append(out[sequence : sequence + 1])
    for sequence in range(len(prompt_rows)):
        expected = FullAttention()(0, *data[sequence])
        torch.testing.assert_close(
            torch.cat(got[sequence]), expected, atol=TOLERANCE, rtol=TOLERANCE
        )


def test_a_half_size_pool_serves_rows_of_another_type():
    attention = make_attention(dtype=torch.bfloat16)
    attention.bind(0, [1, 2, 3])
    data = qkv(9, 4)
    out = [
        attention.plan_prefill([Piece(sequence=0, first_row=0, n_rows=8, n_before=0)])(
            0, *(part[:8] for part in data)
        ),
        attention.plan_decode(torch.tensor([0]), torch.tensor([8]), 8)(
            0, *(part[8:] for part in data)
        ),
    ]
    got = torch.cat(out)
    assert got.dtype == torch.float32
    # bfloat16 keeps 8 bits: 1/256 of values up to 3, and as much again for the weights.
    torch.testing.assert_close(got, FullAttention()(0, *data), atol=0.03, rtol=0.03)


def test_layers_do_not_share_keys():
    attention = make_attention()
    attention.bind(0, [1])
    call = attention.plan_decode(torch.tensor([0]), torch.tensor([0]), 0)
    first, second = qkv(1, 1), qkv(1, 2)
    call(0, *first)
    call(1, *second)
    again = attention.plan_decode(torch.tensor([0]), torch.tensor([1]), 1)
    third = qkv(1, 3)
    both = [torch.cat(pair) for pair in zip(first, third, strict=True)]
    expected = FullAttention()(0, *both)[-1:]
    torch.testing.assert_close(again(0, *third), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_what_another_stream_left_in_a_page_is_not_seen():
    attention = make_attention()
    attention.bind(0, [5, 6])
    attention.plan_prefill([Piece(sequence=0, first_row=0, n_rows=8, n_before=0)])(0, *qkv(8, 1))
    attention.bind(1, [6])
    own = qkv(1, 2)
    call = attention.plan_decode(torch.tensor([1]), torch.tensor([0]), 0)
    # One row attends to itself alone: the values come back, for each query head of the group.
    expected = own[2].repeat_interleave(2, dim=1)
    torch.testing.assert_close(call(0, *own), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_scrubbed_pages_do_not_pass_on_what_is_not_a_number():
    """A masked value has weight 0, but 0 times NaN is NaN."""
    attention = make_attention()
    attention.bind(0, [5])
    bad = qkv(4, 1)
    bad[2][3] = math.nan
    attention.plan_prefill([Piece(sequence=0, first_row=0, n_rows=4, n_before=0)])(0, *bad)
    attention.bind(1, [5])

    def first_row() -> Tensor:
        return attention.plan_decode(torch.tensor([1]), torch.tensor([0]), 0)(0, *qkv(1, 2))

    assert not bool(first_row().isfinite().all())
    attention.scrub([5])
    assert bool(first_row().isfinite().all())


def test_unbound_table_entries_lead_to_the_dummy_page():
    attention = make_attention()
    attention.bind(0, [3, 4, 5])
    attention.bind(0, [7])
    n_before = torch.tensor([PAGE_SIZE])
    attention.plan_decode(torch.tensor([0]), n_before, PAGE_SIZE)(0, *qkv(1, 1))
    # Were page 4 still in the table, sequence 1 would read that row.
    attention.bind(1, [4])
    own = qkv(1, 2)
    out = attention.plan_decode(torch.tensor([1]), torch.tensor([0]), 0)(0, *own)
    torch.testing.assert_close(
        out, own[2].repeat_interleave(2, dim=1), atol=TOLERANCE, rtol=TOLERANCE
    )


def test_more_pages_than_positions_are_a_broken_invariant():
    with pytest.raises(AssertionError, match="positions"):
        make_attention().bind(0, list(range(1, 18)))


def test_depth_cache_attends_to_this_frame_only():
    spec = DepthSpec(
        first_column="a",
        columns=("b", "c", "d"),
        n_layers=2,
        n_query_heads=4,
        n_kv_heads=2,
        head_dim=8,
        hidden=24,
    )
    cache = DepthKV(spec, 4, CPU, torch.float32)
    for frame in range(2):
        data = [qkv(4, 10 * frame + i) for i in range(2)]
        for position in range(spec.n_positions):
            rows = [torch.stack([data[b][i][position] for b in range(2)]) for i in range(3)]
            out = cache(1, position, *rows)
            for b in range(2):
                upto = [part[: position + 1] for part in data[b]]
                expected = FullAttention()(0, *upto)[-1]
                torch.testing.assert_close(out[b], expected, atol=TOLERANCE, rtol=TOLERANCE)
