"""X-Codec against `transformers`, on random weights in its layout.

Tolerance 2e-5 on PCM of about 0.3, for the reasons in `test_snac`.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoint import read_safetensors
from models.codecs.xcodec import (
    decoding_part,
    load_xcodec,
    make_xcodec,
    read_xcodec_config,
    xcodec_config_of,
)
from models.errors import WeightError
from tests.parity.oracle import ask
from tests.parity.test_snac import Streams, stream, whole

N_FRAMES = 61
TOLERANCE = 2e-5
BAGPIPER = "multimodal_io_dict.discrete_audio.codec_model."


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.randint(0, 64, (2, N_FRAMES, 8), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("xcodec")


@pytest.fixture(scope="module")
def reference(folder, codes):
    """The loaded checkpoint, and the library's PCM."""
    pcm = ask("xcodec_decode", folder, {"codes": codes})["pcm"]
    return load_xcodec(folder), pcm


def test_the_same_samples(reference, codes):
    model, pcm = reference
    assert model.samples_per_frame == 320
    assert pcm.shape == (2, N_FRAMES * 320)
    assert 0.1 < pcm.std() < 0.5
    assert pcm.abs().max() > 1.0, "the reference does not bound its PCM, we do"
    torch.testing.assert_close(whole(model, codes), pcm.clamp(-1, 1), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[4], [8, 16, 24], [1], [30, 1], [64]])
def test_streaming_equals_whole_decoding(reference, codes, sizes):
    model, pcm = reference
    streamed = torch.stack(stream(model, codes, sizes))
    torch.testing.assert_close(streamed, pcm.clamp(-1, 1), atol=TOLERANCE, rtol=0)


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


def test_rows_of_a_batch_do_not_touch(reference, codes):
    model, _ = reference
    together = stream(model, codes, [4, 8])
    for row, pcm in zip(codes, together, strict=True):
        (alone,) = stream(model, row.unsqueeze(0), [4, 8])
        torch.testing.assert_close(pcm, alone, atol=TOLERANCE, rtol=0)


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


def test_weight_norm_is_folded(reference, folder, codes):
    _, pcm = reference
    normed = load_xcodec(folder / "normed")
    torch.testing.assert_close(whole(normed, codes), pcm.clamp(-1, 1), atol=TOLERANCE, rtol=0)


def test_it_is_found_within_the_weights_of_bagpiper(reference, folder, codes):
    """Under a prefix, beside others, without a config of its own."""
    model, _ = reference
    held = {f"{BAGPIPER}{key}": tensor for key, tensor in read_safetensors(folder).items()}
    held["lm_head.weight"] = torch.zeros(3, 2)
    part = decoding_part(held, BAGPIPER)
    config = xcodec_config_of(part, sample_rate_hz=16_000, source="model.pt")
    assert config == read_xcodec_config(folder)
    again = make_xcodec(config, part, source="model.pt")
    assert torch.equal(whole(again, codes), whole(model, codes))


def test_weights_without_the_codec_are_refused():
    with pytest.raises(WeightError, match=r"model\.pt has no fit quantizer\.quantizers\.0"):
        xcodec_config_of({"a": torch.zeros(1)}, sample_rate_hz=16_000, source="model.pt")


@pytest.mark.parametrize(
    ("at", "key", "shown"),
    [
        ((), "sample_rate", "does not state sample_rate"),
        ((), "codebook_size", "does not state codebook_size"),
        ((), "codebook_dim", "does not state codebook_dim"),
        ((), "target_bandwidths", "does not state target_bandwidths"),
        (
            ("acoustic_model_config",),
            "upsampling_ratios",
            "acoustic_model_config.upsampling_ratios",
        ),
        (("acoustic_model_config",), "hidden_size", "acoustic_model_config.hidden_size"),
    ],
)
def test_a_config_without_a_number_is_refused(reference, folder, tmp_path, at, key, shown):
    config = json.loads((folder / "config.json").read_text())
    part = config
    for name in at:
        part = part[name]
    del part[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightError, match=shown):
        read_xcodec_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("fc2.weight", None, "missing: fc2.weight"),
        ("acoustic_decoder.snake1.alpha", torch.ones(1, 3, 1), "unfit: acoustic_decoder.snake1"),
        ("acoustic_decoder.more", torch.ones(1), "unexpected: acoustic_decoder.more"),
    ],
)
def test_weights_that_do_not_fit_are_named(reference, folder, tmp_path, key, tensor, shown):
    tensors = read_safetensors(folder)
    tensors.pop(key, None)
    if tensor is not None:
        tensors[key] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightError, match=shown):
        load_xcodec(tmp_path)
