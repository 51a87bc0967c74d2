"""Scheduler, admission, chunks and costs together, on a virtual clock and a device profile.

The profile is Orpheus-like (see `policy_simulator`). Nothing is timed; every run is repeatable.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from engine.config import EngineConfig
from models.spec import CodecSpec
from tests.engine.policy_simulator import (
    Arrival,
    Outcome,
    Profile,
    Simulator,
    orpheus_like,
    percentile,
    poisson,
)

BOUND_S = 0.5
"""TTFA that counts as good."""

CONFIG = EngineConfig(
    held_s=0.0,  # Chunks go straight to the listener: there is no gateway.
    max_streams=256,
    max_batch_rows=512,
    prefill_rows_per_step=512,
    startup_batch=16,
    n_pages=60_000,
    urgent_s=0.15,
    queue_timeout_s=0.25,
    target_load=0.95,
)


def _simulated(rate_hz: float, duration_s: float, seed: int = 0) -> list[Outcome]:
    profile = orpheus_like()
    arrivals = poisson(rate_hz, duration_s, profile.frame.frame_s, seed=seed)
    return Simulator(profile, CONFIG, seed=seed).run(arrivals)


def _served(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not outcome.is_refused]


def test_at_moderate_load_all_are_heard_soon_and_without_a_gap():
    outcomes = _simulated(6.0, 10.0)
    assert not any(outcome.is_refused for outcome in outcomes)
    assert all(outcome.n_late == 0 for outcome in outcomes)
    assert percentile([outcome.ttfa_s for outcome in outcomes], 0.9) < 0.16


def test_overload_does_not_lower_goodput():
    """Without admission the reference falls to a fourteenth of its best at such a load."""
    full = _simulated(9.0, 12.0)
    over = _simulated(22.0, 12.0)
    n_good_full = sum(outcome.is_good(BOUND_S) for outcome in full)
    n_good_over = sum(outcome.is_good(BOUND_S) for outcome in over)
    assert n_good_over >= 0.95 * n_good_full
    assert sum(o.is_good(BOUND_S) for o in _served(over)) >= 0.99 * len(_served(over))
    assert any(outcome.is_refused for outcome in over)


@pytest.mark.parametrize("lookahead", [0, 3])
def test_whoever_leaves_no_frame_is_lost_or_doubled_and_nothing_leaks(lookahead):
    codec = CodecSpec(
        chunk_frames=(1, 2, 4, 8), left_context_frames=3, lookahead_frames=lookahead, max_batch=8
    )
    profile = orpheus_like(codec)
    draw = random.Random(5)
    arrivals = [
        Arrival(
            at_s=draw.uniform(0.0, 4.0),
            n_prompt_rows=draw.randint(1, 300),
            n_frames=draw.randint(1, 40),
            leaves_after_s=draw.choice([1e9, 1e9, draw.uniform(0.0, 2.0)]),
        )
        for _ in range(40)
    ]
    config = dataclasses.replace(
        CONFIG, max_streams=12, prefill_rows_per_step=64, n_pages=200, queue_timeout_s=60.0
    )
    simulator = Simulator(profile, config)
    for outcome in simulator.run(arrivals):
        heard = sum(outcome.frames)
        if outcome.is_finished:
            assert heard == outcome.arrival.n_frames
        else:
            assert outcome.arrival.leaves_after_s < 1e9, "only those who left were not served"
            assert heard <= outcome.arrival.n_frames
    assert (simulator.slots.n_used, simulator.pages.n_used) == (0, 0)
    simulator.slots.check()
    simulator.pages.check()


def test_a_new_stream_is_heard_first_among_many_that_play():
    """Thirty streams are well ahead; the thirty-first costs them nothing and waits for nobody."""
    profile = orpheus_like()
    crowd = [Arrival(at_s=i * 0.2, n_prompt_rows=60, n_frames=200) for i in range(30)]
    late = Arrival(at_s=11.0, n_prompt_rows=60, n_frames=20)
    outcomes = Simulator(profile, CONFIG).run([*crowd, late])
    alone = Simulator(profile, CONFIG).run([late])[0]
    # Alone: one prompt and seven rows. Beside others it may at most double.
    assert outcomes[-1].ttfa_s < 2 * alone.ttfa_s
    assert all(outcome.n_late == 0 for outcome in outcomes)


def test_a_device_that_becomes_slower_is_noticed_and_nobody_already_admitted_suffers_for_long():
    """Costs are learnt: a profile half as fast as measured at start admits fewer."""
    fast = orpheus_like()
    arrivals = poisson(14.0, 12.0, fast.frame.frame_s, seed=3)
    simulator = Simulator(fast, CONFIG)
    simulator.profile = _slower(fast, 1.5)
    outcomes = simulator.run(arrivals)
    served = [outcome for outcome in _served(outcomes) if outcome.arrival.at_s > 5.0]
    assert len(served) > 20
    assert sum(outcome.n_late == 0 for outcome in served) >= 0.95 * len(served)


def test_a_device_too_slow_for_real_time_still_serves_all_it_takes():
    slow = _slower(orpheus_like(), 6.0)
    arrivals = [Arrival(at_s=0.1 * i, n_prompt_rows=60, n_frames=30) for i in range(3)]
    config = dataclasses.replace(CONFIG, queue_timeout_s=100.0)
    outcomes = Simulator(slow, config).run(arrivals)
    assert all(outcome.is_finished for outcome in outcomes)


def test_files_are_made_faster_than_real_time_and_listeners_do_not_notice():
    profile = orpheus_like()
    listeners = poisson(4.0, 20.0, profile.frame.frame_s, seed=2)
    files = [
        Arrival(at_s=2.0 * i, n_prompt_rows=60, n_frames=700, is_paced=False) for i in range(6)
    ]
    alone = Simulator(profile, CONFIG).run(listeners)
    outcomes = Simulator(profile, CONFIG).run([*listeners, *files])
    beside = [outcome for outcome in outcomes if outcome.arrival.is_paced]
    assert all(outcome.n_late == 0 for outcome in beside)
    assert _p90_ttfa_s(beside) < 1.5 * _p90_ttfa_s(alone)
    for outcome in outcomes:
        if not outcome.arrival.is_paced:
            file_s = outcome.arrival.n_frames * profile.frame.frame_s
            assert outcome.ended_s - outcome.arrival.at_s < 0.8 * file_s
            assert sum(outcome.frames) == outcome.arrival.n_frames


def _p90_ttfa_s(outcomes: list[Outcome]) -> float:
    return percentile([outcome.ttfa_s for outcome in outcomes], 0.9)


def _slower(profile: Profile, factor: float) -> Profile:
    costs = ("decode_ms", "decode_row_ms", "prefill_ms", "prefill_row_ms", "chunk_ms")
    changed = {name: factor * getattr(profile, name) for name in (*costs, "chunk_frame_ms")}
    return dataclasses.replace(profile, **changed)
