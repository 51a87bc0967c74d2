"""The diffusion transformer against Step-Audio 2's class, on random weights in its layout.

Tolerance 1e-5 on frames of about 1: float32, sums in another order.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.dit import Dit, DitConfig, make_dit
from models.codecs.flow_memory import KeptFrames, Recall, WholeSight, flow_states
from models.codecs.place import Place
from models.errors import WeightError
from tests.parity.oracle import ask

CONFIG = DitConfig(n_in=64, n_mels=16, size=32, n_blocks=3, n_heads=2, head_dim=8, inner=128)
CHUNKS = (30, 10, 10, 10)
TIMES = (0.0, 0.35, 0.97)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    x = torch.randn(2, CONFIG.n_in, sum(CHUNKS), generator=torch.Generator().manual_seed(4))
    # Where the speaker stands: the same in every frame.
    x[:, 32:48] = x[:, 32:48, :1]
    return {"x": x, "times": torch.tensor(TIMES), "chunks": torch.tensor(CHUNKS)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("dit")


@pytest.fixture(scope="module")
def expected(folder, inputs) -> dict[str, torch.Tensor]:
    return ask("step_dit", folder, inputs, apart="step")


@pytest.fixture(scope="module")
def tensors(folder, expected) -> dict[str, torch.Tensor]:
    return read_torch_file(folder / "dit.pt")


@pytest.fixture(scope="module")
def model(tensors) -> Dit:
    return make_dit(CONFIG, tensors, source="dit.pt")


def place_of(start: int, end: int) -> Place:
    of = [torch.tensor([one]) for one in (start, 0, end)]
    return Place(start=of[0], begin=of[1], end=of[2])


def streamed(model: Dit, x: torch.Tensor, time: float, kept: KeptFrames) -> torch.Tensor:
    """Frames `(2, n_in, n)` in chunks, each of which looks back at what is remembered."""
    state = {
        one.name: torch.zeros(1, *one.shape, dtype=getattr(torch, one.dtype))
        for one in flow_states(kept, model, 1)
    }
    given, start = [], 0
    for part in x.split(CHUNKS, dim=2):
        n = part.shape[2]
        recall = Recall(state, place_of(start, start + n), n, n, kept, model.contexts)
        given.append(model(part.mT, time, recall.sight(0)).mT)
        state, start = recall.after, start + n
    return torch.cat(given, dim=2)


@pytest.mark.parametrize("idx", range(len(TIMES)))
def test_frames_at_once_are_those_of_the_reference(model, inputs, expected, idx):
    x = inputs["x"]
    sight = WholeSight(place_of(0, x.shape[2]), x.shape[2], None)
    got = model(x.mT, TIMES[idx], sight).mT
    assert expected[f"whole{idx}"].std() > 0.3
    torch.testing.assert_close(got, expected[f"whole{idx}"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("idx", range(len(TIMES)))
def test_chunks_that_remember_give_what_the_reference_gives(model, inputs, expected, idx):
    wanted = expected[f"streamed{idx}"]
    # In chunks a frame sees less than at once: not the same test twice.
    assert (wanted - expected[f"whole{idx}"]).abs().max() > 0.05
    kept = KeptFrames(first=CHUNKS[0], last=sum(CHUNKS), dtype="float32")
    got = streamed(model, inputs["x"], TIMES[idx], kept)
    torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)


def test_half_the_precision_of_what_is_remembered_is_hardly_seen(model, inputs, expected):
    kept = KeptFrames(first=CHUNKS[0], last=sum(CHUNKS), dtype="float16")
    got = streamed(model, inputs["x"], TIMES[1], kept)
    torch.testing.assert_close(got, expected["streamed1"], atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("blocks.1.attn.q_norm.bias"), r"missing: blocks\.1\.attn\.q_norm\.bias"),
        (lambda t: t.update({"blocks.3.mlp.fc1.bias": torch.ones(3)}), r"unexpected: blocks\.3"),
        (
            lambda t: t.update({"final_layer.linear.weight": torch.ones(16, 3)}),
            r"final_layer\.linear\.weight is \(16, 3\), expected \(16, 32\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(tensors, change, shown):
    spoilt = dict(tensors)
    change(spoilt)
    with pytest.raises(WeightError, match=shown):
        make_dit(CONFIG, spoilt, source="flow.pt")
