"""Encoders of the Whisper kind: batches, what is not heard, and files that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.audio.mel import whisper_mel
from models.audio.whisper_encoder import EncoderShape, WhisperEncoder, load_whisper_encoder
from models.errors import WeightError

PLAIN = EncoderShape(n_mels=4, hidden=16, n_heads=2, inner=24, n_layers=2, max_rows=20)
BLOCKS = replace(PLAIN, is_causal=True, block_rows=6)
MEMORY = replace(PLAIN, strides=(2, 2), is_rotary=True, n_memory=5)
SHAPES = pytest.mark.parametrize(
    "shape", [PLAIN, BLOCKS, MEMORY], ids=["plain", "blocks", "memory"]
)
CLOSE = 1e-5
"""Sums in another order."""


def encoder_of(shape: EncoderShape) -> WhisperEncoder:
    generator = torch.Generator().manual_seed(11)
    encoder = WhisperEncoder(shape).requires_grad_(False).eval()
    for parameter in encoder.parameters():
        parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return encoder


def mel_of(n_frames: int) -> Tensor:
    return torch.randn(1, 4, n_frames, generator=torch.Generator().manual_seed(n_frames))


def as_file(encoder: WhisperEncoder) -> dict[str, Tensor]:
    """The weights by Hugging Face's keys."""
    parts = {
        "positions": "embed_positions.weight",
        "attention_norm": "self_attn_layer_norm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "out": "self_attn.out_proj",
        "mlp_norm": "final_layer_norm",
        "up": "fc1",
        "down": "fc2",
    }
    return {
        ".".join(parts.get(part, part) for part in key.split(".")): tensor
        for key, tensor in encoder.state_dict().items()
    }


@SHAPES
def test_a_batch_gives_the_rows_of_each_recording_alone(shape):
    encoder = encoder_of(shape)
    lengths = list(range(1, 18))
    mel = torch.randn(len(lengths), 4, 20, generator=torch.Generator().manual_seed(2))
    rows = encoder(mel, torch.tensor(lengths))
    assert rows.isfinite().all()
    for idx, n_frames in enumerate(lengths):
        alone = encoder(mel[idx : idx + 1, :, :n_frames])[0]
        n_rows = shape.n_rows(n_frames)
        assert len(alone) == n_rows
        assert (rows[idx, :n_rows] - alone).abs().max() < CLOSE
        assert not rows[idx, n_rows:].any()


def test_attention_may_look_at_fewer_rows_than_there_are():
    encoder, mel = encoder_of(PLAIN), mel_of(16)
    rows = encoder(mel, n_attended=torch.tensor([5]))
    changed = mel.clone()
    changed[:, :, 12:] += 1.0
    assert (encoder(changed, n_attended=torch.tensor([5]))[:, :5] - rows[:, :5]).abs().max() < CLOSE
    assert (encoder(changed)[:, :5] - encoder(mel)[:, :5]).abs().max() > CLOSE
    assert rows[:, 5:].any()


def test_with_blocks_a_row_hears_nothing_behind_its_own():
    encoder, mel = encoder_of(BLOCKS), mel_of(36)
    rows = encoder(mel)
    changed = mel.clone()
    changed[:, :, 24:] += 1.0
    difference = (encoder(changed) - rows).abs().amax(dim=2)[0]
    assert difference[:12].max() < CLOSE
    assert difference[12:].min() > CLOSE
    within = mel.clone()
    within[:, :, 22:24] += 1.0
    assert (encoder(within) - rows).abs().amax(dim=2)[0, 6:12].min() > CLOSE


def test_layers_behind_those_that_run_are_left_out():
    weights = as_file(encoder_of(PLAIN))
    short = load_whisper_encoder(replace(PLAIN, n_layers=1), weights, source="it")
    assert len(short.layers) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("layers.1.self_attn.k_proj.weight"), "layers.1.self_attn.k_proj.weight"),
        (lambda w: w.update({"layer_norm.weight": torch.ones(16)}), "layer_norm.weight"),
        (lambda w: w.update({"embed_positions.weight": torch.ones(19, 16)}), "embed_positions"),
        (lambda w: w.update({"layers.0.self_attn.k_proj.bias": torch.ones(16)}), "k_proj.bias"),
    ],
)
def test_a_file_of_another_model_is_refused_by_its_own_names(change, named):
    weights = as_file(encoder_of(PLAIN))
    change(weights)
    with pytest.raises(WeightError, match=f"it does not fit.*{named}"):
        load_whisper_encoder(PLAIN, weights, source="it")


def test_every_length_has_a_spectrum():
    for n_samples in (1, 2, 159, 200, 201, 319, 320, 400, 3_999):
        mel = whisper_mel(torch.ones(n_samples), 80)
        assert mel.shape == (80, max(1, n_samples // 160))
        assert mel.isfinite().all()
