"""Streaming convolution equals torch's padded one, however the input is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.layers.conv import (
    ENDLESS,
    ContextLayout,
    Grid,
    Span,
    StreamConv,
    StreamUpsample,
    keep_context,
    silence,
)

# Float32 sums of some hundred products of unit size, in another order.
ROUNDING = 2e-5


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def span_of(start: list[int], end: list[int], n_valid: list[int] | None = None) -> Span:
    return Span(
        start=torch.tensor(start),
        end=torch.tensor(end),
        n_valid=None if n_valid is None else torch.tensor(n_valid),
    )


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("kernel", [1, 3, 4, 7])
def test_conv_over_a_padded_window_is_torch_conv(kernel: int, dilation: int) -> None:
    weight, bias, x = draw(5, 3, kernel), draw(5, seed=1), draw(2, 20, 3, seed=2)
    conv = StreamConv(weight, bias, dilation)
    expected = functional.conv1d(
        functional.pad(x.transpose(1, 2), (conv.n_context, 0)), weight, bias, dilation=dilation
    )
    window = torch.cat([torch.zeros(2, conv.n_context, 3), x], dim=1)
    torch.testing.assert_close(
        conv(window), expected.transpose(1, 2), rtol=0, atol=ROUNDING, check_stride=False
    )


@pytest.mark.parametrize(("stride", "kernel"), [(8, 16), (4, 8), (2, 3), (3, 3), (5, 11), (4, 2)])
def test_upsample_is_torch_transposed_conv(stride: int, kernel: int) -> None:
    weight, bias, x = draw(3, 5, kernel), draw(5, seed=1), draw(2, 9, 3, seed=2)
    up = StreamUpsample(weight, bias, stride)
    whole = functional.conv_transpose1d(x.transpose(1, 2), weight, bias, stride=stride)
    window = torch.cat([torch.zeros(2, up.n_context, 3), x], dim=1)
    n = min(9 * stride, whole.shape[2])
    torch.testing.assert_close(
        up(window)[:, :n],
        whole.transpose(1, 2)[:, :n],
        rtol=0,
        atol=ROUNDING,
        check_stride=False,
    )


def test_silence_zeroes_what_lies_outside_of_each_stream() -> None:
    x = torch.ones(3, 6, 2)
    quiet = silence(x, span_of([0, 1, 2], [ENDLESS, 3, 3]), Grid(rate=2, delay=3))
    # Row 0 begins at time -3, row 1 at -1 (end 6), row 2 at 1 (end 6).
    assert quiet[:, :, 0].tolist() == [
        [0, 0, 0, 1, 1, 1],
        [0, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0],
    ]


def test_silence_leaves_a_span_without_edges_alone() -> None:
    x = torch.ones(1, 4, 1)
    span = Span(start=torch.tensor([0]), end=torch.tensor([2]), has_edge=False)
    assert silence(x, span, Grid(delay=1)) is x


def test_context_keeps_the_last_positions_that_count() -> None:
    window = torch.arange(8.0).view(1, 8, 1).repeat(3, 1, 1)
    kept = keep_context(window, 2, span_of([0, 0, 0], [9, 9, 9], [0, 1, 3]), rate=2)
    assert kept[:, :, 0].tolist() == [[0, 1], [2, 3], [6, 7]]
    assert keep_context(window, 3, span_of([0] * 3, [9] * 3))[0, :, 0].tolist() == [5, 6, 7]
    assert keep_context(window, 0, span_of([0] * 3, [9] * 3)).shape == (3, 0, 1)


def test_layout_packs_and_unpacks() -> None:
    layout = ContextLayout(((2, 3), (0, 4), (1, 5)))
    packed = draw(4, 11)
    parts = layout.unpack(packed)
    assert layout.size == 11
    assert [tuple(part.shape) for part in parts] == [(4, 2, 3), (4, 0, 4), (4, 1, 5)]
    assert torch.equal(layout.pack(parts), packed)


class Stack:
    """Two same-padded convolutions around a transposed one, streamed and whole."""

    def __init__(self) -> None:
        self.weights = [draw(4, 3, 5), draw(4, 2, 8, seed=1), draw(1, 2, 7, seed=2)]
        self.biases = [draw(4, seed=3), draw(2, seed=4), draw(1, seed=5)]
        self.first = StreamConv(self.weights[0], self.biases[0], 2)
        self.up = StreamUpsample(self.weights[1], self.biases[1], 4)
        self.last = StreamConv(self.weights[2], self.biases[2])
        self.delay = (4 * 4 + 2) + 3
        self.layout = ContextLayout(((8, 3), (1, 4), (6, 2)))

    def whole(self, x: Tensor) -> Tensor:
        h = functional.conv1d(x.T[None], self.weights[0], self.biases[0], padding=4, dilation=2)
        h = functional.conv_transpose1d(h, self.weights[1], self.biases[1], stride=4, padding=2)
        return functional.conv1d(h, self.weights[2], self.biases[2], padding=3)[0, 0]

    def call(self, x: Tensor, packed: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        before = self.layout.unpack(packed)
        grid, windows = Grid(), [torch.cat([before[0], silence(x, span, Grid())], dim=1)]
        grid = grid.later(4)
        h = silence(self.first(windows[0]), span, grid)
        windows.append(torch.cat([before[1], h], dim=1))
        grid = grid.finer(4).later(2)
        h = silence(self.up(windows[1]), span, grid)
        windows.append(torch.cat([before[2], h], dim=1))
        rates = (1, 1, 4)
        kept = [
            keep_context(window, shape[0], span, rate)
            for window, shape, rate in zip(windows, self.layout.shapes, rates, strict=True)
        ]
        return self.last(windows[2])[:, :, 0], self.layout.pack(kept)


@pytest.mark.parametrize("cuts", [[30], [1] * 30, [7, 2, 5, 1, 15]])
def test_streaming_a_stack_equals_padding_it(cuts: list[int]) -> None:
    stack, x = Stack(), draw(24, 3, seed=9)
    fed = torch.cat([x, draw(6, 3, seed=10)])  # Past the end lies garbage, which must not be heard.
    packed, heard, start = torch.zeros(1, stack.layout.size), [], 0
    for n in cuts:
        span = span_of([start], [24])
        out, packed = stack.call(fed[None, start : start + n], packed, span)
        heard.append(out[0])
        start += n
    streamed = torch.cat(heard)[stack.delay : stack.delay + 4 * 24]
    torch.testing.assert_close(streamed, stack.whole(x), rtol=0, atol=ROUNDING)


def test_rows_with_their_own_counts_do_not_touch_each_other() -> None:
    stack = Stack()
    streams = [draw(20, 3, seed=20), draw(13, 3, seed=21)]
    fed = [torch.cat([x, torch.zeros(40, 3)]) for x in streams]
    takes = [[3, 0, 5, 1, 5, 5, 5, 5], [1, 5, 2, 5, 0, 3, 5, 5]]
    packed, place = torch.zeros(2, stack.layout.size), [0, 0]
    heard: list[list[Tensor]] = [[], []]
    for counts in zip(*takes, strict=True):
        x = torch.stack([fed[row][place[row] : place[row] + 5] for row in (0, 1)])
        span = span_of(list(place), [20, 13], list(counts))
        out, packed = stack.call(x, packed, span)
        for row, n in enumerate(counts):
            heard[row].append(out[row, : 4 * n])
            place[row] += n
    for row, x in enumerate(streams):
        streamed = torch.cat(heard[row])[stack.delay : stack.delay + 4 * len(x)]
        torch.testing.assert_close(streamed, stack.whole(x), rtol=0, atol=ROUNDING)
