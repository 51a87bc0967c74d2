"""Codebooks of Mimi and its kin, from the sums and usages that training keeps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from models.errors import WeightError

MIN_USAGE: Final = 1e-5
"""Clusters used less count as used so much. Source: the references' epsilon."""


def codebook(level: Mapping[str, Tensor], sum_name: str, source: str) -> Tensor:
    """Entries of a codebook, from the sums and usages that training keeps.

    Raises:
        WeightError: one of the two is missing, they do not go together, or there is more.
    """
    if not {sum_name, "cluster_usage"} <= level.keys():
        raise WeightError(f"{source} lacks {sum_name} or cluster_usage")
    if strays := sorted(level.keys() - {sum_name, "cluster_usage", "initialized"}):
        raise WeightError(f"{source} has what no codebook has: {', '.join(strays)}")
    sums, usage = level[sum_name], level["cluster_usage"]
    if sums.dim() != 2 or usage.shape != sums.shape[:1]:
        shapes = f"{sum_name} {tuple(sums.shape)} and cluster_usage {tuple(usage.shape)}"
        raise WeightError(f"{source} has {shapes}, which are no codebook")
    return sums / usage.clamp(min=MIN_USAGE).unsqueeze(1)


def stacked(tables: Sequence[Tensor], source: str) -> Tensor:
    """Codebooks of a quantizer as one tensor.

    Raises:
        WeightError: they are of several sizes.
    """
    shapes = {tuple(table.shape) for table in tables}
    if len(shapes) > 1:
        raise WeightError(f"{source} has codebooks of several sizes: {sorted(shapes)}")
    return torch.stack(list(tables))
