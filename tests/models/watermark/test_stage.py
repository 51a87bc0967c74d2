"""Marks streamed: the same for every pattern of chunks, every sample there, streams apart.

Tolerance 2e-6 (float32, sums in another order); a mark changes samples by 1e-3 and more.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from models.audio.resample import resample
from models.watermark.stage import Stage
from tests.models.watermark.tiny import MARKS, frame, start, whole

TOLERANCE = 2e-6
RATES_HZ = (24_000, 44_100, 16_000)
WIDTH = 320
N_FRAMES = 20
PATTERNS = ([1] * N_FRAMES, [4, 16], [1, 2, 3, 4, 7, 2, 1])


@pytest.fixture(params=MARKS)
def mark(request):
    return MARKS[request.param]()


def sounds(n_streams: int, n_frames: int, *, seed: int = 0) -> Tensor:
    """Noise that swells, with silence before and after it in some."""
    generator = torch.Generator().manual_seed(seed)
    pcm = 0.1 * torch.randn(n_streams, n_frames * WIDTH, generator=generator)
    pcm *= torch.linspace(0.1, 1, pcm.shape[1])
    pcm[::2, : pcm.shape[1] // 5] = 0.0
    return pcm


class Streams:
    """Streams of one stage, pushed chunk by chunk."""

    def __init__(self, stage: Stage, pcm: Tensor) -> None:
        self.stage, self._pcm = stage, pcm
        self._state = start(stage, len(pcm))
        self._at = 0
        self.given = [pcm.new_zeros(0) for _ in pcm]
        self.counts: list[int] = []

    @torch.inference_mode()
    def push(self, size: int, n_valid: int, *, is_last: bool) -> None:
        new = self._pcm[:, self._at * WIDTH : (self._at + n_valid) * WIDTH]
        new = torch.nn.functional.pad(new, (0, (size - n_valid) * WIDTH))
        self._at += n_valid
        rows = len(self._pcm)
        marked, n_samples, self._state = self.stage(
            new,
            torch.full((rows,), n_valid * WIDTH),
            self._state,
            torch.full((rows,), is_last),
        )
        for row in range(rows):
            assert (marked[row, n_samples[row] :] == 0).all()
            self.given[row] = torch.cat([self.given[row], marked[row, : n_samples[row]]])
        self.counts.append(int(n_samples[0]))


def stream(stage: Stage, pcm: Tensor, pattern: list[int]) -> Tensor:
    streams = Streams(stage, pcm)
    for size in pattern:
        streams.push(size, size, is_last=False)
    streams.push(4, 0, is_last=True)
    return torch.stack(streams.given)


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_pattern_of_chunks_gives_the_same(mark, rate_hz, pattern):
    stage = Stage(mark, frame(rate_hz, WIDTH))
    pcm = sounds(3, N_FRAMES)
    expected = whole(stage, pcm)
    assert (expected - pcm).abs().max() > 1e-3, "there is a mark"
    torch.testing.assert_close(stream(stage, pcm, pattern), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_frames", [0, 1, 2, 5, 19])
def test_every_length_has_its_samples(mark, n_frames):
    """The last chunk brings frames too, fewer than it could hold."""
    stage = Stage(mark, frame(24_000, WIDTH))
    pcm = sounds(2, n_frames, seed=1)
    streams = Streams(stage, pcm)
    for _ in range(n_frames // 2):
        streams.push(1, 1, is_last=False)
    streams.push(32, n_frames - n_frames // 2, is_last=True)
    assert sum(streams.counts) == n_frames * WIDTH
    held_back = stage.lookahead_frames
    assert streams.counts[:-1] == [WIDTH * (n >= held_back) for n in range(n_frames // 2)]
    if n_frames:
        given = torch.stack(streams.given)
        torch.testing.assert_close(given, whole(stage, pcm), atol=TOLERANCE, rtol=0)


def test_streams_of_a_batch_do_not_touch(mark):
    stage = Stage(mark, frame(24_000, WIDTH))
    pcm = sounds(4, N_FRAMES, seed=2)
    together = stream(stage, pcm, [8, 8, 4])
    for row, marked in zip(pcm, together, strict=True):
        alone = stream(stage, row.unsqueeze(0), [8, 8, 4])[0]
        torch.testing.assert_close(marked, alone, atol=TOLERANCE, rtol=0)


def test_streams_at_different_places_share_a_call(mark):
    """One has just begun, one ends, one is in its midst, and one brings nothing more."""
    stage = Stage(mark, frame(24_000, WIDTH))
    pcm = sounds(4, N_FRAMES, seed=3)
    expected = whole(stage, pcm)
    states, n_before = [], (0, 16, 11, N_FRAMES)
    for row, n in enumerate(n_before):
        one = Streams(stage, pcm[row : row + 1])
        if n:
            one.push(n, n, is_last=False)
        states.append(one._state)
    state = {key: torch.cat([one[key] for one in states]) for key in states[0]}
    n_new = torch.tensor([4, 4, 4, 0])
    new = torch.zeros(4, 4 * WIDTH)
    for row, n in enumerate(n_before):
        part = pcm[row, n * WIDTH : (n + 4) * WIDTH]
        new[row, : len(part)] = part
    is_last = torch.tensor([False, True, False, True])
    with torch.inference_mode():
        marked, n_samples, _ = stage(new, n_new * WIDTH, state, is_last)
    late = stage.lookahead_frames
    assert 0 < late <= 3
    given = [max(0, n - late) * WIDTH for n in n_before]
    ends = [max(0, 4 - late), N_FRAMES, 15 - late, N_FRAMES]
    for row, (first, end) in enumerate(zip(given, ends, strict=True)):
        assert n_samples[row] == end * WIDTH - first
        part = marked[row, : n_samples[row]]
        wanted = expected[row, first : end * WIDTH]
        torch.testing.assert_close(part, wanted, atol=TOLERANCE, rtol=0)


def test_what_is_not_needed_is_left_out_on_a_cpu_alone(mark):
    """A GPU computes all of a call; what is heard is the same."""
    stage = Stage(mark, frame(24_000, WIDTH))
    pcm = sounds(3, N_FRAMES, seed=4)
    expected = stream(stage, pcm, [1, 3, 8, 8])
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
        dense = stream(stage, pcm, [1, 3, 8, 8])
    torch.testing.assert_close(dense, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rate_hz", [24_000, 16_000, 22_050])
def test_only_the_mark_is_brought_to_another_rate(mark, rate_hz):
    """Composed of whole steps: the signal there, what the mark adds to it, and that back."""
    (pcm,) = sounds(1, N_FRAMES, seed=5)
    there = resample(pcm, rate_hz, mark.rate_hz)
    added = whole(Stage(mark, frame(mark.rate_hz, 1)), there[None])[0] - there
    expected = pcm + resample(added, mark.rate_hz, rate_hz)[: len(pcm)]
    marked = whole(Stage(mark, frame(rate_hz, WIDTH)), pcm[None])[0]
    torch.testing.assert_close(marked, expected, atol=TOLERANCE, rtol=0)


def test_samples_need_not_come_in_whole_frames(mark):
    stage = Stage(mark, frame(24_000, WIDTH))
    pcm = sounds(1, N_FRAMES, seed=7)[:, :6101]
    state, at, given = start(stage, 1), 0, []
    for n in (1, 0, 3333, 777, 6101 - 4111):
        new = torch.nn.functional.pad(pcm[:, at : at + n], (0, 3400 - n))
        at += n
        is_last = torch.tensor([at == 6101])
        with torch.inference_mode():
            marked, n_samples, state = stage(new, torch.tensor([n]), state, is_last)
        given.append(marked[0, : n_samples[0]])
    torch.testing.assert_close(torch.cat(given), whole(stage, pcm)[0], atol=TOLERANCE, rtol=0)


def test_what_lies_beyond_full_scale_is_cut(mark):
    stage = Stage(mark, frame(24_000, WIDTH))
    pcm = sounds(1, N_FRAMES, seed=6)
    assert whole(stage, 2 * pcm / pcm.abs().max()).abs().max() == 1.0
