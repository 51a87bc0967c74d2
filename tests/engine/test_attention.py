"""Every backend against plain attention over whole sequences, and the depth cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.base import PADDING, AttentionBackend, Piece
from engine.attention.depth import DepthKV
from engine.attention.flashinfer import FlashInferAttention
from engine.attention.paged import PagedAttention
from models.spec import BackboneSpec, DepthSpec
from tests.engine import flashinfer_double, flashinfer_rules
from tests.models.toy.reference import FullAttention

CPU = torch.device("cpu")
SPEC = BackboneSpec(
    n_layers=2, n_query_heads=4, n_kv_heads=2, head_dim=8, hidden=24, max_positions=64
)
PAGE_SIZE = 4
TOLERANCE = 1e-5
"""float32 sums of at most 64 terms in another order."""


KINDS = ("torch", "flashinfer")


@pytest.fixture(autouse=True, scope="module")
def _wide() -> Iterator[None]:
    """The double takes float32, so that wrong rows are not taken for rounding."""
    with flashinfer_rules.wide():
        yield


@pytest.fixture(params=KINDS)
def attention(request) -> AttentionBackend:
    return make_attention(request.param)


def make_attention(kind: str, dtype: torch.dtype = torch.float32) -> AttentionBackend:
    n_pages, n_sequences = 60, 3
    if kind == "torch":
        return PagedAttention(
            SPEC,
            n_pages=n_pages,
            page_size=PAGE_SIZE,
            n_sequences=n_sequences,
            device=CPU,
            dtype=dtype,
        )
    return FlashInferAttention(
        SPEC,
        n_pages=n_pages,
        page_size=PAGE_SIZE,
        n_sequences=n_sequences,
        device=CPU,
        dtype=dtype,
        kernels=flashinfer_double,
    )


def qkv(n_rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n_rows, SPEC.n_query_heads, SPEC.head_dim, generator=generator),
        torch.randn(n_rows, SPEC.n_kv_heads, SPEC.head_dim, generator=generator),
        torch.randn(n_rows, SPEC.n_kv_heads, SPEC.head_dim, generator=generator),
    )


@pytest.mark.parametrize("kind", KINDS)
@given(
    prompt_rows=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    cut=st.integers(1, 7),
    n_decode=st.integers(0, 6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_pieces_and_decode_equal_attention_over_whole_sequences(
    kind, prompt_rows, cut, n_decode, seed
):
    attention = make_attention(kind)
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
        n_before = np.array([n + step for n in prompt_rows])
        call = attention.plan_decode(np.arange(len(prompt_rows)), n_before)
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_size_pool_serves_rows_of_another_type(kind):
    attention = make_attention(kind, torch.bfloat16)
    attention.bind(0, [1, 2, 3])
    data = qkv(9, 4)
    out = [
        attention.plan_prefill([Piece(sequence=0, first_row=0, n_rows=8, n_before=0)])(
            0, *(part[:8] for part in data)
        ),
        attention.plan_decode(np.array([0]), np.array([8]))(0, *(part[8:] for part in data)),
    ]
    got = torch.cat(out)
    assert got.dtype == torch.float32
    # bfloat16 keeps 8 bits: 1/256 of values up to 3, and as much again for the weights.
    torch.testing.assert_close(got, FullAttention()(0, *data), atol=0.03, rtol=0.03)


def test_layers_do_not_share_keys(attention):
    attention.bind(0, [1])
    call = attention.plan_decode(np.array([0]), np.array([0]))
    first, second = qkv(1, 1), qkv(1, 2)
    call(0, *first)
    call(1, *second)
    again = attention.plan_decode(np.array([0]), np.array([1]))
    third = qkv(1, 3)
    both = [torch.cat(pair) for pair in zip(first, third, strict=True)]
    expected = FullAttention()(0, *both)[-1:]
    torch.testing.assert_close(again(0, *third), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_what_another_stream_left_in_a_page_is_not_seen(attention):
    attention.bind(0, [5, 6])
    attention.plan_prefill([Piece(sequence=0, first_row=0, n_rows=8, n_before=0)])(0, *qkv(8, 1))
    attention.bind(1, [6])
    own = qkv(1, 2)
    call = attention.plan_decode(np.array([1]), np.array([0]))
    # One row attends to itself alone: the values come back, for each query head of the group.
    expected = own[2].repeat_interleave(2, dim=1)
    torch.testing.assert_close(call(0, *own), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_scrubbed_pages_do_not_pass_on_what_is_not_a_number():
    """A masked value has weight 0, but 0 times NaN is NaN."""
    attention = make_attention("torch")
    attention.bind(0, [5])
    bad = qkv(4, 1)
    bad[2][3] = math.nan
    attention.plan_prefill([Piece(sequence=0, first_row=0, n_rows=4, n_before=0)])(0, *bad)
    attention.bind(1, [5])

    def first_row() -> Tensor:
        return attention.plan_decode(np.array([1]), np.array([0]))(0, *qkv(1, 2))

    assert not bool(first_row().isfinite().all())
    attention.scrub([5])
    assert bool(first_row().isfinite().all())


def test_unbound_table_entries_lead_to_the_dummy_page(attention):
    attention.bind(0, [3, 4, 5])
    attention.bind(0, [7])
    attention.bind(1, [4])
    first, second = qkv(1, 2), qkv(1, 3)
    attention.plan_decode(np.array([1]), np.array([0]))(0, *first)
    # Were page 4 still in the table of sequence 0, this row would lie on the first of sequence 1.
    attention.plan_decode(np.array([0]), np.array([PAGE_SIZE]))(0, *qkv(1, 1))
    out = attention.plan_decode(np.array([1]), np.array([1]))(0, *second)
    both = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    expected = FullAttention()(0, *both)[-1:]
    torch.testing.assert_close(out, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_more_pages_than_positions_are_a_broken_invariant(attention):
    with pytest.raises(AssertionError, match="positions"):
        attention.bind(0, list(range(1, 18)))


# Steps in fixed buffers.

BUCKET = np.array([1, PADDING, 0, PADDING])
"""Streams in any order, with padding between them."""
N_BEFORE = np.array([6, 0, 9, 0])
REAL = [0, 2]


def fill(attention: AttentionBackend) -> None:
    """Sequence 0 has 9 rows, sequence 1 has 6."""
    attention.bind(0, [3, 9, 4])
    attention.bind(1, [5, 8])
    for sequence, n_rows in ((0, 9), (1, 6)):
        piece = Piece(sequence=sequence, first_row=0, n_rows=n_rows, n_before=0)
        attention.plan_prefill([piece])(0, *qkv(n_rows, 70 + sequence))


def at(rows: list[int], parts: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return parts[0][rows], parts[1][rows], parts[2][rows]


def test_a_padded_step_equals_the_unpadded_one(attention):
    rows = qkv(4, 80)
    fill(attention)
    expected = attention.plan_decode(BUCKET[REAL], N_BEFORE[REAL])(0, *at(REAL, rows))
    fill(attention)
    padded = attention.plan_decode(BUCKET, N_BEFORE)(0, *rows)
    fill(attention)
    fixed = attention.plan_static(BUCKET, N_BEFORE)(0, *rows)
    for got in (padded, fixed):
        torch.testing.assert_close(got[REAL], expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_padding_leaves_no_trace_even_of_what_is_not_a_number(attention):
    fill(attention)
    spoilt = tuple(part.clone() for part in qkv(4, 81))
    for part in spoilt:
        part[[1, 3]] = math.nan
    attention.plan_static(BUCKET, N_BEFORE)(0, *spoilt)
    # Sequence 0 ends within its third page; what the table says behind it is read behind a mask.
    later = attention.plan_static(BUCKET, N_BEFORE + np.array([1, 0, 1, 0]))
    assert bool(later(0, *qkv(4, 82))[REAL].isfinite().all())


def test_a_static_step_is_one_object_with_buffers_that_stay(attention):
    fill(attention)
    first = attention.plan_static(BUCKET, N_BEFORE)
    rows = qkv(4, 83)
    out = first(0, *rows)
    again = attention.plan_static(BUCKET[::-1].copy(), N_BEFORE[::-1].copy())
    assert again is first
    assert again.key == (4, attention.static_widths[-1])
    turned = again(0, *(part.flip(0) for part in rows))
    torch.testing.assert_close(turned.flip(0)[REAL], out[REAL], atol=TOLERANCE, rtol=TOLERANCE)


def test_batch_sizes_have_steps_of_their_own(attention):
    fill(attention)
    small, large = (attention.plan_static(np.full(n, PADDING), np.zeros(n, int)) for n in (1, 2))
    assert small is not large
    assert (small.key[0], large.key[0]) == (1, 2)


def test_static_widths_rise_to_the_longest_sequence():
    spec = BackboneSpec(
        n_layers=1, n_query_heads=1, n_kv_heads=1, head_dim=8, hidden=8, max_positions=4090
    )
    attention = PagedAttention(
        spec, n_pages=2, page_size=16, n_sequences=1, device=CPU, dtype=torch.float32
    )
    assert attention.static_widths == (256, 1024, 4096)
    for n_before, width in ((0, 256), (255, 256), (256, 1024), (4089, 4096)):
        step = attention.plan_static(np.array([PADDING]), np.array([n_before]))
        assert step.key == (1, width)


def test_rows_of_a_batch_behind_its_pieces_are_padding(attention):
    fill(attention)
    rows = qkv(6, 84)
    piece = Piece(sequence=1, first_row=0, n_rows=2, n_before=6)
    expected = attention.plan_prefill([piece])(0, *(part[:2] for part in rows))
    got = attention.plan_prefill([piece])(0, *rows)
    assert got.shape == rows[0].shape
    torch.testing.assert_close(got[:2], expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert bool((got[2:] == 0).all())


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
