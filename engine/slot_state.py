"""Device tensors with one row for each slot: what a stream carries from row to row. Engine thread.

Gathered and scattered by slot numbers, so that a batch may hold any streams in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.base import PromptPlan, TextFeed
from models.spec import ModelSpec


class SlotState:
    """Next input rows, model state, streamed text, generated frames, guidance scale, codec state.

    Args:
        spec: facts of the model.
        n_slots: rows of every tensor.
        device: where they live.
    """

    def __init__(self, spec: ModelSpec, n_slots: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros((n_slots, *shape), dtype=dtype, device=device)

        self._spec = spec
        self._device = device
        self.rows = zeros(spec.n_columns)
        self.state = zeros(spec.state_size)
        self.drawn = zeros(spec.n_columns)
        """Ids drawn last; a starved stream is advanced from them again when text has come."""
        self.guidance_scale = zeros(dtype=torch.float32)
        self.text = zeros(spec.text_capacity)
        self.n_text = zeros()
        self.is_text_final = zeros(dtype=torch.bool)
        self.n_frames = zeros()
        self.frame_capacity = spec.backbone.max_positions // spec.frame.rows_per_frame
        # One place more than frames: rows that complete none write there.
        self.frames = zeros(self.frame_capacity + 1, spec.frame.n_codebooks, dtype=torch.int32)
        self.codec = {
            part.name: zeros(*part.shape, dtype=getattr(torch, part.dtype))
            for part in spec.codec.state
        }

    def open_slot(self, slot: int, plan: PromptPlan) -> None:
        """Give `slot` to a stream: forget the last one's values, take the plan's."""
        guidance = self._spec.guidance
        self.rows[slot] = 0
        self.drawn[slot] = 0
        self.state[slot] = plan.state.to(self._device)
        self.n_frames[slot] = 0
        if guidance is not None:
            scale = guidance.scale if plan.guidance_scale is None else plan.guidance_scale
            self.guidance_scale[slot] = scale
        if self._spec.text_capacity:
            n_text = 0 if plan.text_ids is None else len(plan.text_ids)
            self.text[slot] = 0
            if plan.text_ids is not None:
                self.text[slot, :n_text] = plan.text_ids.to(self._device)
            self.n_text[slot] = n_text
            self.is_text_final[slot] = plan.is_text_final
        for name, tensor in self.codec.items():
            seed = plan.codec_state.get(name)
            tensor[slot] = 0 if seed is None else seed.to(self._device)

    def append_text(self, slot: int, n_before: int, ids: Tensor, *, is_final: bool) -> None:
        """Add streamed text `ids` (n,) after the `n_before` that the slot holds."""
        n_after = n_before + len(ids)
        self.text[slot, n_before:n_after] = ids.to(self._device)
        self.n_text[slot] = n_after
        self.is_text_final[slot] = is_final

    def feed(self, slots: Tensor) -> TextFeed:
        """Streamed text of a batch."""
        return TextFeed(
            ids=self.text[slots], n_ids=self.n_text[slots], is_final=self.is_text_final[slots]
        )

    def append_frames(self, slots: Tensor, frames: Tensor, emits: Tensor) -> None:
        """Keep the frames (B, Q) of the rows that complete one (B,)."""
        n_frames = self.n_frames[slots]
        place = torch.where(emits, n_frames, self.frame_capacity)
        self.frames[slots, place] = frames.to(torch.int32)
        self.n_frames[slots] = n_frames + emits
