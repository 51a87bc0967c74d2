"""Mimi against `transformers`, on random weights in the hub's layout.

Tolerance 1e-5 on PCM of about 0.3: float32 in another order of sums. Codes must be the same: random
codebooks lie far apart.
"""

from __future__ import annotations

import pytest
import torch
from transformers import MimiConfig

from models.checkpoint import read_config, read_safetensors
from models.codecs.causal import n_bytes
from models.codecs.mimi import Mimi, load_mimi
from models.codecs.mimi_config import mimi_config
from tests.parity.oracle import ask

N_FRAMES = 31
N_CODES = 64
N_CODEBOOKS = 8
N_SAMPLES = 30_000
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mimi")


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    codes = torch.randint(0, N_CODES, (2, N_FRAMES, N_CODEBOOKS), generator=generator)
    return {"codes": codes, "pcm": 0.3 * torch.randn(2, N_SAMPLES, generator=generator)}


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, torch.Tensor]:
    return ask("mimi_codec", folder, inputs)


@pytest.fixture(scope="module")
def model(folder, reference) -> Mimi:
    config = mimi_config(read_config(folder / "config.json"))
    return load_mimi(config, read_safetensors(folder), source="model.safetensors")


def fresh_state(model: Mimi, n_rows: int) -> dict[str, torch.Tensor]:
    return {
        one.name: torch.zeros(n_rows, *one.shape, dtype=getattr(torch, one.dtype))
        for one in model.states
    }


def stream(model: Mimi, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """PCM `(B, n)`, in chunks of the given sizes, over and over; the last one is padded."""
    state, pcm, n_done, turn = fresh_state(model, len(codes)), [], 0, 0
    while n_done < codes.shape[1]:
        size = sizes[turn % len(sizes)]
        piece = codes[:, n_done : n_done + size]
        n_valid = piece.shape[1]
        padded = torch.zeros(len(codes), size, codes.shape[2], dtype=torch.int64)
        padded[:, :n_valid] = piece
        decoded = model.decode(padded, torch.full((len(codes),), n_valid), state)
        state = decoded.state
        pcm.append(decoded.pcm[:, : n_valid * model.samples_per_frame])
        n_done += n_valid
        turn += 1
    return torch.cat(pcm, dim=1)


@pytest.mark.parametrize("sizes", [[N_FRAMES], [1], [1, 2, 4, 8, 16], [3], [7, 1], [16]])
def test_streamed_decoding_is_the_reference_s_whole_decoding(model, inputs, reference, sizes):
    pcm = stream(model, inputs["codes"], sizes)
    assert 0.1 < reference["pcm"].std() < 1.0
    assert pcm.shape == (2, N_FRAMES * model.samples_per_frame)
    expected = reference["pcm"].clamp(-1.0, 1.0)
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


def test_encoding_gives_the_reference_s_codes(model, inputs, reference):
    codes = model.encode(inputs["pcm"])
    assert codes.shape[1] == -(-N_SAMPLES // model.samples_per_frame)
    assert torch.equal(codes, reference["codes"])


@pytest.mark.parametrize("n_frames", [0, 1, 2, 3, 4, 5, 8, 9])
def test_every_length_has_its_samples(model, inputs, reference, n_frames):
    """In chunks of four; what fills up the last one is not heard."""
    state, pcm = fresh_state(model, 2), []
    for start in range(0, max(n_frames, 1), 4):
        piece = inputs["codes"][:, start : start + 4]
        n_valid = torch.full((2,), max(0, min(4, n_frames - start)))
        decoded = model.decode(piece, n_valid, state)
        state = decoded.state
        pcm.append(decoded.pcm[:, : int(decoded.n_samples[0])])
        assert torch.equal(decoded.n_samples, n_valid * model.samples_per_frame)
    got = torch.cat(pcm, dim=1)
    assert got.shape == (2, n_frames * model.samples_per_frame)
    expected = reference["pcm"].clamp(-1.0, 1.0)[:, : got.shape[1]]
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


def test_rows_of_a_batch_do_not_touch(model, inputs):
    together = stream(model, inputs["codes"], [4])
    for row, codes in enumerate(inputs["codes"]):
        alone = stream(model, codes.unsqueeze(0), [4])[0]
        torch.testing.assert_close(together[row], alone, atol=TOLERANCE, rtol=0)


def test_rows_of_a_batch_may_be_at_different_times(model, inputs):
    """A stream that begins later starts from zeros, whatever its slot held before."""
    first, second = inputs["codes"]
    expected = stream(model, inputs["codes"], [N_FRAMES])
    state = fresh_state(model, 1)
    early = model.decode(first[None, :5], torch.tensor([5]), state)
    joined = {
        name: torch.cat([tensor, torch.zeros_like(tensor)]) for name, tensor in early.state.items()
    }
    both = model.decode(torch.stack([first[5:12], second[:7]]), torch.tensor([7, 7]), joined)
    width = model.samples_per_frame
    torch.testing.assert_close(
        both.pcm[0], expected[0, 5 * width : 12 * width], atol=TOLERANCE, rtol=0
    )
    torch.testing.assert_close(both.pcm[1], expected[1, : 7 * width], atol=TOLERANCE, rtol=0)


def test_a_stream_of_the_published_codec_remembers_8_2_mb(tmp_path):
    """Its sizes are the defaults of `transformers`."""
    MimiConfig().save_pretrained(tmp_path)
    with torch.device("meta"):
        states = Mimi(mimi_config(read_config(tmp_path / "config.json"))).states
    assert n_bytes(states) == pytest.approx(8.2e6, abs=5e4)
