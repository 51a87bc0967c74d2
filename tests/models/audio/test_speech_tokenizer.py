"""The speech tokenizer: every length, silence, recordings in pieces, files that do not fit."""

from __future__ import annotations

import sys

import onnx
import pytest
import torch
from safetensors.torch import save_file

from models.audio.speech_tokenizer import N_TOKENS, SpeechTokenizer, read_speech_tokenizer
from models.errors import WeightError
from tests.models.audio.tiny import speech_tokenizer_weights, write_speech_tokenizer_onnx


@pytest.fixture(scope="module")
def tokenizer() -> SpeechTokenizer:
    return SpeechTokenizer(speech_tokenizer_weights(), source="tiny")


def noise(n_samples: int) -> torch.Tensor:
    return 0.1 * torch.randn(n_samples, generator=torch.Generator().manual_seed(n_samples))


@pytest.mark.parametrize("n_samples", [1, 200, 201, 640, 799, 800, 801, 16_000, 480_000])
def test_there_is_a_token_for_each_40_ms(tokenizer, n_samples):
    tokens = tokenizer.tokens(noise(n_samples))
    assert len(tokens) == -(-max(1, n_samples // 160) // 4)
    assert tokens.min() >= 0
    assert tokens.max() < N_TOKENS


@pytest.mark.parametrize("n_frames", [3001, 3399, 5250, 5600, 30_000])
def test_no_token_of_a_long_recording_is_lost(tokenizer, n_frames):
    assert len(tokenizer.tokens(noise(n_frames * 160))) == -(-n_frames // 4)


def test_pieces_are_as_far_in_as_they_are_in_the_whole(tokenizer):
    """A second of noise far behind 30 s of silence gives the tokens that it gives alone."""
    sound = noise(16_000)
    whole = torch.zeros(40 * 16_000)
    whole[35 * 16_000 : 36 * 16_000] = sound
    alone = torch.zeros(14 * 16_000)
    alone[9 * 16_000 : 10 * 16_000] = sound
    # The second piece begins at 26 s.
    assert torch.equal(tokenizer.tokens(whole)[28 * 25 :], tokenizer.tokens(alone)[2 * 25 :])


def test_silence_has_tokens_and_a_batch_those_of_each(tokenizer):
    recordings = [torch.zeros(9_000), noise(1), noise(20_000), torch.zeros(640)]
    several = tokenizer.tokens_of(recordings)
    for pcm, tokens in zip(recordings, several, strict=True):
        assert torch.equal(tokens, tokenizer.tokens(pcm))


def test_buffers_of_chatterbox_are_no_weights():
    weights = speech_tokenizer_weights()
    weights |= {"_mel_filters": torch.zeros(128, 201), "window": torch.zeros(400)}
    SpeechTokenizer(weights, source="s3gen.safetensors")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("encoder.conv1.weight"), "lacks encoder.conv1.weight"),
        (
            lambda w: w.update({"encoder.conv1.weight": torch.ones(())}),
            r"encoder.conv1.weight of \(\)",
        ),
        (
            lambda w: w.update({"encoder.conv1.weight": torch.ones(0, 80, 3)}),
            r"encoder.conv1.weight of \(0, 80, 3\)",
        ),
        (lambda w: w.pop("encoder.blocks.0.attn.key.weight"), "missing: blocks.0.attn.key.weight"),
        (
            lambda w: w.pop("quantizer._codebook.project_down.bias"),
            "missing: quantizer._codebook.project_down.bias",
        ),
        (lambda w: w.update(surplus=torch.zeros(1)), "unexpected: surplus"),
        (
            lambda w: w.update({"encoder.conv1.weight": torch.zeros(65, 128, 3)}),
            "65 channels are no whole heads of 64",
        ),
    ],
)
def test_files_of_another_model_are_refused(change, named):
    weights = speech_tokenizer_weights()
    change(weights)
    with pytest.raises(WeightError, match=named):
        SpeechTokenizer(weights, source="it")


def test_an_onnx_file_has_the_same_weights(tokenizer, tmp_path):
    path = tmp_path / "speech_tokenizer_v2.onnx"
    write_speech_tokenizer_onnx(path)
    read = read_speech_tokenizer(path)
    assert torch.equal(read.tokens(noise(9_000)), tokenizer.tokens(noise(9_000)))


def test_onnx_files_that_cannot_be_read_are_told(tmp_path):
    path = tmp_path / "speech_tokenizer_v2.onnx"
    with pytest.raises(WeightError, match="is missing"):
        read_speech_tokenizer(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(WeightError, match="is damaged or cut short"):
        read_speech_tokenizer(path)
    write_speech_tokenizer_onnx(path)
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.raises(WeightError, match="is damaged or cut short"):
        read_speech_tokenizer(path)


def test_an_onnx_file_is_a_tokenizer_of_this_kind_with_weights_in_it(tmp_path):
    path = tmp_path / "speech_tokenizer_v2.onnx"
    write_speech_tokenizer_onnx(path)
    model = onnx.load(str(path))
    for node in list(model.graph.node):
        inputs = list(node.input)
        del node.input[:]
        onnx.save(model, str(path))
        if node.op_type in ("Mul", "Constant"):
            read_speech_tokenizer(path)
        else:
            with pytest.raises(WeightError, match=r"lacks encoder|missing: "):
                read_speech_tokenizer(path)
        node.input.extend(inputs)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    initializer = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(initializer, str(secret))
    initializer.ClearField("raw_data")
    initializer.data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    with pytest.raises(WeightError, match="weights lie in other files"):
        read_speech_tokenizer(path)


def test_without_the_package_that_reads_onnx_it_is_named(tmp_path, monkeypatch):
    path = tmp_path / "speech_tokenizer_v2.onnx"
    write_speech_tokenizer_onnx(path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(WeightError, match=r"needs the package onnx: `pip install parley\[voice\]`"):
        read_speech_tokenizer(path)
