"""The encoder of the Whisper kind against `transformers` and s3tokenizer, in both spellings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.audio.mel import whisper_mel
from models.audio.whisper_encoder import EncoderShape, load_whisper_encoder
from tests.parity.oracle import ask

SHAPE = EncoderShape(n_mels=12, hidden=32, n_heads=4, inner=64, n_layers=3, max_rows=40)
N_BLOCK = 7
N_FRAMES = torch.tensor([80, 47, 1])
TOLERANCE = 1e-5
"""Values of a few units, in float32."""


class Reference(NamedTuple):
    """Mel frames and samples, and what the references make of them."""

    folder: Path
    mel: Tensor
    pcm: Tensor
    outputs: dict[str, Tensor]

    def weights(self, name: str) -> dict[str, Tensor]:
        tensors = load_file(self.folder / f"{name}.safetensors")
        return {key: x for key, x in tensors.items() if not key.startswith("layer_norm.")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("whisper")
    generator = torch.Generator().manual_seed(6)
    mel = torch.randn(3, 12, 80, generator=generator)
    pcm = 0.2 * torch.randn(20_123, generator=generator)
    inputs = {"mel": mel, "pcm": pcm, "n_frames": N_FRAMES, "n_block": torch.tensor(N_BLOCK)}
    return Reference(folder, mel, pcm, ask("whisper_encoder", folder, inputs, apart="audio"))


@pytest.mark.parametrize(
    ("output", "changes"),
    [
        ("hugging_face", {}),
        ("first_layers", {"n_layers": 2}),
        ("without_future", {"is_causal": True, "block_rows": N_BLOCK}),
    ],
)
def test_rows_are_those_of_transformers(reference, output, changes):
    shape = replace(SHAPE, **changes)
    encoder = load_whisper_encoder(shape, reference.weights("hugging_face"), source="it")
    difference = encoder(reference.mel) - reference.outputs[output]
    assert difference.abs().max() < TOLERANCE
    assert reference.outputs[output].std() > 0.5


def test_rows_of_recordings_of_several_lengths_are_those_of_s3tokenizer(reference):
    shape = replace(SHAPE, inner=128)
    encoder = load_whisper_encoder(shape, reference.weights("openai"), source="it")
    rows = encoder(reference.mel, N_FRAMES)
    for idx, n_frames in enumerate(N_FRAMES.tolist()):
        n_rows = shape.n_rows(n_frames)
        difference = rows[idx, :n_rows] - reference.outputs["openai"][idx, :n_rows]
        assert difference.abs().max() < TOLERANCE


@pytest.mark.parametrize("n_mels", [80, 128])
def test_mel_spectra_are_those_of_the_feature_extractor(reference, n_mels):
    mel = whisper_mel(reference.pcm, n_mels)
    expected = reference.outputs[f"mel_{n_mels}"]
    assert mel.shape == expected.shape == (n_mels, 125)
    assert (mel - expected).abs().max() < 1e-5
