"""Chatterbox's voice encoder against its own class, on random weights: vectors within 1e-4."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.chatterbox.voice_encoder import VoiceEncoder, stretches
from models.errors import WeightError
from models.weights import read_tensors
from tests.parity.oracle import ask

SAMPLES = (9_000, 16_000, 26_500, 48_000, 90_000)
"""Under one stretch of 1.6 s; one; one and what is too short for another; several."""


@pytest.fixture(scope="module")
def recordings() -> dict[str, torch.Tensor]:
    """Noise that swells, so that its ends are too soft to count."""
    generator = torch.Generator().manual_seed(6)
    return {
        f"pcm{n}": torch.randn(n, generator=generator)
        * (0.3 * torch.linspace(0.02, 3.1, n).sin().abs())
        for n in SAMPLES
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("voice")


@pytest.fixture(scope="module")
def reference(folder, recordings) -> dict[str, torch.Tensor]:
    return ask("chatterbox_voice", folder, recordings, apart="audio")


@pytest.fixture(scope="module")
def encoder(folder, reference) -> VoiceEncoder:
    return VoiceEncoder(read_tensors(folder / "ve.safetensors"), source="ve.safetensors")


def test_vectors_are_the_reference_s(encoder, recordings, reference):
    for name, pcm in recordings.items():
        assert reference[name].std() > 0.03
        torch.testing.assert_close(encoder(pcm), reference[name], atol=1e-4, rtol=0)
    assert (encoder(recordings["pcm48000"]) - encoder(recordings["pcm90000"])).abs().max() > 0.01


@pytest.mark.parametrize(
    ("n_frames", "n"), [(1, 1), (160, 1), (204, 1), (205, 2), (237, 2), (281, 2), (282, 3)]
)
def test_a_last_stretch_counts_if_most_of_it_is_there(n_frames, n):
    """128 of its 160 frames; what is missing is silent."""
    frames = torch.arange(1.0, n_frames + 1).unsqueeze(1)
    cut = stretches(frames)
    assert cut.shape == (n, 160, 1)
    assert int(cut[-1, 0, 0]) == 77 * (n - 1) + 1
    assert (cut[-1, :, 0] == 0).sum() == max(0, 77 * (n - 1) + 160 - n_frames)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("lstm.weight_hh_l1"), r"missing: lstm\.weight_hh_l1"),
        (lambda t: t.update(stray=torch.ones(1)), "unexpected: stray"),
        (lambda t: t.update({"proj.bias": torch.ones(3)}), r"unfit: proj\.bias is \(3,\)"),
        (lambda t: t.pop("proj.weight"), r"lacks proj\.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, reference, change, shown):
    tensors = dict(read_tensors(folder / "ve.safetensors"))
    change(tensors)
    with pytest.raises(WeightError, match=shown):
        VoiceEncoder(tensors, source="ve.safetensors")
