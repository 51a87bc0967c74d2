"""Flow matching against CosyVoice's classes, on random weights in the layout of its checkpoints.

Tolerance 1e-4 on mel frames of about 1: ten steps add up the rounding of float32.
"""

from __future__ import annotations

import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.flow import Condition, Flow, FlowConfig, flow_noise, make_flow
from models.errors import WeightError
from tests.parity.oracle import ask

N_VALID = (37, 12, 40, 1)
N_FRAMES = 40
TOLERANCE = 1e-4
CONFIG = FlowConfig(
    n_mels=80,
    n_channels=32,
    n_layers=2,
    n_middle=2,
    n_heads=2,
    head_dim=8,
    n_steps=10,
    guidance=0.7,
    chunk_frames=10,
)


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    known = torch.zeros(len(N_VALID), 80, N_FRAMES)
    known[0, :, :15] = torch.randn(80, 15, generator=generator)
    return {
        "mu": torch.randn(len(N_VALID), 80, N_FRAMES, generator=generator),
        "known": known,
        "speaker": torch.randn(len(N_VALID), 80, generator=generator),
        "n_valid": torch.tensor(N_VALID),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("flow")


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, torch.Tensor]:
    return ask("flow_decoder", folder, inputs, apart="cosyvoice")


@pytest.fixture(scope="module")
def model(folder, reference) -> Flow:
    return make_flow(CONFIG, read_torch_file(folder / "flow.pt"), source="flow.pt")


def solve(model: Flow, condition: Condition, *, is_chunked: bool) -> torch.Tensor:
    noise = flow_noise(80)[:, : condition.mu.shape[2]].expand_as(condition.mu)
    with torch.inference_mode():
        return model(noise, condition, is_chunked=is_chunked)


def test_the_noise_is_the_published_one(reference):
    assert torch.equal(flow_noise(80), reference["noise"])


@pytest.mark.parametrize(("name", "is_chunked"), [("chunked", True), ("whole", False)])
def test_rows_of_a_batch_are_the_reference_s_mel_frames(model, inputs, reference, name, is_chunked):
    """Of different lengths in one batch; the reference takes one at a time."""
    mel = solve(model, Condition(**inputs), is_chunked=is_chunked)
    for row, n_frames in enumerate(N_VALID):
        expected = reference[f"{name}{row}"]
        assert expected.std() > 0.3
        torch.testing.assert_close(mel[row, :, :n_frames], expected, atol=TOLERANCE, rtol=0)
        assert not mel[row, :, n_frames:].any()


def test_the_two_ways_of_seeing_differ(reference):
    assert (reference["chunked0"] - reference["whole0"]).abs().max() > 0.1


def test_frames_of_whole_chunks_stay_when_more_follow(model, inputs):
    longer = solve(model, Condition(**inputs), is_chunked=True)
    cut = {name: t[:, :, :20] if t.dim() == 3 else t for name, t in inputs.items()}
    cut["n_valid"] = inputs["n_valid"].clamp(max=20)
    shorter = solve(model, Condition(**cut), is_chunked=True)
    for row in (0, 2):
        torch.testing.assert_close(shorter[row], longer[row, :, :20], atol=TOLERANCE, rtol=0)


def test_a_row_without_frames_harms_nobody(model, inputs):
    whole = solve(model, Condition(**inputs), is_chunked=True)
    emptied = Condition(**{**inputs, "n_valid": torch.tensor([37, 0, 40, 1])})
    mel = solve(model, emptied, is_chunked=True)
    assert mel.isfinite().all()
    assert not mel[1].any()
    torch.testing.assert_close(mel[0], whole[0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("estimator.final_proj.bias", None, "missing: estimator.final_proj.bias"),
        ("estimator.mid_blocks.0.0.mlp.1.bias", torch.zeros(3), "unfit: estimator.mid_blocks.0.0"),
        ("estimator.more", torch.zeros(3), "unexpected: estimator.more"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, reference, key, tensor, shown):
    held = read_torch_file(folder / "flow.pt")
    held.pop(key, None)
    if tensor is not None:
        held[key] = tensor
    with pytest.raises(WeightError, match=shown):
        make_flow(CONFIG, held, source="flow.pt")
