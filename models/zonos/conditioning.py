"""The rows before the speech: one for each setting, one for each phoneme. Worker threads.

Source: Zyphra/Zonos, `conditioning.py` (Apache-2.0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from models.errors import WeightError
from models.zonos.config import Conditioner, ZonosConfig
from models.zonos.phonemes import N_IDS

Told = Mapping[str, Sequence[float] | None]
"""What is said of each setting, by name; None or absent: nothing."""


class PrefixRows(nn.Module):
    """All conditioners of a checkpoint.

    Args:
        config: of the checkpoint.

    Raises:
        WeightError: a conditioner is of a kind that is not known here.
    """

    def __init__(self, config: ZonosConfig) -> None:
        super().__init__()
        hidden = config.decoder.backbone.hidden
        self.known = config.conditioners
        self.conditioners = nn.ModuleList(_module(one, hidden) for one in config.conditioners)
        self.norm = nn.LayerNorm(hidden)
        self.project = _projection(config.projection, hidden, hidden)

    def forward(self, told: Told) -> Tensor:
        """Rows `(T, hidden)`. `told` says something of every setting that cannot be absent."""
        rows = [
            one(told.get(known.name))
            for known, one in zip(self.known, self.conditioners, strict=True)
        ]
        out: Tensor = self.norm(self.project(torch.cat(rows)))
        return out

    def without_settings(self, told: Told) -> dict[str, Sequence[float] | None]:
        """What the guidance companion is told: only what cannot be absent."""
        return {one.name: told.get(one.name) for one in self.known if not one.may_be_absent}


class _Rows(nn.Module):
    """One conditioner."""

    def __init__(self, known: Conditioner, hidden: int, width: int) -> None:
        super().__init__()
        self.known = known
        self.project = _projection(known.projection, width, hidden)
        self.uncond_vector = nn.Parameter(torch.zeros(hidden)) if known.may_be_absent else None

    def forward(self, values: Sequence[float] | None) -> Tensor:
        if values is None:
            assert self.uncond_vector is not None, f"nothing is said of {self.known.name}"
            return self.uncond_vector.unsqueeze(0)
        rows: Tensor = self.project(self.rows_of(values))
        return rows

    def rows_of(self, values: Sequence[float]) -> Tensor:
        """Rows `(T, width)` before the projection."""
        raise NotImplementedError


class _Phonemes(_Rows):
    def __init__(self, known: Conditioner, hidden: int) -> None:
        super().__init__(known, hidden, hidden)
        self.phoneme_embedder = nn.Embedding(N_IDS, hidden)

    def rows_of(self, values: Sequence[float]) -> Tensor:
        table = self.phoneme_embedder
        ids = torch.tensor(values, dtype=torch.int64, device=table.weight.device)
        rows: Tensor = table(ids)
        return rows


class _Fourier(_Rows):
    """Numbers as waves of random frequencies. Source: Tancik et al. 2020, equation 5."""

    weight: Tensor

    def __init__(self, known: Conditioner, hidden: int) -> None:
        super().__init__(known, hidden, hidden)
        self.register_buffer("weight", torch.zeros(hidden // 2, known.n_inputs))

    def rows_of(self, values: Sequence[float]) -> Tensor:
        known = self.known
        x = (torch.tensor([list(values)]) - known.least) / (known.most - known.least)
        angles = 2 * math.pi * x.to(self.weight) @ self.weight.T
        return torch.cat([angles.cos(), angles.sin()], dim=1)


class _Integer(_Rows):
    def __init__(self, known: Conditioner, hidden: int) -> None:
        super().__init__(known, hidden, hidden)
        self.int_embedder = nn.Embedding(round(known.most - known.least) + 1, hidden)

    def rows_of(self, values: Sequence[float]) -> Tensor:
        places = [round(value - self.known.least) for value in values]
        at = torch.tensor(places, device=self.int_embedder.weight.device)
        rows: Tensor = self.int_embedder(at)
        return rows


class _Vector(_Rows):
    def __init__(self, known: Conditioner, hidden: int) -> None:
        super().__init__(known, hidden, known.width or hidden)

    def rows_of(self, values: Sequence[float]) -> Tensor:
        rows = torch.tensor([list(values)])
        weight = next(self.parameters(), rows)
        return rows.to(weight)


_KINDS = {
    "EspeakPhonemeConditioner": _Phonemes,
    "FourierConditioner": _Fourier,
    "IntegerConditioner": _Integer,
    "PassthroughConditioner": _Vector,
}


def _module(known: Conditioner, hidden: int) -> _Rows:
    if known.kind not in _KINDS:
        there = ", ".join(_KINDS)
        raise WeightError(f"config.json: conditioner {known.kind!r} is not one of {there}")
    return _KINDS[known.kind](known, hidden)


def _projection(kind: str, n_in: int, n_out: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(n_in, n_out)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(n_in, n_out), nn.SiLU(), nn.Linear(n_out, n_out))
    raise WeightError(f"config.json: projection {kind!r} is not none, linear or mlp")
