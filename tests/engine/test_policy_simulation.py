"""Scheduler, admission, chunks and costs together, on a virtual clock and a device profile.

The profile is Orpheus-like (`loadtest/profiles`). Nothing is timed; every run is repeatable.
"""

from __future__ import annotations

import math
import random

import pytest

from engine.config import Limits
from loadtest.simulate.clients import Arrival, Listener, poisson
from loadtest.simulate.device import PROFILES, CostMs, Device, Profile, load_profile
from loadtest.simulate.outcome import percentile
from loadtest.simulate.policies import Ours
from loadtest.simulate.virtual import VirtualEngine

BOUND_S = 0.5
"""TTFA that counts as good."""

ORPHEUS = load_profile(PROFILES / "orpheus-like.json")


class _Run:
    """One engine, one device, and who listened."""

    def __init__(
        self,
        arrivals: list[Arrival],
        *,
        profile: Profile = ORPHEUS,
        seed: int = 0,
        slower: float = 1.0,
        **settings: object,
    ) -> None:
        config = profile.model_copy(update={"engine": {**profile.engine, **settings}}).engine_config
        limits = Limits(config=config, frame=profile.frame_spec, codec=profile.codec_spec)
        self.policy = Ours(limits, Device(profile, seed))
        # Measured at start on one device, run on another.
        device = Device(_slower(profile, slower), seed)
        engine = VirtualEngine(profile, self.policy, device)
        self.listeners = engine.run(arrivals)


def _simulated(rate_hz: float, duration_s: float) -> list[Listener]:
    return _Run(poisson(ORPHEUS, rate_hz, duration_s, seed=0)).listeners


def _served(outcomes: list[Listener]) -> list[Listener]:
    return [outcome for outcome in outcomes if not outcome.is_refused]


def test_at_moderate_load_all_are_heard_soon_and_without_a_gap():
    outcomes = _simulated(6.0, 10.0)
    assert not any(outcome.is_refused for outcome in outcomes)
    assert all(outcome.n_late == 0 for outcome in outcomes)
    assert percentile([outcome.ttfa_s for outcome in outcomes], 90) < 0.16


def test_overload_does_not_lower_goodput():
    """Without admission the reference falls to a fourteenth of its best at such a load."""
    full = _simulated(9.0, 12.0)
    over = _simulated(22.0, 12.0)
    n_good_full = sum(outcome.is_clean(BOUND_S) for outcome in full)
    n_good_over = sum(outcome.is_clean(BOUND_S) for outcome in over)
    assert n_good_over >= 0.95 * n_good_full
    assert sum(o.is_clean(BOUND_S) for o in _served(over)) >= 0.99 * len(_served(over))
    assert any(outcome.is_refused for outcome in over)


@pytest.mark.parametrize("lookahead", [0, 3])
def test_whoever_leaves_no_frame_is_lost_or_doubled_and_nothing_leaks(lookahead):
    codec = {
        "chunk_frames": [1, 2, 4, 8],
        "left_context_frames": 3,
        "lookahead_frames": lookahead,
        "max_batch": 8,
    }
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
    run = _Run(
        arrivals,
        profile=ORPHEUS.model_copy(update={"codec": codec}),
        max_streams=12,
        prefill_rows_per_step=64,
        n_pages=200,
        queue_timeout_s=60.0,
    )
    for outcome in run.listeners:
        heard = sum(outcome.chunk_frames)
        if outcome.ended_s < math.inf:
            assert heard == outcome.arrival.n_frames
        else:
            assert outcome.arrival.leaves_after_s < 1e9, "only those who left were not served"
            assert heard <= outcome.arrival.n_frames
    assert (run.policy.slots.n_used, run.policy.pages.n_used) == (0, 0)
    run.policy.slots.check()
    run.policy.pages.check()


def test_a_new_stream_is_heard_first_among_many_that_play():
    """Thirty streams are well ahead; the thirty-first costs them nothing and waits for nobody."""
    crowd = [Arrival(at_s=i * 0.2, n_prompt_rows=60, n_frames=200) for i in range(30)]
    late = Arrival(at_s=11.0, n_prompt_rows=60, n_frames=20)
    outcomes = _Run([*crowd, late]).listeners
    alone = _Run([late]).listeners[0]
    # Alone: one prompt and seven rows. Beside others it may at most double.
    assert outcomes[-1].ttfa_s < 2 * alone.ttfa_s
    assert all(outcome.n_late == 0 for outcome in outcomes)


def test_a_device_that_becomes_slower_is_noticed_and_nobody_already_admitted_suffers_for_long():
    """Costs are learnt: a profile half as fast as measured at start admits fewer."""
    outcomes = _Run(poisson(ORPHEUS, 14.0, 12.0, seed=3), slower=1.5).listeners
    served = [outcome for outcome in _served(outcomes) if outcome.arrival.at_s > 5.0]
    assert len(served) > 20
    assert sum(outcome.n_late == 0 for outcome in served) >= 0.95 * len(served)


def test_a_device_too_slow_for_real_time_still_serves_all_it_takes():
    arrivals = [Arrival(at_s=0.1 * i, n_prompt_rows=60, n_frames=30) for i in range(3)]
    outcomes = _Run(arrivals, profile=_slower(ORPHEUS, 6.0), queue_timeout_s=100.0).listeners
    assert all(outcome.ended_s < math.inf for outcome in outcomes)


def test_files_are_made_faster_than_real_time_and_listeners_do_not_notice():
    listeners = poisson(ORPHEUS, 4.0, 20.0, seed=2)
    files = [
        Arrival(at_s=2.0 * i, n_prompt_rows=60, n_frames=700, is_paced=False) for i in range(6)
    ]
    alone = _Run(listeners).listeners
    outcomes = _Run([*listeners, *files]).listeners
    beside = [outcome for outcome in outcomes if outcome.arrival.is_paced]
    assert all(outcome.n_late == 0 for outcome in beside)
    assert _p90_ttfa_s(beside) < 1.5 * _p90_ttfa_s(alone)
    for outcome in outcomes:
        if not outcome.arrival.is_paced:
            file_s = outcome.arrival.n_frames * ORPHEUS.frame_spec.frame_s
            assert outcome.ended_s - outcome.arrival.at_s < 0.8 * file_s
            assert sum(outcome.chunk_frames) == outcome.arrival.n_frames


def _p90_ttfa_s(outcomes: list[Listener]) -> float:
    return percentile([outcome.ttfa_s for outcome in outcomes], 90)


def _slower(profile: Profile, factor: float) -> Profile:
    names = ("decode_ms", "prefill_ms", "chunk_ms")
    costs: dict[str, CostMs] = {name: getattr(profile, name) for name in names}
    changed = {
        name: CostMs(fixed=factor * cost.fixed, each=factor * cost.each)
        for name, cost in costs.items()
    }
    return profile.model_copy(update=changed)
