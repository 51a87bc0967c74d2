"""Tables of codebooks: sums over usages, and what is no codebook is named."""

from __future__ import annotations

import pytest
import torch

from models.codecs.codebooks import codebook, stacked
from models.errors import WeightError

SUMS, USAGE = torch.arange(12.0).view(4, 3), torch.tensor([1.0, 2.0, 0.0, 4.0])


def test_entries_are_sums_over_usages():
    held = {"sum": SUMS, "cluster_usage": USAGE, "initialized": torch.ones(1)}
    table = codebook(held, "sum", "file: level 0")
    assert torch.equal(table[1], SUMS[1] / 2)
    assert table.isfinite().all(), "an entry that was never used"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"sum": None}, "level 0 lacks sum or cluster_usage"),
        ({"cluster_usage": None}, "level 0 lacks sum or cluster_usage"),
        ({"stray": USAGE}, "level 0 has what no codebook has: stray"),
        ({"cluster_usage": USAGE[:3]}, r"sum \(4, 3\) and cluster_usage \(3,\)"),
        ({"cluster_usage": USAGE[None]}, r"cluster_usage \(1, 4\)"),
        ({"sum": SUMS[None]}, r"sum \(1, 4, 3\)"),
    ],
)
def test_what_is_no_codebook_is_named(change, shown):
    held = {"sum": SUMS, "cluster_usage": USAGE, **change}
    given = {name: tensor for name, tensor in held.items() if tensor is not None}
    with pytest.raises(WeightError, match=shown):
        codebook(given, "sum", "file: level 0")


def test_codebooks_of_several_sizes_are_named():
    with pytest.raises(WeightError, match=r"file has codebooks of several sizes: .*\(3, 3\)"):
        stacked([SUMS, SUMS[:3]], "file")
