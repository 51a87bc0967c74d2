"""Runs the detokenizer on a batch of chunks. Engine thread.

Frames never leave the device: they are gathered from the slots' frame logs (and copied to the
detokenizer's device, where that is another). The codec state is gathered, handed to the model, and
scattered back only after the call came through, so that a call that raised can be made again for
each stream alone. By bucket (`engine.graphs`), a batch is filled up with chunks of nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.batch import Indices
from engine.chunks import ChunkWork
from engine.device_streams import DeviceStreams
from engine.graphs import Graphs, Outputs, bucket_of, bucket_sizes, upload_into
from engine.slot_state import SlotState
from models.base import SpeechModel

NO_FRAME = -1
"""Code that stands for left context from before a stream's first frame."""
_SLOT, _FIRST, _N_VALID, _IS_FIRST, _IS_LAST = range(5)
"""Rows of an index array: what a call must know of each stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTensors:
    """Audio of one call, on the device: `pcm` (B, S), `n_samples` (B,), `is_finite` (B,)."""

    pcm: Tensor
    n_samples: Tensor
    is_finite: Tensor


class CodecRunner:
    """Detokenizer calls for one model.

    Args:
        model: whose `decode` is run, on `device`.
        slots: frames and codec state of the streams.
        max_streams: streams that hold state at once.
        device: of the detokenizer and its state; the frames may be on another.
        streams: `frames` is where they are gathered and leave from, `codec` where they are decoded.
        graphs: runs the calls by bucket; None: as they stand, in the size of the batch.
    """

    def __init__(
        self,
        model: SpeechModel,
        slots: SlotState,
        max_streams: int,
        device: torch.device,
        streams: DeviceStreams,
        graphs: Graphs | None = None,
    ) -> None:
        codec = model.spec.codec
        self._model = model
        self._slots = slots
        self._device = device
        self._streams = streams
        self._graphs = graphs
        self._n_context = codec.left_context_frames
        self._call_frames = codec.all_sizes
        self._sizes = bucket_sizes(min(codec.max_batch, max_streams))
        n_most = self._sizes[-1]
        self._index = torch.zeros((5, n_most), dtype=torch.int64, device=device)
        self._frames = {
            n: slots.frames.new_zeros(
                (n_most, self._n_context + n, slots.frames.shape[2]), dtype=torch.int64
            ).to(device)
            for n in (() if graphs is None else codec.all_sizes)
        }

    def capture(self) -> None:
        """Record every call that can come, with chunks of nobody alone."""
        if self._graphs is None:
            return
        nothing = np.zeros((5, 0), dtype=np.int64)
        for n_frames in self._call_frames:
            for bucket in self._sizes:
                self._fill(nothing, n_frames, bucket)
                call = partial(self._padded_step, n_frames, bucket)
                uses = self._uses(n_frames)
                self._graphs.record(("codec", bucket, n_frames), call, uses)

    def decode(self, slots: Sequence[int], works: Sequence[ChunkWork]) -> ChunkTensors:
        """Detokenize one chunk of each of `slots`; all works have the same `n_frames`."""
        n_frames = works[0].n_frames
        assert all(work.n_frames == n_frames for work in works), "a call has one size"
        columns = (
            slots,
            [work.first_frame for work in works],
            [work.n_valid for work in works],
            [work.is_first for work in works],
            [work.is_last for work in works],
        )
        index = np.array(columns, dtype=np.int64)
        if self._graphs is None:
            frames = self._bring(index, n_frames)
            outputs = self._step(frames, torch.from_numpy(index).to(self._device))
        else:
            bucket = bucket_of(len(works), self._sizes)
            self._fill(index, n_frames, bucket)
            outputs = self._graphs.run(("codec", bucket, n_frames), self._uses(n_frames))
        pcm, n_samples, is_finite = (output[: len(works)] for output in outputs)
        return ChunkTensors(pcm=pcm, n_samples=n_samples, is_finite=is_finite)

    def _fill(self, index: Indices, n_frames: int, bucket: int) -> None:
        """Put the chunks of `index` (5, B) into the buffers, and chunks of nobody after them."""
        # A first chunk of silence: every model takes it, and it leaves nothing behind.
        nobody = [[self._slots.nobody], [0], [n_frames], [1], [0]]
        padding = np.repeat(nobody, bucket - index.shape[1], axis=1)
        index = np.concatenate([index, padding], axis=1)
        self._bring(index, n_frames, into=self._frames[n_frames][:bucket])
        upload_into(self._index[:, :bucket], index)

    def _padded_step(self, n_frames: int, bucket: int) -> Outputs:
        outputs = self._step(self._frames[n_frames][:bucket], self._index[:, :bucket])
        for part in self._slots.codec.values():
            part[self._slots.nobody].zero_()
        return outputs

    def _uses(self, n_frames: int) -> dict[str, object]:
        """What the calls read and write, by name."""
        return {"frames": self._frames[n_frames], "index": self._index, **self._slots.codec}

    def _step(self, frames: Tensor, index: Tensor) -> Outputs:
        """Decode `frames` `(B, context + F, Q)` of the streams in `index` (5, B): PCM and marks."""
        slot = index[_SLOT]
        state = {name: part[slot] for name, part in self._slots.codec.items()}
        is_first, is_last = index[_IS_FIRST].bool(), index[_IS_LAST].bool()
        decoded = self._model.decode(frames, index[_N_VALID], state, is_first, is_last)
        for name, part in self._slots.codec.items():
            part[slot] = decoded.state[name].to(part.dtype)
        pcm = decoded.pcm.to(torch.float32)
        return pcm, decoded.n_samples, pcm.isfinite().all(dim=1)

    def _bring(self, index: Indices, n_frames: int, into: Tensor | None = None) -> Tensor:
        """Frames of a call, on the detokenizer's device; in the buffer `into`, if there is one."""
        here, there = self._streams.frames, self._streams.codec
        if here is not there:
            # The call before this one may still be reading the buffer.
            here.wait(there.mark())
        with here.queue():
            frames = self._gather(index, n_frames)
            if into is None:
                into = frames.to(self._device, non_blocking=True)
            else:
                into.copy_(frames, non_blocking=True)
        if here is not there:
            there.wait(here.mark())
        return into

    def _gather(self, index: Indices, n_frames: int) -> Tensor:
        """Frames `(B, context + F, Q)`: context right before the chunk, zeros after its end."""
        log = self._slots.frames
        slot, first, n_valid, *_ = torch.from_numpy(index).to(log.device, non_blocking=True)
        at = first.unsqueeze(1) + torch.arange(-self._n_context, n_frames, device=log.device)
        is_past_end = at >= (first + n_valid).unsqueeze(1)
        frames = log[slot.unsqueeze(1), at.clamp(0, self._slots.frame_capacity)]
        frames = frames.masked_fill((at < 0).unsqueeze(2), NO_FRAME)
        return frames.masked_fill(is_past_end.unsqueeze(2), 0).long()
