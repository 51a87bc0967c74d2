"""Two runs beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.compare import compared, obstacles
from tests.loadtest.canned import CLIENT, record, report


def verdicts(first, second) -> dict[str, tuple[float | None, str]]:
    return {one.name: (one.ratio, one.verdict) for one in compared(first, second)}


def test_ratios_and_which_way_is_better():
    slow, fast = report(0.37, 0.37), report(0.17, 0.17)
    found = verdicts(slow, fast)
    assert found["ttfa_audible_p95_ms"] == (pytest.approx(0.5), "better")
    assert found["goodput_0ms_per_s"] == (pytest.approx(1.0), "same")
    assert found["underruns_0ms_streams_pct"] == (None, "same")  # 0 and 0
    assert verdicts(fast, slow)["ttfa_audible_p95_ms"] == (pytest.approx(2.0), "worse")


def test_more_goodput_is_better_and_more_gaps_are_worse():
    clean = report(records=[record(float(n)) for n in range(4)])
    gappy = report(records=[record(float(n), gaps=n % 2) for n in range(4)])
    found = verdicts(clean, gappy)
    assert found["goodput_0ms_per_s"] == (pytest.approx(0.5), "worse")
    assert found["underruns_0ms_streams_pct"] == (None, "worse")
    assert verdicts(gappy, clean)["underruns_0ms_streams_pct"] == (0.0, "better")


def test_what_only_one_has_is_shown_without_a_verdict():
    cut = report(records=[record(outcome="cut", cancel_to_silence_s=0.02)])
    assert verdicts(report(0.1), cut)["cancel_to_silence_p95_ms"] == (None, "")
    assert "cancel_to_silence_p95_ms" not in verdicts(report(0.1), report(0.1))


def test_like_runs_may_be_compared():
    assert obstacles(report(0.1), report(0.9)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"rate_per_s": 3.0},
        {"shares": {"whole": 0.5, "cancel": 0.5}},
        {"warmup_s": 0.0},
    ],
)
def test_other_settings_are_named(changes):
    [difference] = obstacles(report(0.1), report(0.1, **changes))
    assert next(iter(changes)) in difference


def test_a_client_that_lagged_is_named():
    lagged = report(0.1, client={**CLIENT, "loop_lag_p99_ms": 90.0})
    assert obstacles(report(0.1), lagged) == [
        "the second run is not valid: the client's loop lag is 90 ms at p99 (> 20)"
    ]


def test_another_machine_and_another_model_are_named():
    one = report(0.1)
    moved = replace(one, machine={**one.machine, "n_cores": 8}, models=["pico"])
    found = obstacles(one, moved)
    assert any("n_cores" in line for line in found)
    assert any("models" in line for line in found)
