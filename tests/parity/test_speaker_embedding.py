"""The speaker embedding against Chatterbox's class, its features against torchaudio's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.audio.kaldi import kaldi_fbank
from models.audio.speaker_embedding import CamPlus, OnnxCamPlus, SpeakerEmbedder
from tests.parity.oracle import ask

LENGTHS = [1040, 16_000, 35_555, 80_001]


class Reference(NamedTuple):
    """Recordings, and what the reference makes of them."""

    folder: Path
    pcm: Tensor
    outputs: dict[str, Tensor]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("camplus")
    n = max(LENGTHS)
    seconds = torch.arange(n) / 16_000
    # A tone leaves bands of next to nothing, which show how a filter bank was rounded.
    pcm = 0.4 * torch.sin(2800.0 * seconds) * torch.sin(3.0 * seconds)
    pcm[n // 2 :] += 0.1 * torch.randn(n - n // 2, generator=torch.Generator().manual_seed(5))
    inputs = {"pcm": pcm, "lengths": torch.tensor(LENGTHS)}
    return Reference(folder, pcm, ask("speaker_embedding", folder, inputs, apart="audio"))


@pytest.fixture(scope="module", params=["tensors", "onnx"])
def embedder(reference, request) -> SpeakerEmbedder:
    if request.param == "onnx":
        return OnnxCamPlus(reference.folder / "campplus.onnx")
    return CamPlus(load_file(reference.folder / "campplus.safetensors"), source="it")


@pytest.mark.parametrize("n_samples", LENGTHS)
def test_bands_are_kaldis(reference, n_samples):
    bands = kaldi_fbank(reference.pcm[:n_samples], 80)
    expected = reference.outputs[f"bands_{n_samples}"]
    assert bands.shape == expected.shape == (1 + (n_samples - 400) // 160, 80)
    # Logarithms between -16 and 10.
    assert (bands - expected).abs().max() < 1e-3
    assert (bands - expected).abs().mean() < 1e-5


@pytest.mark.parametrize("n_samples", LENGTHS)
def test_vectors_are_the_references(reference, embedder, n_samples):
    vector = embedder.embed(reference.pcm[:n_samples])
    expected = reference.outputs[f"vector_{n_samples}"]
    assert vector.shape == (192,)
    assert vector.dtype == torch.float32
    assert (vector - expected).abs().max() < 1e-4
    assert expected.std() > 0.1
