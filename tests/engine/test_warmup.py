"""The warm-up teaches the cost model and leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.loop import EngineLoop
from models.toy.catalogue import TOYS
from tests.engine.harness import CONFIG, Engine, load_toy, make_plan


class TickingClock:
    """Every look at it takes a millisecond."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        self.now_s += 1e-3
        return self.now_s


@pytest.mark.parametrize("name", TOYS)
def test_a_warm_engine_says_what_a_cold_one_says(name):
    model = load_toy(name)
    plan = make_plan(model, "warm or cold")
    cold, warm = Engine(model), Engine(model)
    costs = warm.loop.costs
    warm.loop.warm_up()
    assert warm.loop.costs is costs
    warm.check_is_empty()
    # Costs decide the sizes of chunks; how they are cut is in the last bit of some samples.
    np.testing.assert_allclose(
        warm.speak([plan], seeds=[3])[0], cold.speak([plan], seeds=[3])[0], rtol=0, atol=1e-6
    )


def test_readiness_and_costs_come_from_measuring():
    loop = EngineLoop(load_toy("toy-depth"), CONFIG, lambda events: None, TickingClock())
    assert not loop.stats.is_ready
    guessed_s = loop.costs.step_s(8, 0)
    loop.warm_up()
    assert loop.stats.is_ready
    # Each call takes one tick on this clock, whatever its size.
    assert loop.costs.step_s(8, 0) == pytest.approx(1e-3, rel=0.2)
    assert loop.costs.step_s(8, 0) < guessed_s
    assert loop.costs.step_s(0, 32) == pytest.approx(1e-3, rel=0.2)
    assert loop.costs.chunk_s(2, 5) == pytest.approx(1e-3, rel=0.2)


@pytest.mark.parametrize("max_streams", [1, 3])
def test_any_number_of_slots_warms_up(max_streams):
    config = EngineConfig(max_streams=max_streams, max_batch_rows=4, prefill_rows_per_step=2)
    loop = EngineLoop(load_toy("toy-mixed"), config, lambda events: None, TickingClock())
    loop.warm_up()
    loop.check()


def test_calls_of_a_ramp_of_their_own_are_run_as_first_calls():
    """A codec whose chunks lie on a grid takes other sizes first, and those at no other time."""
    model = load_toy("toy-depth")
    codec = replace(model.spec.codec, chunk_frames=(4, 8), first_frames=(3, 7))
    model.spec = replace(model.spec, codec=codec)
    engine = Engine(model, replace(CONFIG, max_streams=1))
    runner, seen = engine.loop._device.codec, set()
    decode = runner.decode

    def seeing(slots, works):
        seen.update((work.n_frames, work.is_first) for work in works)
        return decode(slots, works)

    runner.decode = seeing
    engine.loop.warm_up()
    assert seen == {(3, True), (7, True), (4, False), (8, False)}
