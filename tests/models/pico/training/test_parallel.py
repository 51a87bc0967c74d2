"""The training loop, alone in its process group."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.pico.training import parallel


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(parallel, "WORK", tmp_path)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield tmp_path
    dist.destroy_process_group()


def job(budget_s: float) -> parallel.Job:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    x = torch.randn(64, 3)
    y = x.sum(1, keepdim=True)

    def loss(_step: int) -> tuple[Tensor, dict[str, float]]:
        return (net(x) - y).square().mean(), {}

    return parallel.Job(name="tiny", module=net, loss=loss, budget_s=budget_s, peak=0.05,
                        weight_decay=0.0)  # fmt: skip


def test_training_fits_and_leaves_the_weights(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock by steps: as many on a busy machine as on an idle one.
    ticks = itertools.count(0.0, 0.001)
    monkeypatch.setattr(parallel, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    run = job(budget_s=0.5)
    parallel.train(run, rank=0)
    saved = torch.load(alone / "tiny.pt", weights_only=True)
    # Exactly solvable, and the steps are hundreds.
    assert torch.allclose(saved["weight"], torch.ones(1, 3), atol=0.2)
    assert not run.checkpoint.exists()


def test_a_checkpoint_is_resumed(alone: Path) -> None:
    done = job(budget_s=10.0)
    optimizer = torch.optim.AdamW(done.module.parameters())
    with torch.no_grad():
        done.module.weight.fill_(7.0)
    parallel._save(done, optimizer, step=99, elapsed=10.0)
    again = job(budget_s=10.0)
    parallel.train(again, rank=0)
    saved = torch.load(alone / "tiny.pt", weights_only=True)
    assert saved["weight"].tolist() == [[7.0, 7.0, 7.0]]
