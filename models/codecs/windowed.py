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
    pcm, n_samples = cut(
        _run(network, frames, span), start, first, end, frames.shape[1] - reach, width
    )
    return Decoded(pcm=pcm, n_samples=n_samples, state={CLOCK.name: n_after.unsqueeze(1)})


def cut(
    pcm: Tensor, start: Tensor, first: Tensor, end: Tensor, n_most: int, width: int
) -> tuple[Tensor, Tensor]:
    """The frames of a window that a call gives: PCM `(B, n_most * width)`, zeros behind it, counts.

    Args:
        pcm: `(B, n)` of the window.
        start: `(B,)` frame at which the window starts.
        first: `(B,)` frame from which on audio is given.
        end: `(B,)` frame before which it ends.
        n_most: frames that a call gives at most.
        width: samples of a frame.
    """
    steps = torch.arange(n_most * width, device=pcm.device)
    at = ((first - start) * width).unsqueeze(1) + steps
    n_samples = (end - first) * width
    given = pcm.gather(1, at.clamp(max=pcm.shape[1] - 1))
    return given.masked_fill(steps >= n_samples.unsqueeze(1), 0.0), n_samples


def _run(network: FrameDecoder, frames: Tensor, span: Span) -> Tensor:
    """PCM `(B, T * samples_per_frame)` of whole windows.

    On a CPU each by itself, without the frames outside of its utterance: one window fits the cache
    where a batch does not, and the first and the last chunk of a stream are mostly such frames.
    """
    codes = frames.clamp(min=0)
    if codes.device.type != "cpu" or torch.compiler.is_compiling():
        return network(codes, span)
    width, n_frames = network.samples_per_frame, codes.shape[1]
    pcm = codes.new_zeros((len(codes), n_frames * width), dtype=torch.float32)
    bounds = torch.stack([-span.start, span.end - span.start]).clamp(0, n_frames).tolist()
    for row, (low, high) in enumerate(zip(*bounds, strict=True)):
        if low < high:
            own = slice(row, row + 1)
            part = Span(start=span.start[own] + low, end=span.end[own])
            pcm[own, low * width : high * width] = network(codes[own, low:high], part)
    return pcm
