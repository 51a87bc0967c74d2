"""Rows of a step in buffers that never move: batches padded to a few sizes, for `engine.graphs`.

A batch of B streams is filled up to a bucket with rows of nobody. Where any stream is guided the
bucket has a companion row for each stream, that of stream j at `bucket + j`; those of streams that
are not guided are padding too. So the shapes of a step follow from the bucket, from whether there
is guidance, and from one of two kinds of sampling: what the model's own settings need, or anything.

Two calls make a step: the backbone, which leaves its hidden states in a buffer, and the draw of a
row from there: heads, sampling, the whole depth loop, `advance`. After a prompt only the second is
run, on the hidden states of its last rows. Engine thread.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import PADDING, AttentionBackend, StaticAttention
from engine.batch import DecodeBatch, Indices, RowBatch
from engine.graphs import Graphs, Key, bucket_of, bucket_sizes, upload_into
from engine.row_step import RowInputs, RowKind, RowStep
from engine.sampler import ALL_FILTERS, Sampler, filters_of, stream_settings
from engine.slot_state import SlotState
from models.spec import ModelSpec

_POSITION, _SLOT, _IS_PAIR = range(3)
"""Rows of the index buffer."""


class StaticRows:
    """Decode steps and first rows of one model, by bucket.

    Args:
        spec: facts of the model.
        step: what is run.
        slots: state of the streams.
        sampler: draws their ids.
        attention: of the backbone.
        graphs: runs the calls; what it was not given at start it refuses.
        max_streams: the largest batch.
        device: where the buffers live.
    """

    def __init__(
        self,
        spec: ModelSpec,
        step: RowStep,
        slots: SlotState,
        sampler: Sampler,
        attention: AttentionBackend,
        graphs: Graphs,
        max_streams: int,
        device: torch.device,
    ) -> None:
        self._step = step
        self._slots = slots
        self._sampler = sampler
        self._attention = attention
        self._graphs = graphs
        self._n_slots = max_streams
        self._sizes = bucket_sizes(max_streams)
        self._guidances = (False,) if spec.guidance is None else (False, True)
        self._n_most = max_streams * len(self._guidances)
        self._hidden_shape = (self._n_most, spec.backbone.hidden)
        self._index = torch.zeros((3, self._n_most), dtype=torch.int64, device=device)
        self._hidden = torch.zeros(self._hidden_shape, device=device)
        self._pairs = torch.arange(max_streams, device=device)
        usual = filters_of(stream_settings(spec, {}))
        self._kinds = tuple(
            RowKind(
                drawn=frozenset(spec.backbone_columns),
                has_depth=spec.depth is not None,
                filters=filters,
            )
            for filters in dict.fromkeys((usual, ALL_FILTERS))
        )

    def capture(self) -> None:
        """Record every call that can come, on rows of nobody alone."""
        self._adopt_dtype()
        for bucket in self._sizes:
            for has_pairs in self._guidances:
                self._write_rows(_NOBODY, bucket, has_pairs=has_pairs)
                for width in self._attention.static_widths:
                    plan = self._plan_nobody(bucket, width, has_pairs=has_pairs)
                    call = partial(self._backbone, bucket, plan)
                    self._graphs.record(_backbone_key(bucket, plan), call, self._uses(plan))
                for kind in range(len(self._kinds)):
                    call = partial(self._draw, bucket, kind, has_pairs=has_pairs)
                    self._graphs.record(_draw_key(bucket, kind, has_pairs), call, self._uses())

    def decode(self, batch: DecodeBatch, positions: Indices, kind: RowKind) -> Tensor:
        """Run one row of each sequence, at `positions` (N,); row results `(B, 6)`."""
        rows = batch.rows
        n_streams, has_pairs = len(rows.slots), len(rows.pairs) > 0
        bucket = bucket_of(n_streams, self._sizes)
        n_rows = 2 * bucket if has_pairs else bucket
        place = np.concatenate([np.arange(n_streams), bucket + rows.pairs])
        plan = self._attention.plan_static(
            _spread(batch.sequences, place, n_rows, PADDING),
            _spread(batch.n_before, place, n_rows, 0),
        )
        index = (
            _spread(positions, place, n_rows, 0),
            _spread(batch.sequences % self._n_slots, place, n_rows, self._slots.nobody),
            _spread(1, rows.pairs, n_rows, 0),
        )
        upload_into(self._index[:, :n_rows], np.stack(index))
        self._graphs.run(_backbone_key(bucket, plan), self._uses(plan))
        return self._replay_draw(bucket, kind, has_pairs=has_pairs)[:n_streams]

    def draw(self, hidden: Tensor, rows: RowBatch, kind: RowKind) -> Tensor:
        """Draw a row from `hidden` (B + G, H), as prompts left it; row results `(B, 6)`."""
        n_streams, has_pairs = len(rows.slots), len(rows.pairs) > 0
        bucket = bucket_of(n_streams, self._sizes)
        self._write_rows(rows, bucket, has_pairs=has_pairs)
        self._hidden[:n_streams] = hidden[:n_streams]
        if has_pairs:
            place = torch.from_numpy(bucket + rows.pairs).to(hidden.device, non_blocking=True)
            self._hidden[place] = hidden[n_streams:]
        return self._replay_draw(bucket, kind, has_pairs=has_pairs)[:n_streams]

    def _replay_draw(self, bucket: int, kind: RowKind, *, has_pairs: bool) -> Tensor:
        covers = (one.filters.covers(kind.filters) for one in self._kinds)
        key = _draw_key(bucket, list(covers).index(True), has_pairs)
        (results,) = self._graphs.run(key, self._uses())
        return results

    # What is recorded.

    def _backbone(self, bucket: int, plan: StaticAttention) -> tuple[Tensor, ...]:
        n_rows = plan.key[0]
        positions, slots = self._index[_POSITION, :n_rows], self._index[_SLOT, :n_rows]
        self._hidden[:n_rows] = self._step.hidden(slots, positions, bucket, plan)
        return ()

    def _draw(self, bucket: int, kind: int, *, has_pairs: bool) -> tuple[Tensor, ...]:
        n_rows = 2 * bucket if has_pairs else bucket
        inputs = RowInputs(
            slots=self._index[_SLOT, :bucket],
            pairs=self._pairs[:bucket] if has_pairs else None,
            is_pair=self._index[_IS_PAIR, :bucket].bool().unsqueeze(1) if has_pairs else None,
        )
        results = self._step.draw(self._hidden[:n_rows], inputs, self._kinds[kind])
        self._slots.clear_nobody()
        return (results,)

    def _uses(self, plan: StaticAttention | None = None) -> dict[str, object]:
        """What the calls read and write, by name."""
        own = {"index": self._index, "hidden": self._hidden, "attention plan": plan}
        return {**own, **self._slots.tensors(), **self._sampler.tensors()}

    # Rows of nobody.

    def _write_rows(self, rows: RowBatch, bucket: int, *, has_pairs: bool) -> None:
        """Name the streams of a draw whose hidden states come from elsewhere."""
        n_rows = 2 * bucket if has_pairs else bucket
        own = np.arange(len(rows.slots))
        index = (
            np.zeros(n_rows, dtype=np.int64),
            _spread(rows.slots, own, n_rows, self._slots.nobody),
            _spread(1, rows.pairs, n_rows, 0),
        )
        upload_into(self._index[:, :n_rows], np.stack(index))

    def _plan_nobody(self, bucket: int, width: int, *, has_pairs: bool) -> StaticAttention:
        n_rows = 2 * bucket if has_pairs else bucket
        return self._attention.plan_static(np.full(n_rows, PADDING), np.full(n_rows, width - 1))

    def _adopt_dtype(self) -> None:
        """Let hidden states be kept in the type in which the model computes them."""
        plan = self._plan_nobody(1, self._attention.static_widths[0], has_pairs=False)
        self._write_rows(_NOBODY, 1, has_pairs=False)
        hidden = self._step.hidden(self._index[_SLOT, :1], self._index[_POSITION, :1], 1, plan)
        self._hidden = hidden.new_zeros(self._hidden_shape)


def static_batches(spec: ModelSpec, max_streams: int) -> tuple[int, ...]:
    """Rows of all batches that are planned in fixed buffers: the buckets, and those of pairs."""
    sizes = bucket_sizes(max_streams)
    pairs = () if spec.guidance is None else tuple(2 * size for size in sizes)
    return tuple(sorted({*sizes, *pairs}))


_NOBODY = RowBatch(slots=np.zeros(0, np.int64), pairs=np.zeros(0, np.int64), phases=())


def _backbone_key(bucket: int, plan: StaticAttention) -> Key:
    return ("backbone", bucket, *plan.key)


def _draw_key(bucket: int, kind: int, has_pairs: bool) -> Key:
    return ("draw", bucket, "guided" if has_pairs else "alone", ("usual", "any")[kind])


def _spread(values: Indices | int, place: Indices, n: int, filler: int) -> Indices:
    """`n` numbers: `values` at `place`, `filler` elsewhere."""
    out = np.full(n, filler, dtype=np.int64)
    out[place] = values
    return out
