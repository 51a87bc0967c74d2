"""Arrivals: drawn by seed before the run, exponential, nobody waits for anybody."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from loadtest.traffic.scenarios import PARTS, SCENARIOS, Scenario, ScenarioError, scenario_of
from loadtest.traffic.schedule import poisson_calls

MIXED = scenario_of("mixed")


def test_the_same_seed_gives_the_same_calls():
    one, same = (poisson_calls(MIXED, 5.0, 60.0, 7) for _ in range(2))
    assert one == same
    assert one != poisson_calls(MIXED, 5.0, 60.0, 8)


def test_a_longer_run_begins_with_the_calls_of_a_shorter_one():
    short, long = poisson_calls(MIXED, 5.0, 20.0, 0), poisson_calls(MIXED, 5.0, 60.0, 0)
    assert long[: len(short)] == short
    assert all(call.at_s < 20.0 for call in short)
    assert long[len(short)].at_s >= 20.0


def test_gaps_are_exponential():
    """Of 20 000 calls: the mean gap within 3 %, the deviation equal to it, no memory."""
    calls = poisson_calls(MIXED, 10.0, 2000.0, 3)
    gaps_s = np.diff([0.0, *(call.at_s for call in calls)])
    assert gaps_s.mean() == pytest.approx(0.1, rel=0.03)
    assert gaps_s.std() == pytest.approx(0.1, rel=0.05)
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 0.03
    assert (gaps_s > 0.2).mean() == pytest.approx(np.exp(-2), rel=0.1)


def test_parts_come_in_their_shares():
    calls = poisson_calls(MIXED, 100.0, 200.0, 1)
    counts = Counter(call.part for call in calls)
    for part, share in MIXED.shares.items():
        assert counts[part] / len(calls) == pytest.approx(share, abs=0.012)


def test_numbers_and_seeds_are_their_own():
    calls = poisson_calls(MIXED, 10.0, 60.0, 0)
    assert [call.number for call in calls] == list(range(len(calls)))
    assert len({call.seed for call in calls}) == len(calls)


@pytest.mark.parametrize("name", SCENARIOS)
def test_shipped_shares_add_up_and_name_known_parts(name):
    scenario = scenario_of(name)
    assert sum(scenario.shares.values()) == pytest.approx(1.0)
    assert set(scenario.shares) <= set(PARTS)


def test_a_changed_share_takes_from_the_others_in_proportion():
    scenario = scenario_of("conversation", {"barge_in": 0.65})
    assert scenario.shares["barge_in"] == 0.65
    assert scenario.shares["talk"] == pytest.approx(0.6 * 0.35 / 0.7)
    assert sum(scenario.shares.values()) == pytest.approx(1.0)
    assert scenario_of("speech", {"cancel": 0.25}).shares == {"whole": 0.75, "cancel": 0.25}


def test_all_shares_can_be_given():
    given = {"whole": 0.5, "slow_reader": 0.5}
    assert scenario_of("speech", given).shares == given


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("chorus", {}),
        ("speech", {"sing": 0.1}),
        ("speech", {"cancel": 1.2}),
        ("speech", {"cancel": -0.2}),
        ("speech", {"whole": 0.5}),
    ],
)
def test_shares_that_make_no_scenario_are_refused(name, changes):
    with pytest.raises(ScenarioError):
        scenario_of(name, changes)


def test_every_draw_has_a_part():
    scenario = Scenario(name="x", shares={"whole": 0.9999999, "cancel": 0.0})
    assert scenario.pick(0.99999999) == "whole"
    assert not scenario.has_talk
    assert scenario_of("conversation").has_talk
