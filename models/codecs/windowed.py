"""Streaming for codecs that read the future: windows with context, exact and without state.

A decoder made of same-padded convolutions has a finite reach. A call is given the frames of a chunk
and `reach` frames before and after those that it gives; whatever lies outside of the utterance is
silenced at every layer (`models.layers.conv.silence`), as whole decoding pads with zeros there. The
frames in the middle are then those of whole decoding, up to rounding, for every pattern of chunks.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

from models.base import Decoded
from models.layers.conv import ENDLESS, Span
from models.spec import CodecSpec, StateSpec

CLOCK: Final = StateSpec(name="n_frames", shape=(1,), dtype="int64")
"""All that a stream carries from chunk to chunk: how many frames it has had."""


class FrameDecoder(Protocol):
    """A network from codes to PCM.

    `reach` is how many frames to either side change the audio of a frame; it is stated by the
    network and tested, not assumed here.
    """

    reach: int
    samples_per_frame: int

    def __call__(self, codes: Tensor, span: Span) -> Tensor:
        """Codes `(B, T, Q)` of a window, first and last frame as `span` says, to PCM `(B, n)`."""
        ...


def windowed_codec(reach: int, chunk_frames: tuple[int, ...], *, max_batch: int = 16) -> CodecSpec:
    """The codec's side of a spec.

    Args:
        reach: of the network.
        chunk_frames: sizes of calls, ascending; one above `reach`, or a first call gives nothing.
        max_batch: most streams in a call.
    """
    return CodecSpec(
        chunk_frames=chunk_frames,
        left_context_frames=2 * reach,
        lookahead_frames=reach,
        state=(CLOCK,),
        max_batch=max_batch,
    )


def decode_window(
    network: FrameDecoder,
    frames: Tensor,
    n_valid: Tensor,
    state: dict[str, Tensor],
    is_last: Tensor,
) -> Decoded:
    """One chunk of each stream; see `models.base.SpeechModel.decode`.

    Args:
        network: that decodes.
        frames: `(B, 2 * reach + F, Q)`; -1 from before the start.
        n_valid: `(B,)`.
        state: `CLOCK`.
        is_last: `(B,)`.
    """
    reach, width = network.reach, network.samples_per_frame
    n_before = state[CLOCK.name][:, 0]
    n_after = n_before + n_valid
    # What was given so far stops `reach` frames before the newest; the last chunk gives all.
    first = (n_before - reach).clamp(min=0)
    end = torch.where(is_last, n_after, (n_after - reach).clamp(min=0))
    start = n_before - 2 * reach
    span = Span(start=start, end=torch.where(is_last, n_after, ENDLESS))
    pcm = network(frames.clamp(min=0), span)
    n_most = (frames.shape[1] - reach) * width
    at = ((first - start) * width).unsqueeze(1) + torch.arange(n_most, device=pcm.device)
    n_samples = (end - first) * width
    given = pcm.gather(1, at.clamp(max=pcm.shape[1] - 1))
    is_given = torch.arange(n_most, device=pcm.device) < n_samples.unsqueeze(1)
    return Decoded(
        pcm=given.masked_fill(~is_given, 0.0),
        n_samples=n_samples,
        state={CLOCK.name: n_after.unsqueeze(1)},
    )
