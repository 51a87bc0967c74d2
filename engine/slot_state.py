"""Device tensors with one row for each slot: what a stream carries from row to row. Engine thread.

Gathered and scattered by slot numbers, so that a batch may hold any streams in any order. What a
stream that gives way has here is taken out whole, and put back later at any slot.

There is one place more than slots, `nobody`: rows that fill a batch up to its bucket are read and
written there, and rows that count for nothing are written there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.base import PromptPlan, TextFeed
from models.spec import ModelSpec


class SlotState:
    """Input rows, model state, streamed text, generated frames, guidance scale, codec state.

    Args:
        spec: facts of the model.
        n_slots: streams that hold state at once.
        device: where it lives.
        codec_device: where the codec's state lives; None: the same.
    """

    def __init__(
        self,
        spec: ModelSpec,
        n_slots: int,
        device: torch.device,
        codec_device: torch.device | None = None,
    ) -> None:
        def zeros(
            *shape: int, dtype: torch.dtype = torch.int64, device: torch.device = device
        ) -> Tensor:
            tensor = torch.zeros((n_slots + 1, *shape), dtype=dtype, device=device)
            self._tensors.append(tensor)
            return tensor

        self._tensors: list[Tensor] = []
        self._spec = spec
        self._device = device
        self.nobody = n_slots
        self.rows = zeros(spec.n_columns)
        self.state = zeros(spec.state_size)
        # By position: the ids of each generated row that was fed, and its phase.
        self.fed = zeros(spec.backbone.max_positions, spec.n_columns + 1, dtype=torch.int32)
        self.drawn = zeros(spec.n_columns)
        """Ids drawn last; a starved stream is advanced from them again when text has come."""
        self.is_held = zeros(dtype=torch.bool)
        """Nothing that is run for the stream counts until it is let go (`engine.in_flight`)."""
        self.guidance_scale = zeros(dtype=torch.float32)
        self.text = zeros(spec.text_capacity)
        self.n_text = zeros()
        self.is_text_final = zeros(dtype=torch.bool)
        self.n_frames = zeros()
        self.frame_capacity = spec.backbone.max_positions // spec.frame.rows_per_frame
        # One place more than frames: rows that complete none write there.
        self.frames = zeros(self.frame_capacity + 1, spec.frame.n_codebooks, dtype=torch.int32)
        self.codec = {
            part.name: zeros(
                *part.shape, dtype=getattr(torch, part.dtype), device=codec_device or device
            )
            for part in spec.codec.state
        }

    def open_slot(self, slot: int, plan: PromptPlan) -> None:
        """Give `slot` to a stream: forget the last one's values, take the plan's.

        Nothing is waited for: CUDA has read pageable memory by the time that a copy returns.
        """
        guidance = self._spec.guidance
        self.rows[slot] = 0
        self.drawn[slot] = 0
        self.is_held[slot] = False
        self.state[slot] = plan.state.to(self._device, non_blocking=True)
        self.n_frames[slot] = 0
        if guidance is not None:
            scale = guidance.scale if plan.guidance_scale is None else plan.guidance_scale
            self.guidance_scale[slot] = scale
        if self._spec.text_capacity:
            n_text = 0 if plan.text_ids is None else len(plan.text_ids)
            self.text[slot] = 0
            if plan.text_ids is not None:
                self.text[slot, :n_text] = plan.text_ids.to(self._device, non_blocking=True)
            self.n_text[slot] = n_text
            self.is_text_final[slot] = plan.is_text_final
        for name, tensor in self.codec.items():
            seed = plan.codec_state.get(name)
            tensor[slot] = 0 if seed is None else seed.to(tensor.device, non_blocking=True)

    @property
    def n_bytes(self) -> int:
        """Of all tensors, codec state included."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def take_out(self, slot: int) -> list[Tensor]:
        """All that the slot holds, on the host."""
        return [tensor[slot].to("cpu", copy=True) for tensor in self._tensors]

    def put_back(self, slot: int, kept: Sequence[Tensor]) -> None:
        """Let `slot` hold what `take_out` gave."""
        for tensor, row in zip(self._tensors, kept, strict=True):
            tensor[slot] = row.to(tensor.device)

    def append_text(self, slot: int, n_before: int, ids: Tensor, *, is_final: bool) -> None:
        """Add streamed text `ids` (n,) after the `n_before` that the slot holds."""
        n_after = n_before + len(ids)
        self.text[slot, n_before:n_after] = ids.to(self._device, non_blocking=True)
        self.n_text[slot] = n_after
        self.is_text_final[slot] = is_final

    def feed(self, slots: Tensor) -> TextFeed:
        """Streamed text of a batch."""
        return TextFeed(
            ids=self.text[slots], n_ids=self.n_text[slots], is_final=self.is_text_final[slots]
        )

    def keep_fed(self, slots: Tensor, positions: Tensor, rows: Tensor, phases: Tensor) -> None:
        """Remember that `rows` (B, K) were fed at `positions` (B,), generated in `phases` (B,)."""
        self.fed[slots, positions] = torch.cat([rows, phases.unsqueeze(1)], dim=1).to(torch.int32)

    def unheld(self, slots: Tensor) -> Tensor:
        """Where rows that were run for `slots` (B,) are written: not to streams that are held."""
        return self.into_nowhere(slots, self.is_held[slots])

    def into_nowhere(self, slots: Tensor, is_void: Tensor) -> Tensor:
        """`slots` (B,), or `nobody` where `is_void` (B,)."""
        return slots.masked_fill(is_void, self.nobody)

    def clear_nobody(self) -> None:
        """Forget what was written for nobody: it must stay legal input, and count no frames."""
        for tensor in (self.rows, self.state, self.n_frames):
            tensor[self.nobody].zero_()

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
        own = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        return own | {f"codec.{name}": part for name, part in self.codec.items()}

    def append_frames(self, slots: Tensor, frames: Tensor, emits: Tensor) -> None:
        """Keep the frames (B, Q) of the rows that complete one (B,)."""
        n_frames = self.n_frames[slots]
        place = torch.where(emits, n_frames, self.frame_capacity)
        self.frames[slots, place] = frames.to(torch.int32)
        self.n_frames[slots] = n_frames + emits
