"""The speech tokenizer against s3tokenizer: tokens, rows, long recordings, both kinds of files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.audio.mel import whisper_mel
from models.audio.speech_tokenizer import SpeechTokenizer, read_speech_tokenizer
from tests.parity.oracle import ask

LENGTHS = [201, 640, 16_000, 33_333, 480_000, 560_160, 976_000]
"""Samples; the last two are 35.01 and 61 s, heard in pieces."""


class Reference(NamedTuple):
    """A recording, and what the reference makes of its beginnings."""

    folder: Path
    pcm: Tensor
    outputs: dict[str, Tensor]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("s3")
    n = max(LENGTHS)
    # A sweep whose loudness changes, over noise: no two seconds are alike.
    seconds = torch.arange(n) / 16_000
    sweep = torch.sin(300.0 * seconds * (1.0 + seconds)) * torch.sin(5.0 * seconds)
    pcm = 0.3 * sweep + 0.02 * torch.randn(n, generator=torch.Generator().manual_seed(9))
    inputs = {"pcm": pcm, "lengths": torch.tensor(LENGTHS)}
    return Reference(folder, pcm, ask("speech_tokenizer", folder, inputs, apart="audio"))


@pytest.fixture(scope="module")
def tokenizer(reference) -> SpeechTokenizer:
    tensors = load_file(reference.folder / "tokenizer.safetensors")
    return SpeechTokenizer(tensors, source="tokenizer.safetensors")


@pytest.mark.parametrize("n_samples", LENGTHS)
def test_tokens_are_the_references(reference, tokenizer, n_samples):
    tokens = tokenizer.tokens(reference.pcm[:n_samples])
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, reference.outputs[f"tokens_{n_samples}"])
    if n_samples == max(LENGTHS):
        assert len(tokens.unique()) > 100


def test_rows_are_the_references(reference, tokenizer):
    for n_samples in (n for n in LENGTHS if n <= 480_000):
        rows = tokenizer.encoder(whisper_mel(reference.pcm[:n_samples], 80).unsqueeze(0))[0]
        # Values of a few units; the reference takes its angles in float32.
        assert (rows - reference.outputs[f"rows_{n_samples}"]).abs().max() < 1e-4


def test_recordings_of_all_lengths_in_one_batch_have_the_tokens_of_each(reference, tokenizer):
    several = tokenizer.tokens_of([reference.pcm[:n] for n in LENGTHS])
    for n_samples, tokens in zip(LENGTHS, several, strict=True):
        assert torch.equal(tokens, reference.outputs[f"tokens_{n_samples}"])


def test_the_onnx_file_gives_the_same_weights(reference, tokenizer):
    read = read_speech_tokenizer(reference.folder / "speech_tokenizer_v2.onnx")
    expected = tokenizer.state_dict()
    assert read.state_dict().keys() == expected.keys()
    assert all(torch.equal(x, expected[key]) for key, x in read.state_dict().items())
