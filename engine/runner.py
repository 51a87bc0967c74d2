"""Runs the model on a batch: prompt pieces, decode steps, the depth loop, `advance`. Engine thread.

Owns the device side of every slot. Each public call first computes and then commits, so that a
call in which the model raised has changed no stream's state and can be made again for each stream
alone. Nothing is read on the host here: results are device tensors that the loop collects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend
from engine.attention.depth import DepthKV
from engine.batch import DecodeBatch, Indices, PrefillBatch, Prompt, RowBatch
from engine.sampler import Draws, Sampler
from engine.slot_state import SlotState
from models.base import Advance, PromptPlan, SpeechModel

IS_BAD, EMITS, TEXT_ID, IS_FINISHED, IS_STARVED, PHASE = range(6)
"""Columns of a row result `(B, 6)` int32: what the host must know about a generated row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Pairs of a batch: `rows` (G,) of the guided streams and their `scale` (G, 1)."""

    rows: Tensor
    scale: Tensor


class Runner:
    """Prefill, decode and advance for one model.

    Args:
        model: the model, on `device`.
        attention: KV pool with tables for `2 * n_slots` sequences where the model has guidance.
        n_slots: streams that hold state at once.
        device: where everything lives.
        dtype: of the depth model's keys and values.
    """

    def __init__(
        self,
        model: SpeechModel,
        attention: AttentionBackend,
        n_slots: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        spec = model.spec
        self._model = model
        self.spec = spec
        self._device = device
        self._n_slots = n_slots
        self._attention = attention
        self.slots = SlotState(spec, n_slots, device)
        self._sampler = Sampler(spec, n_slots, device)
        self._position_shift = np.zeros(2 * n_slots, dtype=np.int64)
        self._backbone_columns = spec.backbone_columns
        guided = spec.guidance.columns if spec.guidance else ()
        self._guided_columns = frozenset(spec.column_idx(name) for name in guided)
        depth = spec.depth
        self._depth_columns = tuple(spec.column_idx(n) for n in depth.columns) if depth else ()
        self._first_column = spec.column_idx(depth.first_column) if depth else -1
        self._depth_cache = DepthKV(depth, 2 * n_slots, device, dtype) if depth else None
        self._is_depth_guided = not self._guided_columns.isdisjoint(self._depth_columns)
        fills = [[column.fill for column in phase.columns] for phase in spec.phases]
        self._fills = fills
        is_drawn = [[fill in ("sampled", "depth") for fill in phase] for phase in fills]
        self._is_drawn = torch.tensor(is_drawn, device=device)
        self._given_ids = torch.tensor(_given_ids(model), device=device)
        self._feeds_codec = torch.tensor([p.feeds_codec for p in spec.phases], device=device)
        self._feeds_text = torch.tensor([p.feeds_text for p in spec.phases], device=device)

    def open_slot(self, slot: int, plan: PromptPlan, seed: int) -> None:
        """Give `slot` to a stream. Raises: `StreamError` for settings that cannot be kept."""
        self._sampler.open_slot(slot, seed, plan.sampling)
        self.slots.open_slot(slot, plan)

    def bind(self, slot: int, sequence_idx: int, prompt: Prompt, pages: Sequence[int]) -> None:
        """Let a stream's sequence use these pages and continue the positions of its prompt."""
        sequence = slot + self._n_slots * sequence_idx
        self._attention.bind(sequence, pages)
        self._position_shift[sequence] = prompt.position_shift

    def synchronize(self) -> None:
        """Wait for the device; for measurements only."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero the KV of pages that a failed stream leaves behind."""
        if pages:
            self._attention.scrub(pages)

    def prefill(self, batch: PrefillBatch) -> Tensor | None:
        """Run prompt pieces; the row results of the streams that got their first row, if any."""
        model = self._model
        ids = torch.from_numpy(batch.ids).to(self._device)
        x = model.embed(ids, torch.full_like(ids[:, 0], -1))
        if batch.embeds is not None and batch.embed_mask is not None:
            mask = torch.from_numpy(batch.embed_mask).to(self._device).unsqueeze(1)
            x = torch.where(mask, batch.embeds.to(x), x)
        attention = self._attention.plan_prefill(batch.pieces)
        hidden = model.backbone(x, self._upload(batch.positions), attention)
        if batch.finished is None:
            return None
        return self._generate(hidden[self._upload(batch.ends)], batch.finished)

    def decode(self, batch: DecodeBatch) -> Tensor:
        """Run one row of every sequence of the batch; row results `(B, 6)`."""
        host = (
            batch.n_before + self._position_shift[batch.sequences],
            batch.sequences % self._n_slots,
        )
        positions, slots = self._upload(np.stack(host))
        attention = self._attention.plan_decode(batch.sequences, batch.n_before)
        x = self._model.embed(self.slots.rows[slots], self.slots.state[slots, 0])
        hidden = self._model.backbone(x, positions, attention)
        return self._generate(hidden, batch.rows)

    def resume(self, rows: RowBatch) -> Tensor:
        """Advance starved streams again from the ids they drew; row results `(B, 6)`."""
        slots = self._upload(rows.slots)
        state = self.slots.state[slots]
        out = self._model.advance(state, self.slots.drawn[slots], self.slots.feed(slots))
        return self._commit(slots, state, out, torch.zeros_like(out.is_finished))

    def _generate(self, hidden: Tensor, rows: RowBatch) -> Tensor:
        """Draw a row of ids from `hidden` (B + G, H) and advance the B streams."""
        slots = self._upload(rows.slots)
        state = self.slots.state[slots]
        phase = state[:, 0]
        feed = self.slots.feed(slots)
        guide = self._guide(slots, rows)
        draws = self._sampler.begin(slots, phase, rows.slots)
        n_streams = len(rows.slots)
        is_ok = hidden[:n_streams].isfinite().all(dim=1)
        is_drawn = self._is_drawn[phase]
        given = self._given_ids[phase]

        logits = self._column_logits(hidden, guide, draws, n_streams)
        logits = self._model.constrain(state, logits, feed)
        columns = list(given.unbind(1))
        for idx, column_logits in zip(self._backbone_columns, logits, strict=True):
            if self._is_filled(rows, idx, "sampled"):
                drawn, is_sound = self._sampler.draw(column_logits, idx, draws)
                is_ok &= is_sound | ~is_drawn[:, idx]
                columns[idx] = torch.where(is_drawn[:, idx], drawn, given[:, idx])
        if self._depth_columns and self._is_filled(rows, self._depth_columns[0], "depth"):
            is_ok &= self._draw_depth(hidden, guide, draws, columns, is_drawn)

        ids = torch.stack(columns, dim=1)
        out = self._model.advance(state, ids, feed)
        self._sampler.commit(draws, ids, is_drawn)
        self.slots.drawn[slots] = ids
        return self._commit(slots, state, out, ~is_ok)

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

    def _commit(self, slots: Tensor, state: Tensor, out: Advance, is_bad: Tensor) -> Tensor:
        """Take what `advance` gave for rows in `state` (B, S); row results `(B, 6)`.

        Where the stream is starved nothing counts: the same call is made again when text has come.
        """
        phase = state[:, 0]
        emits = out.emits & self._feeds_codec[phase] & ~is_bad
        text_ids = out.text_ids.masked_fill(~self._feeds_text[phase], -1)
        is_finished, new_state = out.is_finished, out.state
        if self.spec.text_capacity:
            emits = emits & ~out.is_starved
            is_finished = is_finished & ~out.is_starved
            text_ids = text_ids.masked_fill(out.is_starved, -1)
            new_state = torch.where(out.is_starved.unsqueeze(1), state, new_state)
        self.slots.state[slots] = new_state
        self.slots.rows[slots] = out.rows
        self.slots.append_frames(slots, out.frames, emits)
        parts = (is_bad, emits, text_ids, is_finished, out.is_starved, new_state[:, 0])
        return torch.stack([part.to(torch.int32) for part in parts], dim=1)

    def _guide(self, slots: Tensor, rows: RowBatch) -> Guide | None:
        if len(rows.pairs) == 0:
            return None
        pairs = self._upload(rows.pairs)
        scale = self.slots.guidance_scale[slots[pairs]]
        return Guide(rows=pairs, scale=scale.unsqueeze(1))

    def _is_filled(self, rows: RowBatch, column_idx: int, fill: str) -> bool:
        """Some phase of the batch fills this column so (host knowledge)."""
        return any(self._fills[phase][column_idx] == fill for phase in rows.phases)

    def _upload(self, indices: Indices) -> Tensor:
        return torch.from_numpy(indices).to(self._device, non_blocking=True)


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
