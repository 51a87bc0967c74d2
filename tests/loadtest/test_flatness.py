"""What must be flat under a long load, and what must be gone after it."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.measure.flatness import EMPTY, NAMES, Slack, drifts, faults_of_soak, is_at_rest
from loadtest.soak import soak
from loadtest.target import Target
from tests.loadtest.canned import record, report, settings

REST = {"rss_bytes": 500e6, "n_descriptors": 20.0, "n_tasks": 5.0, "n_threads": 6.0,
        **dict.fromkeys(EMPTY, 0.0)}  # fmt: skip
LOADED = {"rss_bytes": 600e6, "n_descriptors": 60.0, "n_tasks": 120.0, "n_threads": 6.0}


def samples(**slopes: float) -> list[dict[str, float]]:
    """A thousand seconds under load, some numbers of which rise by so much for each second."""
    return [
        {"at_s": float(at), **{name: LOADED[name] + at * slopes.get(name, 0.0) for name in NAMES}}
        for at in range(0, 1001, 5)
    ]


def faults(loaded=None, after=None, slack=None) -> list[str]:
    rested = {**REST, **(after or {})}
    return faults_of_soak(loaded or samples(), REST, rested, slack or Slack())


def test_what_stays_as_it_is_passes():
    assert faults() == []


def test_numbers_that_go_up_and_down_with_the_load_pass():
    loaded = [
        {**one, "n_tasks": 80.0 + 60.0 * (number % 2), "rss_bytes": 600e6 + 5e6 * (number % 3)}
        for number, one in enumerate(samples())
    ]
    assert faults(loaded) == []
    busier = [{**one, "n_tasks": 5.0 + number % 50} for number, one in enumerate(loaded)]
    assert faults(busier) == []


def with_callers(samples, leak=0.0):
    """Up to ten sessions of six tasks; the last half never goes below two."""
    for number, one in enumerate(samples):
        fewest = 0 if number < len(samples) / 2 else 2
        one["n_sessions"] = float(max(fewest, number * 7 % 11))
        one["n_tasks"] = 4.0 + 6 * one["n_sessions"] + leak * number
    return samples


def test_tasks_of_a_busier_quarter_are_no_leak():
    assert faults(with_callers(samples())) == []


def test_a_leak_is_found_under_callers_that_come_and_go():
    [fault] = faults(with_callers(samples(), leak=0.2))
    assert fault.startswith("n_tasks grew from")


@pytest.mark.parametrize(
    ("name", "slope"),
    [("rss_bytes", 40e3), ("n_descriptors", 0.04), ("n_tasks", 0.06), ("n_threads", 0.02)],
)
def test_a_slow_leak_is_found(name, slope):
    """From the second quarter to the last it grows by half of what it does in all."""
    [fault] = faults(samples(**{name: slope}))
    assert fault.startswith(f"{name} grew from")
    assert faults(samples(**{name: slope / 10})) == []
    assert faults(samples(**{name: -slope})) == []


def test_the_first_quarter_may_warm_up():
    loaded = samples()
    for one in loaded[: len(loaded) // 4]:
        one["rss_bytes"] -= 200e6
    assert faults(loaded) == []


def test_slack_is_what_is_given():
    assert faults(samples(rss_bytes=40e3), slack=Slack(rss_mb=64.0)) == []
    assert faults(samples(rss_bytes=10e3), slack=Slack(rss_mb=1.0, rss_pct=0.1))


@pytest.mark.parametrize("name", EMPTY)
def test_what_callers_held_must_be_gone(name):
    assert faults(after={name: 1.0}) == [f"{name} is 1 at rest"]
    assert not is_at_rest({name: 1.0})


def test_descriptors_and_tasks_are_back_where_they_were():
    assert faults(after={"n_tasks": 9.0, "n_descriptors": 24.0}) == []
    found = faults(after={"n_tasks": 10.0, "n_descriptors": 25.0})
    assert found == [
        "n_descriptors: 20 before, 25 at rest after",
        "n_tasks: 5 before, 10 at rest after",
    ]


def test_a_server_that_tells_nothing_does_not_pass():
    assert len(faults_of_soak([], {}, {}, Slack())) == len(NAMES)
    blind = [{"at_s": one["at_s"], "rss_bytes": 1e9} for one in samples()]
    assert len(faults(blind)) == 3


def test_drifts_compare_the_second_quarter_with_the_last():
    [rss, *_] = drifts(samples(rss_bytes=1e3), Slack())
    assert rss.early == pytest.approx(600e6 + 372.5e3, abs=5e3)
    assert rss.late == pytest.approx(600e6 + 875e3, abs=5e3)
    assert is_at_rest(REST)


def test_a_server_that_serves_nobody_does_not_pass(monkeypatch):
    records = [record(), record(heard=None, outcome="lost")]

    async def run(*_):
        return report(records=records)

    async def rest(*_):
        return REST

    monkeypatch.setattr("loadtest.soak.run_load", run)
    monkeypatch.setattr("loadtest.soak.wait_for_rest", rest)
    found = asyncio.run(soak(Target(url="x"), settings(), Slack(), lambda progress: None))
    assert "50.0 % of streams (speech) were in error" in found.faults
