"""Percentiles against numpy and against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.measure.spread import PERCENTS, share_pct, spread


@given(values=st.lists(st.floats(0, 1e4), min_size=1, max_size=200))
def test_percentiles_are_those_of_numpy(values):
    found = spread("wait", values, "ms", 1000.0)
    assert found["wait_mean_ms"] == pytest.approx(1000 * np.mean(values))
    for percent in PERCENTS:
        assert found[f"wait_p{percent}_ms"] == pytest.approx(1000 * np.percentile(values, percent))


@given(values=st.lists(st.floats(0, 1e4), min_size=1, max_size=60))
def test_percentiles_are_what_they_say(values):
    """At rank (n - 1) p of the sorted values, interpolated."""
    found, ordered = spread("wait", values, "s"), sorted(values)
    for percent in PERCENTS:
        rank = (len(ordered) - 1) * percent / 100
        low = int(rank)
        high = min(low + 1, len(ordered) - 1)
        expected = ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
        assert found[f"wait_p{percent}_s"] == pytest.approx(expected, abs=1e-9)


def test_nothing_measured_is_none():
    assert set(spread("wait", [], "ms").values()) == {None}
    assert share_pct(0, 0) is None
    assert share_pct(1, 8) == 12.5
