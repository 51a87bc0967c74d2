"""Prompt passes in buffers that never move, filled up to a few sizes, for `engine.graphs`.

As `engine.static_rows` for decode steps: one recording for each number of rows that the attention
backend can plan in fixed buffers. It embeds rows, takes given embeddings in their place where a
mask says so, and runs the backbone; what follows a prompt, the draw of its first row, is a call of
its own. Engine thread.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, StaticAttention
from engine.batch import PrefillBatch
from engine.graphs import Graphs, Key, upload_into
from models.base import SpeechModel

_POSITION, _PHASE, _IS_GIVEN, _FIRST_COLUMN = range(4)
"""Rows of the index buffer; from the last on, those of the ids."""


class StaticPrompts:
    """Prompt passes of one model, by number of rows.

    Args:
        model: that is run.
        attention: of the backbone.
        graphs: runs the calls; what it was not given at start it refuses.
        n_most: rows of the largest pass.
        device: where the buffers live.
    """

    def __init__(
        self,
        model: SpeechModel,
        attention: AttentionBackend,
        graphs: Graphs,
        n_most: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._attention = attention
        self._graphs = graphs
        self._sizes = attention.static_prompt_rows(n_most)
        n_rows = self._sizes[-1] if self._sizes else 0
        shape = (_FIRST_COLUMN + model.spec.n_columns, n_rows)
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._given = torch.zeros((n_rows, model.spec.backbone.hidden), device=device)
        self._hidden = self._given

    def capture(self) -> None:
        """Record every call that can come, on padding alone."""
        for n_rows in self._sizes:
            plan = self._attention.plan_static_prefill((), n_rows)
            assert plan is not None, "padding alone is one piece"
            if n_rows == self._sizes[0]:
                self._adopt_dtypes(n_rows, plan)
            self._graphs.record(_key(n_rows), partial(self._run, n_rows, plan), self._uses(plan))

    def run(self, batch: PrefillBatch) -> Tensor | None:
        """Hidden states (N, H) of the pass; None: it is of no size that is recorded."""
        n_batch = len(batch.ids)
        n_rows = next((size for size in self._sizes if size >= n_batch), None)
        if n_rows is None:
            return None
        plan = self._attention.plan_static_prefill(batch.pieces, n_rows)
        if plan is None:
            return None
        index = np.zeros((len(self._index), n_rows), dtype=np.int64)
        index[_POSITION, :n_batch] = batch.positions
        index[_PHASE, :n_batch] = batch.phases
        index[_FIRST_COLUMN:, :n_batch] = batch.ids.T
        if batch.embeds is not None and batch.embed_mask is not None:
            index[_IS_GIVEN, :n_batch] = batch.embed_mask
            self._upload_given(batch.embeds)
        upload_into(self._index[:, :n_rows], index)
        self._graphs.run(_key(n_rows), self._uses(plan))
        return self._hidden[:n_batch]

    def _run(self, n_rows: int, plan: StaticAttention) -> tuple[Tensor, ...]:
        self._hidden[:n_rows] = self._model.backbone(
            self._embedded(n_rows), self._index[_POSITION, :n_rows], plan
        )
        return ()

    def _embedded(self, n_rows: int) -> Tensor:
        index = self._index[:, :n_rows]
        x = self._model.embed(index[_FIRST_COLUMN:].T.contiguous(), index[_PHASE])
        return torch.where(
            index[_IS_GIVEN].bool().unsqueeze(1), self._given[:n_rows].to(x.dtype), x
        )

    def _upload_given(self, embeds: Tensor) -> None:
        if self._given.is_cuda and not embeds.is_cuda:
            # Pinned memory is not given away again before the copy is through.
            embeds = embeds.pin_memory()
        self._given[: len(embeds)].copy_(embeds, non_blocking=True)

    def _adopt_dtypes(self, n_rows: int, plan: StaticAttention) -> None:
        """Let hidden states be kept in the type in which the model computes them."""
        x = self._embedded(n_rows)
        hidden = self._model.backbone(x, self._index[_POSITION, :n_rows], plan)
        self._hidden = hidden.new_zeros(self._given.shape)

    def _uses(self, plan: StaticAttention) -> dict[str, object]:
        """What the calls read and write, by name."""
        own = {"index": self._index, "given": self._given, "hidden": self._hidden}
        return {**own, "attention plan": plan}


def _key(n_rows: int) -> Key:
    return ("prompt", n_rows)
