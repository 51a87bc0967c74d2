"""A step is read in one place, with one transfer, whether its calls are recorded or not.

A recording stands on the double of CUDA graphs: what a replay does is no work of the host.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine import device as device_module
from engine import in_flight as in_flight_module
from engine.device_streams import HostStream
from engine.graphs import Graphs
from engine.readback import read_back
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan
from tests.engine.recorded_graphs import record

SPEAKING = ("toy-tone", "toy-interleaved", "toy-delayed", "toy-depth", "toy-mixed", "toy-audio-in")
ALL = (*SPEAKING, "toy-streamed")


class ForbidHostReads(TorchDispatchMode):
    """Fails on an operation that hands a tensor's value to the host."""

    is_on = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.is_on and func in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten.is_nonzero.default,
        ):
            raise AssertionError(f"host read outside _collect: {func}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_host_reads_a_tensor_in_collect_only(name, is_recorded, monkeypatch):
    model = load_toy(name)
    config = CONFIG
    if is_recorded:
        model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=256))
        monkeypatch.setattr(device_module, "make_graphs", lambda *_: Graphs(record))
        config = replace(CONFIG, max_streams=3)
    plans = [make_plan(model, text) for text in TEXTS[:3]]
    engine = Engine(model, config)
    if is_recorded:
        engine.loop.warm_up()
    for seed, plan in enumerate(plans):
        engine.open(plan, seed=seed)
    mode = ForbidHostReads()
    n_reads = []

    def counted(pending, transfers):
        n_reads.append(1)
        mode.is_on = False
        try:
            return read_back(pending, transfers)
        finally:
            mode.is_on = True

    to_host = [Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.item]
    engine.step()  # Admission works on host tensors of the plans.
    for method in to_host:

        def guarded(self: Tensor, *args, method=method, **kwargs):
            assert not mode.is_on, f"{method} outside _collect"
            return method(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, method.__name__, guarded)
    monkeypatch.setattr(in_flight_module, "read_back", counted)
    n_before = engine.loop.stats.n_steps
    with mode:
        engine.run()
    assert len(n_reads) == engine.loop.stats.n_steps - n_before
    assert engine.loop.stats.n_finished == 3


def test_one_transfer_brings_everything(monkeypatch):
    model = load_toy("toy-tone")
    engine = Engine(model)
    for seed in range(4):
        engine.open(make_plan(model, TEXTS[seed]), seed=seed)
    n_transfers: list[int] = []
    plain = HostStream.to_host

    def counted(self: HostStream, words: Tensor) -> Tensor:
        n_transfers.append(1)
        return plain(self, words)

    monkeypatch.setattr(HostStream, "to_host", counted)
    n_before = engine.loop.stats.n_steps
    engine.run()
    assert len(n_transfers) == engine.loop.stats.n_steps - n_before
