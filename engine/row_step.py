"""What a step computes on the device: rows through the backbone, ids drawn, streams advanced.

Nothing here decides on the host: shapes follow from the inputs, and what the host knows about a
batch is in its `RowKind`. So the same functions are run as they stand, compiled, or captured in a
CUDA graph (`engine.graphs`); a batch that was padded to a bucket goes through like any other, with
rows of nobody (`SlotState.nobody`) in its free places. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.depth import DepthKV
from engine.sampler import Draws, Filters, Sampler
from engine.slot_state import SlotState
from models.base import Advance, Attention, SpeechModel

IS_BAD, EMITS, TEXT_ID, IS_FINISHED, IS_STARVED, PHASE = range(6)
"""Columns of a row result `(B, 6)` int32: what the host must know about a generated row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKind:
    """What the host decides about a batch; it decides which operations run.

    Args:
        drawn: backbone columns that are drawn in a phase of the batch.
        has_depth: a phase of the batch draws the depth columns.
        filters: of the sampler.
    """

    drawn: frozenset[int]
    has_depth: bool
    filters: Filters


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInputs:
    """Which streams draw a row.

    Args:
        slots: (B,) of the streams.
        pairs: (G,) places in `slots` of the guided streams, or None; the hidden states of their
            companions follow those of the streams.
        is_pair: (G, 1) where `pairs` has places of streams that are not guided; None: it has none.
    """

    slots: Tensor
    pairs: Tensor | None = None
    is_pair: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Pairs of a batch: see `RowInputs`; `scale` is (G, 1)."""

    rows: Tensor
    scale: Tensor
    is_real: Tensor | None = None


class RowStep:
    """The step functions of one model.

    Args:
        model: on `device`.
        slots: state of the streams.
        sampler: draws their ids.
        depth_cache: of the depth model, where there is one.
        device: where everything lives.
        is_overlapped: a row may be run before the host has seen the one before it. Then a row that
            may be a stream's last holds it: until it is let go, what is run for it counts for
            nothing.
    """

    def __init__(
        self,
        model: SpeechModel,
        slots: SlotState,
        sampler: Sampler,
        depth_cache: DepthKV | None,
        device: torch.device,
        *,
        is_overlapped: bool = False,
    ) -> None:
        spec = model.spec
        self._model = model
        self._slots = slots
        self._sampler = sampler
        self._depth_cache = depth_cache
        self._is_overlapped = is_overlapped
        self._has_text = spec.text_capacity > 0
        self._backbone_columns = spec.backbone_columns
        guidance, depth = spec.guidance, spec.depth
        self._guided_columns = frozenset(
            spec.column_idx(name) for name in (guidance.columns if guidance else ())
        )
        self._depth_columns = tuple(spec.column_idx(n) for n in depth.columns) if depth else ()
        self._first_column = spec.column_idx(depth.first_column) if depth else -1
        self._is_depth_guided = not self._guided_columns.isdisjoint(self._depth_columns)
        guided_phases = guidance.phases if guidance else ()
        self._is_guided_phase: Tensor | None = None
        if guidance is not None:
            is_guided = [phase.name in guided_phases for phase in spec.phases]
            self._is_guided_phase = torch.tensor(is_guided, device=device)
        fills = [[column.fill for column in phase.columns] for phase in spec.phases]
        is_drawn = [[fill in ("sampled", "depth") for fill in phase] for phase in fills]
        self._is_drawn = torch.tensor(is_drawn, device=device)
        self._given_ids = torch.tensor(_given_ids(model), device=device)
        self._feeds_codec = torch.tensor([p.feeds_codec for p in spec.phases], device=device)
        self._feeds_text = torch.tensor([p.feeds_text for p in spec.phases], device=device)

    def hidden(
        self, slots: Tensor, positions: Tensor, n_streams: int, attention: Attention
    ) -> Tensor:
        """Hidden states `(N, H)` of the next rows of the sequences of `slots` (N,).

        The first `n_streams` are the streams' own; what they are fed is remembered.
        """
        rows, phases = self._slots.rows[slots], self._slots.state[slots, 0]
        hidden = self._model.backbone(self._model.embed(rows, phases), positions, attention)
        fed = (part[:n_streams] for part in (slots, positions, rows, phases))
        self._slots.keep_fed(*fed)
        return hidden

    def draw(self, hidden: Tensor, inputs: RowInputs, kind: RowKind) -> Tensor:
        """Draw a row of ids from `hidden` (B + G, H) and advance the B streams.

        Returns:
            Row results `(B, 6)`.
        """
        slots = inputs.slots
        n_streams = len(slots)
        state = self._slots.state[slots]
        phase = state[:, 0]
        feed = self._slots.feed(slots)
        guide = self._guide(inputs)
        draws = self._sampler.begin(slots, phase, kind.filters)
        is_ok = hidden[:n_streams].isfinite().all(dim=1)
        is_drawn = self._is_drawn[phase]
        given = self._given_ids[phase]

        logits = self._column_logits(hidden, guide, draws, n_streams)
        logits = self._model.constrain(state, logits, feed)
        columns = list(given.unbind(1))
        for idx, column_logits in zip(self._backbone_columns, logits, strict=True):
            if idx in kind.drawn:
                drawn, is_sound = self._sampler.draw(column_logits, idx, draws)
                is_ok &= is_sound | ~is_drawn[:, idx]
                columns[idx] = torch.where(is_drawn[:, idx], drawn, given[:, idx])
        if kind.has_depth:
            is_ok &= self._draw_depth(hidden, guide, draws, columns, is_drawn)

        ids = torch.stack(columns, dim=1)
        out = self._model.advance(state, ids, feed)
        into = self._slots.unheld(slots) if self._is_overlapped else slots
        self._sampler.commit(draws, into, ids, is_drawn)
        self._slots.drawn[into] = ids
        return self._commit(into, phase, out, ~is_ok)

    def resume(self, slots: Tensor) -> Tensor:
        """Advance starved streams again from the ids they drew; row results `(B, 6)`."""
        state, drawn = self._slots.state[slots], self._slots.drawn[slots]
        out = self._model.advance(state, drawn, self._slots.feed(slots))
        return self._commit(slots, state[:, 0], out, torch.zeros_like(out.is_finished))

    def _column_logits(
        self, hidden: Tensor, guide: Guide | None, draws: Draws, n_streams: int
    ) -> list[Tensor]:
        """Logits of every backbone column: guidance merged, penalised, masked by phase."""
        by_column = []
        for idx, raw in zip(self._backbone_columns, self._model.heads(hidden), strict=True):
            is_guided = idx in self._guided_columns
            merged = merge_guidance(raw.float(), guide if is_guided else None, n_streams)
            by_column.append(self._sampler.shape(merged, idx, draws))
        return by_column

    def _draw_depth(
        self,
        hidden: Tensor,
        guide: Guide | None,
        draws: Draws,
        columns: list[Tensor],
        is_drawn: Tensor,
    ) -> Tensor:
        """Draw the depth columns one after another into `columns`; which rows were sound (B,)."""
        assert self._depth_cache is not None, "the spec has a depth model"
        model, cache = self._model, self._depth_cache
        n_streams = len(is_drawn)
        guide = guide if self._is_depth_guided else None
        if guide is None:
            hidden = hidden[:n_streams]
        model.depth_step(model.depth_embed(0, hidden, None), 0, cache)
        is_ok = torch.ones_like(is_drawn[:, 0])
        ids = columns[self._first_column]
        for position, idx in enumerate(self._depth_columns, start=1):
            both = ids if guide is None else torch.cat([ids, ids[guide.rows]])
            x = model.depth_step(model.depth_embed(position, hidden, both), position, cache)
            raw = model.depth_head(position, x).float()
            merged = merge_guidance(raw, guide if idx in self._guided_columns else None, n_streams)
            shaped = self._sampler.shape(merged, idx, draws)
            ids, is_sound = self._sampler.draw(shaped, idx, draws)
            is_ok &= is_sound | ~is_drawn[:, idx]
            columns[idx] = torch.where(is_drawn[:, idx], ids, columns[idx])
        return is_ok

    def _commit(self, into: Tensor, phase: Tensor, out: Advance, is_bad: Tensor) -> Tensor:
        """Take what `advance` gave for rows in `phase` (B,); row results `(B, 6)`.

        Where the stream is starved nothing counts: the same call is made again when text has come.
        """
        emits = out.emits & self._feeds_codec[phase] & ~is_bad
        text_ids = out.text_ids.masked_fill(~self._feeds_text[phase], -1)
        is_finished, new_phase, goes_on_in = out.is_finished, out.state[:, 0], into
        if self._has_text:
            emits = emits & ~out.is_starved
            is_finished = is_finished & ~out.is_starved
            text_ids = text_ids.masked_fill(out.is_starved, -1)
            new_phase = torch.where(out.is_starved, phase, new_phase)
            goes_on_in = self._slots.into_nowhere(into, out.is_starved)
        if self._is_overlapped:
            is_over = is_bad | is_finished | out.is_starved
            # What follows an end may be no legal row, and the next step may be under way already.
            goes_on_in = self._slots.into_nowhere(into, is_over)
            self._slots.is_held[into] = is_over | self._changes_guide(phase, new_phase)
        self._slots.state[goes_on_in] = out.state
        self._slots.rows[goes_on_in] = out.rows
        self._slots.append_frames(into, out.frames, emits)
        parts = (is_bad, emits, text_ids, is_finished, out.is_starved, new_phase)
        return torch.stack([part.to(torch.int32) for part in parts], dim=1)

    def _changes_guide(self, phase: Tensor, new_phase: Tensor) -> Tensor:
        """Rows (B,) after which the host gives the stream a companion, or takes it away."""
        if self._is_guided_phase is None:
            return torch.zeros_like(phase, dtype=torch.bool)
        return self._is_guided_phase[phase] != self._is_guided_phase[new_phase]

    def _guide(self, inputs: RowInputs) -> Guide | None:
        if inputs.pairs is None:
            return None
        scale = self._slots.guidance_scale[inputs.slots[inputs.pairs]]
        return Guide(rows=inputs.pairs, scale=scale.unsqueeze(1), is_real=inputs.is_pair)


def merge_guidance(raw: Tensor, guide: Guide | None, n_streams: int) -> Tensor:
    """Logits `(B, V)` from those of streams and companions `(B + G, V)`: `u + scale * (c - u)`.

    Source: Ho and Salimans 2022, equation 6, with scale = 1 + w. Raw logits, before any mask: the
    difference of two -inf is not a number.
    """
    logits = raw[:n_streams]
    if guide is None:
        return logits
    conditional, unconditional = logits[guide.rows], raw[n_streams:]
    merged = unconditional + guide.scale * (conditional - unconditional)
    if guide.is_real is not None:
        merged = torch.where(guide.is_real, merged, conditional)
    return logits.index_copy(0, guide.rows, merged)


def _given_ids(model: SpeechModel) -> list[list[int]]:
    """Ids (P, K) of columns that nothing draws: the forced id, or the pad that `advance` fills."""
    columns = model.spec.columns
    return [
        [
            columns[idx].pad_id if column.forced_id is None else column.forced_id
            for idx, column in enumerate(phase.columns)
        ]
        for phase in model.spec.phases
    ]
