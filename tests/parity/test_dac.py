"""DAC against `transformers`, on random weights in its layout.

Tolerance 2e-5 on PCM of about 0.4, for the reasons in `test_snac`.
"""

from __future__ import annotations

import pytest
import torch

from models.codecs.dac import load_dac
from tests.parity.oracle import ask
from tests.parity.test_snac import Streams, stream, whole

N_FRAMES = 61
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.randint(0, 64, (2, N_FRAMES, 9), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def reference(codes, tmp_path_factory):
    """The loaded checkpoint, and the library's PCM."""
    folder = tmp_path_factory.mktemp("dac")
    pcm = ask("dac_decode", folder, {"codes": codes})["pcm"]
    return load_dac(folder), pcm


def test_the_same_samples(reference, codes):
    model, pcm = reference
    assert pcm.shape == (2, N_FRAMES * model.samples_per_frame)
    assert 0.1 < pcm.std() < 0.7
    torch.testing.assert_close(whole(model, codes), pcm, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[4], [8, 16, 24], [1], [30, 1], [64]])
def test_streaming_equals_whole_decoding(reference, codes, sizes):
    model, pcm = reference
    streamed = torch.stack(stream(model, codes, sizes))
    torch.testing.assert_close(streamed, pcm, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_frames", [0, 1, 9, 10, 11, 20, 21])
def test_every_length_has_its_samples(reference, codes, n_frames):
    model, _ = reference
    streams = Streams(model, codes[:1, :n_frames])
    for _ in range(n_frames):
        streams.push(1, 1, is_last=False)
    streams.push(1, 0, is_last=True)
    assert len(streams.pcm[0]) == n_frames * model.samples_per_frame
    if n_frames:
        expected = whole(model, codes[:1, :n_frames])[0]
        torch.testing.assert_close(streams.pcm[0], expected, atol=TOLERANCE, rtol=0)


def test_the_reach_is_real(reference, codes):
    """A code changes the frames within the reach and none beyond."""
    model, _ = reference
    changed = codes.clone()
    changed[0, 30] = (changed[0, 30] + 7) % 64
    differs = (whole(model, changed)[0] - whole(model, codes)[0]).abs() > 1e-7
    touched = differs.view(N_FRAMES, -1).any(dim=1).nonzero().flatten()
    assert model.reach == 10
    assert touched.min() >= 30 - model.reach
    assert touched.max() <= 30 + model.reach
    assert len(touched) > 2 * model.reach - 3, "a weaker reach would do"
