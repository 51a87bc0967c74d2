"""Columns of one id space against the plain form: every shift added before the whole head."""

import pytest
import torch
from torch import Tensor

from models.layers.columns import ColumnHead, ColumnTable

N_IDS, HIDDEN = 40, 12
RANGES = {
    "behind one another": [[(2, 20)], [(20, 28)], [(28, 36)]],
    "with a gap and a blank in front": [[(5, 20)], [(0, 1), (22, 28)], [(0, 1), (28, 34)]],
    "two of one range": [[(3, 9)], [(3, 9)], [(30, 40)]],
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain_logits(weight: Tensor, shifts: Tensor, hidden: Tensor, ranges) -> list[Tensor]:
    """Every column through all of the head; then its ids are picked."""
    picked = []
    for shift, column in zip(shifts, ranges, strict=True):
        logits = (hidden + shift) @ weight.T
        picked.append(torch.cat([logits[:, low:high] for low, high in column], dim=1))
    return picked


@pytest.mark.parametrize("name", list(RANGES))
def test_logits_are_those_of_a_shift_before_the_whole_head(name):
    weight, shifts, hidden = (
        drawn(N_IDS, HIDDEN),
        drawn(3, HIDDEN, seed=1),
        drawn(5, HIDDEN, seed=2),
    )
    head = ColumnHead(weight, shifts, RANGES[name])
    expected = plain_logits(weight, shifts, hidden, RANGES[name])
    # 1e-5: float32, sums in another order.
    torch.testing.assert_close(head(hidden), expected, atol=1e-5, rtol=1e-5)


def test_columns_that_follow_one_another_share_a_product_and_copy_nothing():
    weight = drawn(N_IDS, HIDDEN)
    head = ColumnHead(weight, torch.zeros(3, HIDDEN), RANGES["behind one another"])
    (product,) = head.products
    assert product.weight.data_ptr() == weight[2:].data_ptr()
    assert product.out_features == 34


def test_a_row_is_the_sum_of_its_columns():
    weight, ids = drawn(N_IDS, HIDDEN), torch.tensor([[3, 21, 30], [0, 22, 0], [0, 0, 0]])
    literal = ColumnTable(weight, is_zero_blank=False)
    torch.testing.assert_close(literal(ids), weight[ids].sum(dim=1))


def test_a_zero_of_a_later_column_can_add_nothing_but_the_first_column_s_counts():
    weight, ids = drawn(N_IDS, HIDDEN), torch.tensor([[3, 0, 30], [0, 22, 0], [0, 0, 0]])
    table = ColumnTable(weight, is_zero_blank=True)
    expected = torch.stack([weight[3] + weight[30], weight[0] + weight[22], weight[0]])
    torch.testing.assert_close(table(ids), expected)
