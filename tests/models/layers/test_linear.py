"""Packed linear layers give what plain ones give, and only replace what they should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models.codecs.snake import Pointwise, as_channels_last
from models.layers.linear import PackedLinear, linear_of, pack

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Of values around 1: sums of 96 products in another order; bfloat16 keeps 8 bits."""


class Pair(nn.Module):
    """Two layers, one of them under two names, and a table that a layer is tied to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(96, 64)
        self.again = self.first
        self.table = nn.Embedding(50, 96)
        self.tied = linear_of(self.table.weight)


def rows(n: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(n, 96, generator=torch.Generator().manual_seed(n)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 8, 33])
@torch.inference_mode()
def test_packed_layers_give_what_plain_ones_give(n_rows, dtype):
    torch.manual_seed(0)
    plain, packed = Pair().to(dtype), Pair().to(dtype)
    packed.load_state_dict(plain.state_dict())
    n_packed = pack(packed, smallest=1)
    if n_packed == 0:
        pytest.skip(f"this machine has no packed kernel for {dtype}")
    x = rows(n_rows, dtype)
    for name in ("first", "tied"):
        wanted, got = getattr(plain, name)(x), getattr(packed, name)(x)
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE[dtype])


@torch.inference_mode()
def test_a_layer_of_two_names_is_packed_once_and_a_table_stays():
    model = Pair()
    table = model.table.weight.clone()
    if pack(model, smallest=1) == 0:
        pytest.skip("this machine has no packed kernel for float32")
    assert isinstance(model.first, PackedLinear)
    assert model.first is model.again
    assert torch.equal(model.table.weight, table)


def test_small_matrices_and_other_precisions_stay():
    model = Pair()
    assert pack(model) == 0
    assert pack(Pair().to(torch.float64), smallest=1) == 0
    assert type(model.first) is nn.Linear


def test_a_layer_of_a_matrix_shares_its_memory():
    weight, bias = torch.randn(3, 5), torch.randn(3)
    layer = linear_of(weight, bias)
    assert layer.weight.data_ptr() == weight.data_ptr()
    x = torch.randn(2, 5)
    torch.testing.assert_close(layer(x), x @ weight.T + bias)
    assert linear_of(weight).bias is None


@torch.inference_mode()
def test_a_convolution_over_single_positions_is_packed_too():
    torch.manual_seed(0)
    model = nn.Sequential(Pointwise(24, 16), Pointwise(16, 8, has_bias=False))
    x = as_channels_last(torch.randn(2, 24, 40))
    wanted = model(x)
    if pack(model) == 0:
        pytest.skip("this machine has no packed kernel for float32")
    assert pack(model) == 0, "once is enough"
    got = model(x)
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE[torch.float32])
