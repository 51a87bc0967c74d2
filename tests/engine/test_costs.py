"""Costs are measured at start and follow the device."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.costs import CostLine, StepCosts

LINE = [(1, 5.1e-3), (11, 6.1e-3), (101, 15.1e-3)]
"""5 ms and 0.1 ms a unit."""


def _line() -> CostLine:
    line = CostLine(1.0, 1.0)
    line.calibrate(LINE)
    return line


def test_a_measurement_gives_the_line():
    line = _line()
    assert line.predict(51) == pytest.approx(10.1e-3)
    assert line.predict(0) == 0.0
    assert line.n_even == 50
    assert line.n_within(10.05e-3) == 50
    assert line.n_within(4e-3) == 0


def test_one_size_alone_scales_the_line_that_was_there():
    line = CostLine(4e-3, 1e-3)
    line.calibrate([(4, 16e-3)])
    assert line.predict(4) == pytest.approx(16e-3)
    assert line.predict(8) == pytest.approx(24e-3)


def test_a_falling_measurement_does_not_give_negative_costs():
    line = CostLine(1.0, 1.0)
    line.calibrate([(1, 5e-3), (64, 4e-3)])
    assert line.predict(10_000) >= line.predict(1) > 0


def test_a_slower_device_is_followed_at_sizes_that_run_and_noticed_at_others():
    line = _line()
    for _ in range(200):
        line.observe(8, 2 * 5.8e-3)
    # Twice within 5 %: the running average is there after some 100 observations.
    assert line.predict(8) == pytest.approx(11.6e-3, rel=0.05)
    assert line.predict(16) > 1.2 * (5e-3 + 16e-4)


def test_one_outlier_hardly_counts():
    line = _line()
    line.observe(8, 10.0)
    # Counts as twice the expected, at 5 %.
    assert line.predict(8) == pytest.approx(5.8e-3 * 1.05)


def test_noise_of_a_fifth_leaves_the_prediction_near_the_truth():
    line, draw = _line(), random.Random(0)
    for _ in range(2000):
        line.observe(32, 8.2e-3 * draw.lognormvariate(0.0, 0.2))
    # The average of 20 with this noise: 2 standard errors are 9 %, and the clip adds a little.
    assert line.predict(32) == pytest.approx(8.2e-3, rel=0.12)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), max_size=30))
def test_whatever_is_observed_costs_stay_finite_and_positive(seen):
    line = _line()
    for n, seconds in seen:
        line.observe(n, seconds)
    assert 0 < line.predict(1) < 1e9


def test_a_mixed_step_keeps_the_proportion_of_its_kinds():
    costs = StepCosts()
    costs.decode.calibrate([(1, 1e-3), (2, 1e-3)])
    costs.prefill.calibrate([(1, 3e-3), (2, 3e-3)])
    for _ in range(300):
        costs.observe_step(1, 1, 8e-3)
    assert costs.step_s(1, 0) == pytest.approx(2e-3, rel=0.05)
    assert costs.step_s(0, 1) == pytest.approx(6e-3, rel=0.05)


def test_chunks_are_counted_in_frames_with_their_context():
    costs = StepCosts(n_context_frames=3)
    costs.chunk.calibrate(
        [(costs.chunk_units(n, f), 1e-3 * n * (f + 3)) for n in (1, 4) for f in (1, 8)]
    )
    assert costs.chunk_s(2, 5) == pytest.approx(16e-3)


def test_a_full_call_is_one_whose_fixed_cost_is_half_or_less():
    costs = StepCosts(n_context_frames=2)
    costs.chunk.calibrate([(1, 24.5e-3), (25, 48.5e-3)])
    assert costs.n_full_call(4) == 4
    assert costs.n_full_call(100) == 1


def test_overlap_is_learnt_from_whole_steps():
    costs = StepCosts()
    assert costs.both_s(10e-3, 4e-3) == pytest.approx(14e-3)
    for _ in range(300):
        costs.observe_total(10e-3, 4e-3, 11e-3)
    # A quarter of the shorter part shows; the running average is within 1 % after 300.
    assert costs.both_s(10e-3, 4e-3) == pytest.approx(11e-3, rel=0.01)
    assert costs.recent_step_s == pytest.approx(11e-3, rel=0.01)


def test_a_call_is_dear_if_it_holds_rows_up_for_longer_than_is_borne():
    costs = StepCosts()
    costs.overlap = 0.25
    assert not costs.is_dear(10e-3, 9e-3, borne_s=0.0)
    assert costs.is_dear(10e-3, 30e-3, borne_s=0.0)
    assert not costs.is_dear(10e-3, 30e-3, borne_s=50e-3)


def test_recent_steps_leave_out_what_dear_calls_held_them_up():
    costs = StepCosts()
    for _ in range(300):
        costs.observe_total(10e-3, 60e-3, 61e-3)
    # A quarter more than the rows is what a call may cost and not be dear.
    assert costs.recent_step_s == pytest.approx(12.5e-3, rel=0.01)


def test_what_passes_beside_the_parts_of_a_step_is_learnt():
    costs = StepCosts()
    for _ in range(300):
        costs.observe_total(10e-3, 4e-3, 17e-3)
    assert costs.overhead_s == pytest.approx(3e-3, rel=0.01)
    assert costs.recent_step_s == pytest.approx(15.5e-3, rel=0.01)
