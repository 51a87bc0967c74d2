"""Flow matching against CosyVoice's classes, on random weights in the layout of its checkpoints.

Tolerance 1e-4 on mel frames of about 1: ten steps add up the rounding of float32.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.flow import Condition, Flow, FlowConfig, flow_noise, make_flow
from models.codecs.flow_memory import KeptFrames
from models.codecs.place import Place
from models.codecs.unet import Unet, UnetConfig
from models.errors import WeightError
from models.layers.conv import ENDLESS
from tests.parity.oracle import ask

N_VALID = (37, 12, 40, 1)
N_FRAMES = 40
TOLERANCE = 1e-4
CONFIG = FlowConfig(
    n_mels=80,
    n_steps=10,
    guidance=0.7,
    chunk_frames=10,
    kept=KeptFrames(first=20, last=20, dtype="float32"),
)
UNET = UnetConfig(n_mels=80, n_channels=32, n_layers=2, n_middle=2, n_heads=2, head_dim=8)


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
    return make_flow(CONFIG, Unet(UNET), read_torch_file(folder / "flow.pt"), source="flow.pt")


def solve(model: Flow, inputs: dict[str, torch.Tensor], *, is_chunked: bool) -> torch.Tensor:
    given = {name: tensor for name, tensor in inputs.items() if name != "n_valid"}
    noise = flow_noise(80)[:, : given["mu"].shape[2]].expand_as(given["mu"])
    with torch.inference_mode():
        return model(noise, Condition(**given), inputs["n_valid"], is_chunked=is_chunked)


def test_the_noise_is_the_published_one(reference):
    assert torch.equal(flow_noise(80), reference["noise"])


@pytest.mark.parametrize(("name", "is_chunked"), [("chunked", True), ("whole", False)])
def test_rows_of_a_batch_are_the_reference_s_mel_frames(model, inputs, reference, name, is_chunked):
    """Of different lengths in one batch; the reference takes one at a time."""
    mel = solve(model, inputs, is_chunked=is_chunked)
    for row, n_frames in enumerate(N_VALID):
        expected = reference[f"{name}{row}"]
        assert expected.std() > 0.3
        torch.testing.assert_close(mel[row, :, :n_frames], expected, atol=TOLERANCE, rtol=0)
        assert not mel[row, :, n_frames:].any()


def test_the_two_ways_of_seeing_differ(reference):
    assert (reference["chunked0"] - reference["whole0"]).abs().max() > 0.1


def test_frames_of_whole_chunks_stay_when_more_follow(model, inputs):
    longer = solve(model, inputs, is_chunked=True)
    cut = {name: t[:, :, :20] if t.dim() == 3 else t for name, t in inputs.items()}
    cut["n_valid"] = inputs["n_valid"].clamp(max=20)
    shorter = solve(model, cut, is_chunked=True)
    for row in (0, 2):
        torch.testing.assert_close(shorter[row], longer[row, :, :20], atol=TOLERANCE, rtol=0)


def test_a_row_without_frames_harms_nobody(model, inputs):
    whole = solve(model, inputs, is_chunked=True)
    emptied = {**inputs, "n_valid": torch.tensor([37, 0, 40, 1])}
    mel = solve(model, emptied, is_chunked=True)
    assert mel.isfinite().all()
    assert not mel[1].any()
    torch.testing.assert_close(mel[0], whole[0], atol=TOLERANCE, rtol=0)


def fresh_state(model: Flow, n_rows: int) -> dict[str, torch.Tensor]:
    return {
        one.name: torch.zeros(n_rows, *one.shape, dtype=getattr(torch, one.dtype))
        for one in model.states
    }


def stream(
    model: Flow, inputs: dict[str, torch.Tensor], row: int, sizes: list[int]
) -> torch.Tensor:
    """Mel frames of a row, in whole chunks of the given sizes, over and over."""
    end = int(inputs["n_valid"][row])
    given = {name: inputs[name][row : row + 1] for name in ("mu", "known", "speaker")}
    state, mels, n_done, turn = fresh_state(model, 1), [], 0, 0
    while n_done < end:
        size = sizes[turn % len(sizes)]
        piece = {
            name: torch.nn.functional.pad(t, (0, size), value=3.0)[:, :, n_done : n_done + size]
            for name, t in given.items()
            if t.dim() == 3
        }
        is_last = n_done + size >= end
        place = Place(
            start=torch.tensor([n_done]),
            begin=torch.tensor([0]),
            end=torch.tensor([end if is_last else ENDLESS]),
        )
        noise = flow_noise(80)[:, n_done : n_done + size].unsqueeze(0)
        condition = Condition(speaker=given["speaker"], **piece)
        with torch.inference_mode():
            mel, state = model.stream(noise, condition, place, state)
        mels.append(mel[0])
        n_done += size
        turn += 1
    return torch.cat(mels, dim=1)[:, :end]


@pytest.mark.parametrize("remembers", ["inputs", "keys"])
@pytest.mark.parametrize("sizes", [[10], [20], [10, 20], [40]])
def test_streamed_chunks_are_the_reference_s(folder, inputs, reference, sizes, remembers):
    """What is remembered of each step stands for all that came before."""
    unet = Unet(replace(UNET, remembers=remembers))
    model = make_flow(CONFIG, unet, read_torch_file(folder / "flow.pt"), source="flow.pt")
    for row, n_frames in enumerate(N_VALID):
        mel = stream(model, inputs, row, sizes)
        assert mel.shape == (80, n_frames)
        torch.testing.assert_close(mel, reference[f"chunked{row}"], atol=TOLERANCE, rtol=0)


def forgetful(folder, **kept) -> Flow:
    config = replace(CONFIG, kept=KeptFrames(**kept))
    return make_flow(config, Unet(UNET), read_torch_file(folder / "flow.pt"), source="flow.pt")


@pytest.mark.parametrize(("first", "last"), [(0, 10), (10, 10), (5, 20), (20, 0)])
def test_what_is_forgotten_is_not_seen_in_any_pattern(folder, inputs, reference, first, last):
    model = forgetful(folder, first=first, last=last, dtype="float32")
    whole = reference["chunked2"]
    patterns = [stream(model, inputs, 2, sizes) for sizes in ([10], [20], [10, 20], [40])]
    for mel in patterns[1:]:
        torch.testing.assert_close(mel, patterns[0], atol=TOLERANCE, rtol=0)
    n_same = (first + last) // 10 * 10 + 10
    torch.testing.assert_close(patterns[0][:, :n_same], whole[:, :n_same], atol=TOLERANCE, rtol=0)
    if n_same < 40:
        assert (patterns[0][:, n_same:] - whole[:, n_same:]).abs().max() > 1e-2


def test_what_is_not_guided_takes_half_of_the_memory(folder, inputs):
    """And says the same as guidance of nearly nothing, which takes all."""
    mels, n_floats = [], []
    for guidance in (0.0, 1e-9):
        tensors = read_torch_file(folder / "flow.pt")
        model = make_flow(replace(CONFIG, guidance=guidance), Unet(UNET), tensors, source="a")
        mels += [solve(model, inputs, is_chunked=True)[2], stream(model, inputs, 2, [10, 20])]
        n_floats.append(sum(math.prod(one.shape) for one in model.states))
    assert n_floats[1] == 2 * n_floats[0]
    for mel in mels[1:]:
        torch.testing.assert_close(mel, mels[0], atol=1e-5, rtol=0)


def test_half_precision_is_near(folder, inputs, reference):
    mel = stream(forgetful(folder, first=20, last=20, dtype="float16"), inputs, 2, [10])
    torch.testing.assert_close(mel, reference["chunked2"], atol=1e-2, rtol=0)
    assert not torch.equal(
        mel, stream(forgetful(folder, first=20, last=20, dtype="float32"), inputs, 2, [10])
    )


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
        make_flow(CONFIG, Unet(UNET), held, source="flow.pt")
