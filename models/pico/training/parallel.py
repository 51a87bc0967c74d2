"""Data-parallel training on a CPU: one-thread processes that average gradients with gloo.

One process with two OpenMP threads collapses when anything else runs (its barriers wait for a
descheduled thread); two processes that meet once a step do not.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.progress import Progress, TaskID
from torch import Tensor, nn

from models.pico.training.common import SEED, WORK, progress

N_RANKS = 2
_WARM_UP_STEPS = 100
_FLAT, _FLOOR = 0.3, 0.02


def rate(step: int, done: float) -> float:
    """Return the learning rate's factor: warm-up by step, flat, then a cosine in `done` (0..1)."""
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    if done < _FLAT:
        return warm
    fall = 0.5 * (1.0 + math.cos(math.pi * min(1.0, (done - _FLAT) / (1.0 - _FLAT))))
    return warm * (_FLOOR + (1.0 - _FLOOR) * fall)


def plan_batches(lengths: np.ndarray, budget: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Cut one epoch into batches of like lengths with at most `budget` padded rows each.

    Returns indices into `lengths`; a sequence longer than the budget gets its own batch.
    """
    batches: list[np.ndarray] = []
    order = rng.permutation(len(lengths))
    for start in range(0, len(order), 2048):
        pool = order[start : start + 2048]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batch: list[int] = []
        for index in pool:
            if batch and (len(batch) + 1) * int(lengths[index]) > budget:
                batches.append(np.array(batch))
                batch = []
            batch.append(int(index))
        batches.append(np.array(batch))
    return [batches[i] for i in rng.permutation(len(batches))]


def endless(lengths: np.ndarray, budget: int, rank: int, seed: int) -> Iterator[np.ndarray]:
    """Yield this rank's batches, epoch after epoch."""
    rng = np.random.default_rng(seed)
    while True:
        epoch = plan_batches(lengths, budget, rng)
        yield from epoch[rank : len(epoch) // N_RANKS * N_RANKS : N_RANKS]


@dataclass(slots=True, kw_only=True)
class Job:
    """What `train` runs: a module, its loss of a step, and when to stop."""

    name: str
    module: nn.Module
    loss: Callable[[int], tuple[Tensor, dict[str, float]]]
    budget_s: float
    peak: float = 2e-3
    weight_decay: float = 0.05
    save_s: float = 240.0
    validate: Callable[[], str] | None = None

    @property
    def checkpoint(self) -> Path:
        """Where the state is kept, to resume from."""
        return WORK / f"{self.name}.checkpoint.pt"


class Averager:
    """Average gradients, and one more number, over all ranks."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        """Keep one flat buffer."""
        self._parameters = parameters
        self._flat = torch.zeros(sum(p.numel() for p in parameters) + 1)

    def __call__(self, extra: float) -> float:
        """Average in place; return the mean of `extra`."""
        grads = [g if (g := p.grad) is not None else torch.zeros_like(p) for p in self._parameters]
        torch.cat([g.reshape(-1) for g in grads], out=self._flat[:-1])
        self._flat[-1] = extra
        dist.all_reduce(self._flat)
        self._flat /= dist.get_world_size()
        start = 0
        for parameter in self._parameters:
            size = parameter.numel()
            parameter.grad = self._flat[start : start + size].view_as(parameter)
            start += size
        return float(self._flat[-1])


def train(job: Job, rank: int) -> None:
    """Train until the budget of wall time is used; all ranks stop at the same step."""
    parameters = [p for p in job.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=job.peak, betas=(0.9, 0.98), weight_decay=job.weight_decay, foreach=True
    )
    average, step, spent = Averager(parameters), 0, 0.0
    if job.checkpoint.exists():
        state = torch.load(job.checkpoint, weights_only=True)
        job.module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent = state["step"], state["spent"]
    start, last_save, done = time.monotonic() - spent, time.monotonic(), spent / job.budget_s
    with progress() as bar:
        task = bar.add_task(job.name, total=int(job.budget_s), note="", visible=rank == 0)
        while done < 1.0:
            for group in optimizer.param_groups:
                group["lr"] = job.peak * rate(step, done)
            loss, parts = job.loss(step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call] # torch's own
            # Rank 0's clock rules, so that all ranks leave the loop together.
            elapsed = time.monotonic() - start
            done = average(elapsed if rank == 0 else 0.0) * dist.get_world_size() / job.budget_s
            nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            step += 1
            if rank == 0 and step % 20 == 0:
                _report(bar, task, job, step, elapsed, parts)
            if rank == 0 and time.monotonic() - last_save > job.save_s:
                last_save = time.monotonic()
                _save(job, optimizer, step, elapsed)
    if rank == 0:
        torch.save(job.module.state_dict(), WORK / f"{job.name}.pt")
        job.checkpoint.unlink(missing_ok=True)
        _log(job, step, job.budget_s, job.validate() if job.validate else "")


def _report(
    bar: Progress, task: TaskID, job: Job, step: int, elapsed: float, parts: dict[str, float]
) -> None:
    note = f"step {step} " + " ".join(f"{k} {v:.3f}" for k, v in parts.items())
    bar.update(task, completed=int(elapsed), note=note)
    if step % 200 == 0:
        _log(job, step, elapsed, note)


def _save(job: Job, optimizer: torch.optim.Optimizer, step: int, elapsed: float) -> None:
    state = {"module": job.module.state_dict(), "optimizer": optimizer.state_dict(),
             "step": step, "spent": elapsed}  # fmt: skip
    partial = job.checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(job.checkpoint)
    if job.validate:
        _log(job, step, elapsed, job.validate())


def _log(job: Job, step: int, elapsed: float, note: str) -> None:
    with (WORK / f"{job.name}.log").open("a", encoding="utf-8") as out:
        out.write(f"{elapsed:.0f} s, step {step}: {note}\n")


def _enter(rank: int, make: Callable[[int], Any], rendezvous: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=N_RANKS
    )
    train(make(rank), rank)
    dist.destroy_process_group()


def launch(make: Callable[[int], Any]) -> None:
    """Run `train(make(rank))` in two processes and wait; `make` is a module-level function."""
    rendezvous = (WORK / "rendezvous").resolve()
    rendezvous.unlink(missing_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # spawn is public but missing from the typed exports.
    torch.multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
        _enter, args=(make, str(rendezvous)), nprocs=N_RANKS
    )
