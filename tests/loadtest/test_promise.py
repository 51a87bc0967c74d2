"""What a rate must keep, and how the largest one is found."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.measure.promise import Promise, Search, find_largest
from tests.loadtest.canned import record, report


def search(limit: float, **changes) -> tuple:
    """Search a server that keeps its promise up to `limit`."""
    asked: list[float] = []

    async def passes(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    given = {"low": 0.5, "high": 64.0, "tolerance": 0.1, **changes}
    return asyncio.run(find_largest(passes, Search(**given))), asked


@pytest.mark.parametrize("limit", [0.5, 0.77, 1.0, 3.3, 12.7, 50.0, 63.9])
def test_the_largest_rate_is_found_within_the_tolerance(limit):
    found, asked = search(limit)
    assert found.best <= limit < found.failed
    assert found.failed / found.best <= 1.1 + 1e-9
    assert len(asked) <= 12
    assert list(found.tried) == [(rate, rate <= limit) for rate in asked]
    assert len(set(asked)) == len(asked)


def test_it_doubles_before_it_bisects():
    _, asked = search(5.0)
    assert asked[:5] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert all(4.0 < rate < 8.0 for rate in asked[5:])


def test_the_ends_are_said():
    found, asked = search(0.1)
    assert (found.best, found.failed, asked) == (None, 0.5, [0.5])
    found, asked = search(1000.0, high=3.0)
    assert (found.best, found.failed) == (3.0, None)
    assert asked == [0.5, 1.0, 2.0, 3.0]


def breaches(records=None, *waits_s, **changes) -> list[str]:
    return Promise(**changes).breaches(report(*waits_s, records=records).figures)


def test_a_run_within_all_bounds_passes():
    assert breaches(None, 0.1, 0.2, 0.3) == []


def test_each_bound_is_held():
    assert "p95" in breaches(None, 0.1, 0.2, 0.9)[0]
    assert breaches(None, 0.1, 0.2, 0.9, percent=50) == []
    late_by_prebuffer = breaches(None, 0.35, prebuffer_ms=200)
    assert len(late_by_prebuffer) == 1
    gappy = [record(float(n), gaps=int(n == 0)) for n in range(50)]
    assert "gaps in 2.0 %" in breaches(gappy)[0]
    assert breaches(gappy, clean_pct=98.0) == []
    refused = [record(float(n)) for n in range(49)] + [record(heard=None, outcome="refused")]
    assert "2.0 % of streams refused" in breaches(refused)[0]
    assert breaches(refused, served_pct=98.0) == []


def test_answers_have_a_bound_of_their_own():
    answers = [record(float(n), 1.0, kind="answer") for n in range(10)]
    assert breaches(answers) == []
    assert breaches(answers, answer_ms=900.0)


def test_nothing_measured_is_no_pass():
    assert Promise().breaches({}) == ["no stream was measured"]
    silent = [record(heard=None, outcome="lost")]
    assert len(breaches(silent)) == 3
