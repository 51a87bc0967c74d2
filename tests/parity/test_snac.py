"""SNAC against the library that its checkpoints come from, on random weights in their layout.

Tolerance 1e-5 on PCM of up to 1: float32 rounding through twenty layers, in another order of sums
where windows have another length (2.4e-6 was seen).
"""

from __future__ import annotations

import pytest
import torch

from models.base import Decoded
from models.codecs.snac import load_snac, noise_table
from models.codecs.windowed import CLOCK, FrameDecoder, decode_window, windowed_codec
from models.layers.conv import Span
from tests.parity.oracle import ask

N_FRAMES = 23
N_CODES = 64
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The loaded checkpoint, codes `(1, T, 7)`, and the library's PCM of them `(n,)`."""
    folder = tmp_path_factory.mktemp("snac")
    generator = torch.Generator().manual_seed(5)
    levels = [torch.randint(0, N_CODES, (1, N_FRAMES * n), generator=generator) for n in (1, 2, 4)]
    inputs = {f"level{idx}": level for idx, level in enumerate(levels)}
    pcm = ask("snac_decode", folder, {**inputs, "noise": noise_table()})["pcm"][0]
    frames = torch.cat([level.view(1, N_FRAMES, -1) for level in levels], dim=2)
    return load_snac(folder), frames, pcm


def whole(model: FrameDecoder, frames: torch.Tensor) -> torch.Tensor:
    n_rows, n_frames = frames.shape[:2]
    span = Span(start=torch.zeros(n_rows).long(), end=torch.full((n_rows,), n_frames))
    return model(frames, span)


class Streams:
    """Rows of a batch, decoded chunk by chunk."""

    def __init__(self, model: FrameDecoder, frames: torch.Tensor) -> None:
        self.model, self.frames = model, frames
        self.state = {CLOCK.name: torch.zeros(len(frames), 1).long()}
        self.pcm = [torch.zeros(0) for _ in frames]
        self.n_done = 0
        self.context = windowed_codec(model.reach, (1,)).left_context_frames

    def push(self, size: int, n_valid: int, *, is_last: bool) -> Decoded:
        n_rows, _, n_codes = self.frames.shape
        padded = torch.cat([torch.full((n_rows, self.context, n_codes), -1), self.frames], dim=1)
        window = torch.zeros(n_rows, self.context + size, n_codes).long()
        held = padded[:, self.n_done : self.n_done + self.context + n_valid]
        window[:, : held.shape[1]] = held
        ends = torch.full((n_rows,), is_last)
        valid = torch.full((n_rows,), n_valid)
        decoded = decode_window(self.model, window, valid, self.state, ends)
        self.state = decoded.state
        self.n_done += n_valid
        for row, n_samples in enumerate(decoded.n_samples.tolist()):
            self.pcm[row] = torch.cat([self.pcm[row], decoded.pcm[row, :n_samples]])
        return decoded


def stream(model: FrameDecoder, frames: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """The rows' PCM, in chunks of the given sizes, over and over."""
    streams, turn = Streams(model, frames), 0
    while streams.n_done < frames.shape[1]:
        size = sizes[turn % len(sizes)]
        n_valid = min(size, frames.shape[1] - streams.n_done)
        streams.push(size, n_valid, is_last=streams.n_done + n_valid == frames.shape[1])
        turn += 1
    return streams.pcm


def test_the_same_samples(reference):
    model, frames, pcm = reference
    assert len(pcm) == N_FRAMES * model.samples_per_frame
    assert pcm.abs().max() > 0.1
    torch.testing.assert_close(whole(model, frames)[0], pcm, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[4, 1], [4, 5, 7, 8], [1], [2, 3], [30], [9, 9, 5]])
def test_streaming_equals_whole_decoding(reference, sizes):
    model, frames, pcm = reference
    (streamed,) = stream(model, frames, sizes)
    torch.testing.assert_close(streamed, pcm, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_frames", [0, 1, 2, 3, 4, 6, 7, 8])
def test_every_length_has_its_samples(reference, n_frames):
    model, frames, _ = reference
    frames = frames[:, :n_frames]
    streams = Streams(model, frames)
    for _ in range(n_frames):
        streams.push(1, 1, is_last=False)
    streams.push(1, 0, is_last=True)
    (streamed,) = streams.pcm
    assert len(streamed) == n_frames * model.samples_per_frame
    if n_frames:
        expected = whole(model, frames)[0]
        torch.testing.assert_close(streamed, expected, atol=TOLERANCE, rtol=0)


def test_rows_of_a_batch_do_not_touch(reference):
    model, frames, _ = reference
    rows = torch.cat([frames, frames.flip(1), frames.roll(3, dims=1)])
    together = stream(model, rows, [4, 3])
    for row, pcm in zip(rows, together, strict=True):
        (alone,) = stream(model, row.unsqueeze(0), [4, 3])
        torch.testing.assert_close(pcm, alone, atol=TOLERANCE, rtol=0)


def test_the_reach_is_real(reference):
    """A code changes the frames within the reach and none beyond."""
    model, frames, _ = reference
    changed = frames.clone()
    changed[0, 10] = (changed[0, 10] + 7) % N_CODES
    differs = (whole(model, changed)[0] - whole(model, frames)[0]).abs() > 1e-7
    touched = differs.view(N_FRAMES, -1).any(dim=1).nonzero().flatten()
    assert touched.min() >= 10 - model.reach
    assert touched.max() <= 10 + model.reach
    assert len(touched) > 3, "a weaker reach would do"
