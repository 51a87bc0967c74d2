"""The codec of Qwen3-TTS against its reference, on random weights in the layout of the checkpoint.

Keys and values are remembered in half precision, so chunks differ from whole decoding by 1e-3 of a
PCM of about 0.7 where attention looks back over a border; one chunk is whole decoding up to the
order of sums in float32 (2e-5 was seen: snakes amplify it).
"""

from __future__ import annotations

import pytest
import torch

from models.checkpoint import read_config, read_safetensors
from models.codecs.causal import n_bytes
from models.codecs.qwen import QwenCodec, QwenCodecConfig, qwen_codec_config
from models.codecs.qwen_weights import load_qwen_codec
from tests.parity.oracle import ask
from tests.parity.test_mimi import fresh_state, stream

N_FRAMES = 31
TOLERANCE = 5e-5
HALF_TOLERANCE = 2e-3
PUBLISHED = QwenCodecConfig(
    sample_rate_hz=24_000,
    n_codebooks=16,
    n_codes=2048,
    code_dim=512,
    latent=1024,
    hidden=512,
    inner=1024,
    n_layers=8,
    n_heads=16,
    head_dim=64,
    window=72,
    theta=10_000.0,
    eps=1e-5,
    first_strides=(2, 2),
    decoder_dim=1536,
    strides=(8, 5, 4, 3),
)
"""The sizes of the published codec, as third parties print them; no model reads them from here."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("qwen")


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.randint(0, 64, (2, N_FRAMES, 8), generator=torch.Generator().manual_seed(9))


@pytest.fixture(scope="module")
def reference(folder, codes) -> torch.Tensor:
    return ask("qwen_codec", folder, {"codes": codes}, apart="qwen")["pcm"]


@pytest.fixture(scope="module")
def model(folder, reference) -> QwenCodec:
    config = qwen_codec_config(read_config(folder / "config.json"))
    return load_qwen_codec(config, read_safetensors(folder), source="model.safetensors")


def test_one_chunk_is_the_reference_s_decoding(model, codes, reference):
    pcm = stream(model, codes, [N_FRAMES])
    assert 0.1 < reference.std() < 1.0
    torch.testing.assert_close(pcm, reference, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[1], [1, 2, 4, 8, 12, 24], [3], [7, 1], [16]])
def test_chunks_are_the_reference_s_decoding(model, codes, reference, sizes):
    pcm = stream(model, codes, sizes)
    assert pcm.shape == reference.shape == (2, N_FRAMES * 1920)
    torch.testing.assert_close(pcm, reference, atol=HALF_TOLERANCE, rtol=0)
    assert (pcm - reference).square().mean().sqrt() < 1e-4


def test_in_full_precision_chunks_are_exact(model, codes, reference, monkeypatch):
    """So nothing but the halves separates them."""
    monkeypatch.setattr(model.pre_transformer.layers_, "dtype", "float32")
    pcm = stream(model, codes, [1, 5, 2])
    torch.testing.assert_close(pcm, reference, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_frames", [0, 1, 2, 3, 4, 5, 8, 9])
def test_every_length_has_its_samples(model, codes, reference, n_frames):
    """In chunks of four; what fills up the last one is not heard."""
    state, pcm = fresh_state(model, 2), []
    for start in range(0, max(n_frames, 1), 4):
        piece = codes[:, start : start + 4]
        n_valid = torch.full((2,), max(0, min(4, n_frames - start)))
        decoded = model.decode(piece, n_valid, state)
        state = decoded.state
        pcm.append(decoded.pcm[:, : int(decoded.n_samples[0])])
        assert torch.equal(decoded.n_samples, n_valid * model.samples_per_frame)
    got = torch.cat(pcm, dim=1)
    assert got.shape == (2, n_frames * model.samples_per_frame)
    expected = reference[:, : got.shape[1]]
    torch.testing.assert_close(got, expected, atol=HALF_TOLERANCE, rtol=0)


def test_rows_of_a_batch_do_not_touch(model, codes):
    together = stream(model, codes, [4])
    for row, one in enumerate(codes):
        alone = stream(model, one.unsqueeze(0), [4])[0]
        torch.testing.assert_close(together[row], alone, atol=TOLERANCE, rtol=0)


def test_a_stream_of_the_published_codec_remembers_under_3_mib():
    with torch.device("meta"):
        states = QwenCodec(PUBLISHED).states
    assert n_bytes(states) < 3 * 2**20
