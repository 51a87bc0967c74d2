"""Runs the model on a batch: prompt pieces, decode steps, rows drawn anew. Engine thread.

The host's side of `engine.row_step`: it decides what a batch needs, uploads indices, and has the
step functions run as they stand or by bucket (`engine.static_rows`). Owns the device side of every
slot. Each public call first computes and then commits, so that a
call in which the model raised has changed no stream's state and can be made again for each stream
alone. Nothing is read on the host here: results are device tensors that the loop collects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend
from engine.attention.depth import DepthKV
from engine.batch import DecodeBatch, Indices, PrefillBatch, Prompt, RowBatch
from engine.graphs import Graphs
from engine.row_step import RowInputs, RowKind, RowStep
from engine.sampler import Sampler
from engine.slot_state import SlotState
from engine.static_prompts import StaticPrompts
from engine.static_rows import StaticRows
from models.base import PromptPlan, SpeechModel

HostRows = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """What a stream that gave way goes on from, on the host: its slot's tensors, and its draws."""

    state: list[Tensor]
    drawn: tuple[Tensor, Tensor]


class Runner:
    """Prefill, decode and advance for one model.

    Args:
        model: the model, on `device`.
        attention: KV pool with tables for `2 * n_slots` sequences where the model has guidance.
        n_slots: streams that hold state at once.
        device: where everything lives.
        dtype: of the depth model's keys and values.
        graphs: runs the steps by bucket; None: as they stand, in the size of the batch.
        is_overlapped: see `engine.row_step.RowStep`.
        codec_device: where the detokenizer is; None: on `device`.
        most_prompt_rows: of a pass over prompts, by bucket.
    """

    def __init__(
        self,
        model: SpeechModel,
        attention: AttentionBackend,
        n_slots: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        graphs: Graphs | None = None,
        is_overlapped: bool = False,
        codec_device: torch.device | None = None,
        most_prompt_rows: int = 0,
    ) -> None:
        spec = model.spec
        self._model = model
        self.spec = spec
        self._device = device
        self._n_slots = n_slots
        self._attention = attention
        self.slots = SlotState(spec, n_slots, device, codec_device)
        self._sampler = Sampler(spec, n_slots, device)
        self._position_shift = np.zeros(2 * n_slots, dtype=np.int64)
        depth = DepthKV(spec.depth, 2 * n_slots, device, dtype) if spec.depth else None
        self._step = RowStep(
            model, self.slots, self._sampler, depth, device, is_overlapped=is_overlapped
        )
        self._static: StaticRows | None = None
        self._prompts: StaticPrompts | None = None
        if graphs is not None:
            self._prompts = StaticPrompts(model, attention, graphs, most_prompt_rows, device)
            self._static = StaticRows(
                spec, self._step, self.slots, self._sampler, attention, graphs, n_slots, device
            )
        fills = [[column.fill for column in phase.columns] for phase in spec.phases]
        self._drawn_in = [
            frozenset(idx for idx, fill in enumerate(phase) if fill == "sampled") for phase in fills
        ]
        self._has_depth_in = ["depth" in phase for phase in fills]

    def open_slot(self, slot: int, plan: PromptPlan, seed: int) -> None:
        """Give `slot` to a stream. Raises: `StreamError` for settings that cannot be kept."""
        self._sampler.open_slot(slot, seed, plan.sampling)
        self.slots.open_slot(slot, plan)

    def take_out(self, slot: int) -> KeptSlot:
        """All that a stream needs to go on in another slot, but its KV. Waits for the device."""
        return KeptSlot(state=self.slots.take_out(slot), drawn=self._sampler.take_out(slot))

    def put_back(self, slot: int, kept: KeptSlot) -> None:
        """Let a slot that was opened again hold what `take_out` gave."""
        self.slots.put_back(slot, kept.state)
        self._sampler.put_back(slot, kept.drawn)

    def fed_rows(self, slot: int, positions: slice) -> tuple[Indices, Indices]:
        """Generated rows (R, K) that were fed, and their phases (R,). Waits for the device."""
        fed = self.slots.fed[slot, positions].cpu().numpy().astype(np.int64)
        return fed[:, :-1], fed[:, -1]

    def bind(self, slot: int, sequence_idx: int, prompt: Prompt, pages: Sequence[int]) -> None:
        """Let a stream's sequence use these pages and continue the positions of its prompt."""
        sequence = slot + self._n_slots * sequence_idx
        self._attention.bind(sequence, pages)
        self._position_shift[sequence] = prompt.position_shift

    def scrub(self, pages: Sequence[int]) -> None:
        """Zero the KV of pages that a failed stream leaves behind."""
        if pages:
            self._attention.scrub(pages)

    def prefill(self, batch: PrefillBatch) -> Tensor | None:
        """Run prompt pieces; the row results of the streams that got their first row, if any."""
        hidden = None if self._prompts is None else self._prompts.run(batch)
        if hidden is None:
            hidden = self._prefill(batch)
        if batch.finished is None:
            return None
        return self._draw(hidden[self._upload(batch.ends)], batch.finished)

    def _prefill(self, batch: PrefillBatch) -> Tensor:
        """Hidden states (N, H) of prompt pieces, run as they stand."""
        model = self._model
        ids, positions, phases = (
            self._upload(self._filled(rows)) for rows in (batch.ids, batch.positions, batch.phases)
        )
        x = model.embed(ids, phases)
        if batch.embeds is not None and batch.embed_mask is not None:
            mask = self._upload(self._filled(batch.embed_mask)).unsqueeze(1)
            embeds = torch.nn.functional.pad(batch.embeds, (0, 0, 0, len(x) - len(batch.ids)))
            x = torch.where(mask, self._send(embeds).to(x.dtype), x)
        return model.backbone(x, positions, self._attention.plan_prefill(batch.pieces))

    def decode(self, batch: DecodeBatch) -> Tensor:
        """Run one row of every sequence of the batch; row results `(B, 6)`."""
        positions = batch.n_before + self._position_shift[batch.sequences]
        if self._static is not None:
            return self._static.decode(batch, positions, self._kind(batch.rows))
        index = self._upload(np.stack((positions, batch.sequences % self._n_slots)))
        attention = self._attention.plan_decode(batch.sequences, batch.n_before)
        hidden = self._step.hidden(index[1], index[0], len(batch.rows.slots), attention)
        return self._draw(hidden, batch.rows)

    def resume(self, rows: RowBatch) -> Tensor:
        """Advance starved streams again from the ids they drew; row results `(B, 6)`."""
        return self._step.resume(self._upload(rows.slots))

    def let_go(self, slot: int) -> None:
        """Let rows of a stream count again whose companion came or went."""
        self.slots.is_held[slot] = False

    def capture(self) -> None:
        """Record the steps that will be replayed; at start, while no stream is there."""
        if self._static is not None and self._prompts is not None:
            self._static.capture()
            self._prompts.capture()

    def _draw(self, hidden: Tensor, rows: RowBatch) -> Tensor:
        """Draw a row of ids from `hidden` (B + G, H) and advance the B streams."""
        if self._static is not None:
            return self._static.draw(hidden, rows, self._kind(rows))
        pairs = self._upload(rows.pairs) if len(rows.pairs) else None
        inputs = RowInputs(slots=self._upload(rows.slots), pairs=pairs)
        return self._step.draw(hidden, inputs, self._kind(rows))

    def _kind(self, rows: RowBatch) -> RowKind:
        """What the phases and settings of these streams need."""
        return RowKind(
            drawn=frozenset().union(*(self._drawn_in[phase] for phase in rows.phases)),
            has_depth=any(self._has_depth_in[phase] for phase in rows.phases),
            filters=self._sampler.filters(rows.slots),
        )

    def _filled(self, rows: HostRows) -> HostRows:
        """Prompt rows (N, ...), filled up with zeros to a bucket where steps are recorded.

        These are not replayed, but kernels that are chosen by size are chosen once.
        """
        if self._static is None:
            return rows
        n_free = (1 << (len(rows) - 1).bit_length()) - len(rows)
        return np.pad(rows, [(0, n_free), *[(0, 0)] * (rows.ndim - 1)])

    def _upload(self, rows: HostRows) -> Tensor:
        return self._send(torch.from_numpy(rows))

    def _send(self, rows: Tensor) -> Tensor:
        """To the device, without a wait for what is under way there."""
        if self._device.type == "cuda" and not rows.is_cuda:
            # Pinned memory is not given away again before the copy is through.
            rows = rows.pin_memory()
        return rows.to(self._device, non_blocking=True)
