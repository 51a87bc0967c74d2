"""Runs the detokenizer on a batch of chunks. Engine thread.

Frames never leave the device: they are gathered from the slots' frame logs. The codec state is
gathered, handed to the model, and scattered back only after the call came through, so that a call
that raised can be made again for each stream alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.chunks import ChunkWork
from engine.slot_state import SlotState
from models.base import SpeechModel

NO_FRAME = -1
"""Code that stands for left context from before a stream's first frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTensors:
    """Audio of one call, on the device: `pcm` (B, S), `n_samples` (B,), `is_finite` (B,)."""

    pcm: Tensor
    n_samples: Tensor
    is_finite: Tensor


class CodecRunner:
    """Detokenizer calls for one model."""

    def __init__(self, model: SpeechModel, slots: SlotState, device: torch.device) -> None:
        self._model = model
        self._slots = slots
        self._device = device
        self._n_context = model.spec.codec.left_context_frames

    def decode(self, slots: Sequence[int], works: Sequence[ChunkWork]) -> ChunkTensors:
        """Detokenize one chunk of each of `slots`; all works have the same `n_frames`."""
        n_frames = works[0].n_frames
        assert all(work.n_frames == n_frames for work in works), "a call has one size"
        index = self._upload(slots, works)
        slot, n_valid = index[0], index[2]
        state = {name: tensor[slot] for name, tensor in self._slots.codec.items()}
        decoded = self._model.decode(
            self._gather(index, n_frames), n_valid, state, index[3].bool(), index[4].bool()
        )
        for name, tensor in self._slots.codec.items():
            tensor[slot] = decoded.state[name].to(tensor.dtype)
        pcm = decoded.pcm.to(torch.float32)
        return ChunkTensors(
            pcm=pcm, n_samples=decoded.n_samples, is_finite=pcm.isfinite().all(dim=1)
        )

    def _gather(self, index: Tensor, n_frames: int) -> Tensor:
        """Frames `(B, context + F, Q)`: context right before the chunk, zeros after its end."""
        slot, first, n_valid = index[0], index[1], index[2]
        at = first.unsqueeze(1) + torch.arange(-self._n_context, n_frames, device=self._device)
        is_past_end = at >= (first + n_valid).unsqueeze(1)
        frames = self._slots.frames[slot.unsqueeze(1), at.clamp(0, self._slots.frame_capacity)]
        frames = frames.masked_fill((at < 0).unsqueeze(2), NO_FRAME)
        return frames.masked_fill(is_past_end.unsqueeze(2), 0).long()

    def _upload(self, slots: Sequence[int], works: Sequence[ChunkWork]) -> Tensor:
        columns = (
            slots,
            [work.first_frame for work in works],
            [work.n_valid for work in works],
            [work.is_first for work in works],
            [work.is_last for work in works],
        )
        return torch.from_numpy(np.array(columns, dtype=np.int64)).to(self._device)
