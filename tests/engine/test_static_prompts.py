"""A prompt pass by bucket gives the model what a plain pass gives it: ids, phases, embeddings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import Piece
from engine.batch import PrefillBatch
from engine.graphs import Graphs
from engine.static_prompts import StaticPrompts
from tests.engine.recorded_graphs import record

N_COLUMNS, HIDDEN, SIZES = 2, 3, (4, 8)
CPU = torch.device("cpu")


class Telling:
    """A model whose hidden states tell what it was given: ids, phase and position."""

    spec = SimpleNamespace(n_columns=N_COLUMNS, backbone=SimpleNamespace(hidden=HIDDEN))

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        return torch.stack([ids[:, 0], ids[:, 1], phase], dim=1).float()

    def backbone(self, x: Tensor, positions: Tensor, attention: object) -> Tensor:
        return x + 100 * positions.unsqueeze(1)


class Attention:
    """A backend that plans passes of `SIZES`, of two pieces at most."""

    def __init__(self) -> None:
        self.plans = {n_rows: SimpleNamespace(key=(n_rows, 0)) for n_rows in SIZES}

    def static_prompt_rows(self, n_most: int) -> tuple[int, ...]:
        return SIZES

    def plan_static_prefill(self, pieces: list[Piece], n_rows: int) -> object | None:
        return None if len(pieces) > 2 else self.plans[n_rows]


def made() -> StaticPrompts:
    prompts = StaticPrompts(Telling(), Attention(), Graphs(record), SIZES[-1], CPU)
    prompts.capture()
    return prompts


def batch(n_rows: int, n_pieces: int = 1, embeds: Tensor | None = None) -> PrefillBatch:
    """The last two rows were generated, in phase 1, and are run again."""
    row = np.arange(n_rows)
    pieces = [Piece(sequence=n, first_row=n, n_rows=1, n_before=0) for n in range(n_pieces)]
    return PrefillBatch(
        pieces=tuple(pieces),
        ids=np.stack([row + 10, row + 20], axis=1),
        positions=row + 5,
        phases=np.where(row < n_rows - 2, -1, 1),
        embeds=embeds,
        embed_mask=None if embeds is None else row % 2 == 0,
        finished=None,
        ends=np.zeros(0, dtype=np.int64),
    )


def told(n_rows: int, embeds: Tensor | None = None) -> list[list[float]]:
    asked, model = batch(n_rows, embeds=embeds), Telling()
    x = model.embed(torch.from_numpy(asked.ids), torch.from_numpy(asked.phases))
    if embeds is not None:
        x = torch.where(torch.from_numpy(asked.embed_mask).unsqueeze(1), embeds, x)
    return model.backbone(x, torch.from_numpy(asked.positions), None).tolist()


def test_rows_come_with_ids_phases_and_positions_of_their_own():
    prompts = made()
    for n_rows in (8, 3, 5, 4):
        hidden = prompts.run(batch(n_rows))
        assert hidden is not None
        assert hidden.tolist() == told(n_rows)


def test_given_embeddings_stand_in_place_of_ids_where_they_are_given_and_in_no_later_pass():
    prompts = made()
    embeds = torch.arange(15.0).view(5, HIDDEN)
    hidden = prompts.run(batch(5, embeds=embeds))
    assert hidden is not None
    assert hidden.tolist() == told(5, embeds)
    again = prompts.run(batch(5))
    assert again is not None
    assert again.tolist() == told(5)


def test_a_pass_that_is_larger_or_of_more_pieces_is_run_as_it_stands():
    prompts = made()
    assert prompts.run(batch(9)) is None
    assert prompts.run(batch(3, n_pieces=3)) is None
