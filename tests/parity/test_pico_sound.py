"""Post-net and vocoder of `pico` against plain whole-utterance implementations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.pico.model import PicoModel
from tests.models.pico.harness import decode_chunks, random_frames, tiny_model
from tests.parity import pico_reference as reference

# The reference computes in float64. The vocoder sums some hundred float32 products a layer.
WHOLE = 1e-5
# Another cut is the same sums; a build of oneDNN may order them by size (0 was measured on Zen 5).
STREAMED = 3e-6
N_STEPS = 21


def expected_audio(weights: dict[str, dict[str, Tensor]], frames: Tensor, speed: int) -> Tensor:
    exact = {
        stem: {key: tensor.double() for key, tensor in tensors.items()}
        for stem, tensors in weights.items()
    }
    z = reference.latents(exact["post"], exact["codec"], frames)
    if speed != 1000:
        z = reference.stretch(z, speed / 1000)
    return reference.vocode(exact["vocoder"], z).float()


def one_chunk(model: PicoModel, frames: Tensor, speed: int = 1000) -> Tensor:
    return decode_chunks(model, [frames], [[len(frames)]], [speed])[0]


@pytest.mark.parametrize("n_books", [1, 2, 3])
@pytest.mark.parametrize("n_steps", [1, 3, N_STEPS])
def test_whole_decoding_agrees(n_steps: int, n_books: int) -> None:
    model, weights = tiny_model(n_books)
    frames = random_frames(model.config, n_steps)
    expected = expected_audio(weights, frames, 1000)
    assert expected.std() > 0.05, "silence would agree with silence"
    torch.testing.assert_close(one_chunk(model, frames), expected, rtol=0, atol=WHOLE)


@pytest.mark.parametrize("speed", [500, 850, 1500, 2000])
def test_speed_is_linear_interpolation_of_latents(speed: int) -> None:
    model, weights = tiny_model()
    frames = random_frames(model.config, N_STEPS)
    expected = expected_audio(weights, frames, speed)
    torch.testing.assert_close(one_chunk(model, frames, speed), expected, rtol=0, atol=WHOLE)


@pytest.mark.parametrize("cuts", [[1], [2], [4], [8], [6, 1, 2, 4, 8], [6, 8, 1]])
def test_streaming_equals_whole(cuts: list[int]) -> None:
    model, _ = tiny_model()
    frames = random_frames(model.config, N_STEPS)
    streamed = decode_chunks(model, [frames], [cuts])[0]
    torch.testing.assert_close(streamed, one_chunk(model, frames), rtol=0, atol=STREAMED)


def test_a_mixed_batch_equals_whole() -> None:
    model, _ = tiny_model()
    streams = [random_frames(model.config, n, seed=n) for n in (N_STEPS, 5, 13)]
    cuts, speeds = [[6, 2], [4, 2], [1, 2]], [1000, 1000, 1250]
    for stream, speed, heard in zip(
        streams, speeds, decode_chunks(model, streams, cuts, speeds), strict=True
    ):
        torch.testing.assert_close(heard, one_chunk(model, stream, speed), rtol=0, atol=STREAMED)
