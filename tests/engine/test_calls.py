"""Which detokenizer call a step makes, where a call is dear: it outlasts the rows beside it."""

from __future__ import annotations

import pytest

from engine import scheduler
from engine.costs import StepCosts
from engine.stream import Stream
from tests.engine.policy_streams import CODEC, fast_costs, limits, playing, startup

NOW_S = 100.0


def _dear_costs() -> StepCosts:
    """Rows of 1 ms, calls of 50 ms and 1 ms a frame; a quarter of the shorter part shows."""
    costs = fast_costs()
    costs.chunk.calibrate([(10, 60e-3), (110, 160e-3)])
    costs.overlap = 0.25
    return costs


def _plan(streams: list[Stream], costs: StepCosts | None = None, **settings):
    made = limits(**{"jitter_s": 0.02, "max_batch_rows": 512, **settings})
    return scheduler.plan(streams, NOW_S, made, costs or _dear_costs())


def _called(streams: list[Stream], **settings) -> list[int]:
    return [work.stream_id for work in _plan(streams, **settings).chunks]


def _silent(stream_id: int = 1, **fields) -> Stream:
    return startup(stream_id, n_prefilled=[4], n_rows=1, **fields)


def test_a_dear_call_waits_while_somebody_needs_rows_until_a_gap_is_near():
    assert _called([_silent(), playing(2, slack_s=0.8, frames_ready=58)]) == []
    assert _called([_silent(), playing(2, slack_s=0.1, frames_ready=58)]) == [2]
    # Nobody needs rows, and as much waits as is left to play.
    assert _called([playing(2, slack_s=0.8, frames_ready=58)]) == [2]


def test_a_call_within_the_jitter_of_the_machine_holds_nobody_up():
    assert _called([_silent(), playing(2, slack_s=0.8, frames_ready=58)], jitter_s=0.2) == [2]


def test_a_first_sound_does_not_wait_for_company():
    assert _called([_silent(frames_ready=4), playing(2, slack_s=2.0)]) == [1]


def test_the_first_chunk_lasts_until_dear_calls_of_others_are_over():
    """One frame plays 100 ms; the next needs two calls of 33 ms, and waits for one of 40 ms."""
    costs = _dear_costs()
    costs.chunk.calibrate([(10, 40e-3), (110, 140e-3)])
    assert not _plan([_silent(frames_ready=1)], costs).chunks
    assert len(_plan([_silent(frames_ready=2)], costs).chunks) == 1


def test_whoever_is_due_soon_goes_with_a_dear_call_in_its_size():
    pressing = playing(2, slack_s=0.1, frames_ready=52)
    soon = playing(3, slack_s=0.5, frames_ready=53)
    later = playing(4, slack_s=2.0, frames_ready=53)
    chunks = _plan([pressing, soon, later]).chunks
    assert [work.stream_id for work in chunks] == [2, 3]
    assert {work.n_frames for work in chunks} == {2}


def test_a_last_chunk_goes_with_a_larger_call():
    pressing = playing(2, slack_s=0.1, frames_ready=58)
    ended = playing(3, slack_s=0.4, frames_ready=51, is_generation_done=True)
    first, last = _plan([pressing, ended]).chunks
    assert (first.n_frames, last.n_frames, last.n_valid, last.is_last) == (8, 8, 1, True)


@pytest.mark.parametrize(("young_slack_s", "n_called"), [(9.0, 4), (0.15, 3), (0.14, 2)])
def test_a_dear_call_is_cut_where_it_would_make_another_stream_late(young_slack_s, n_called):
    """Four take 90 ms; the young stream still needs a row and a call of 53 ms."""
    pressing = playing(2, slack_s=0.1, frames_ready=58)
    others = [playing(i, slack_s=0.75, frames_ready=58) for i in (3, 4, 5)]
    called = _called([pressing, *others, playing(6, slack_s=young_slack_s)])
    assert called == [2, 3, 4, 5][:n_called]


def test_rows_beside_a_dear_call_cost_nothing():
    at_ease = [playing(i, slack_s=2.5) for i in range(10, 110)]
    few = _plan([_silent(), *at_ease]).decode
    all_of_them = _plan([_silent(), *at_ease, playing(2, slack_s=0.1, frames_ready=58)]).decode
    assert len(few) < 50
    assert len(all_of_them) == 102


def test_a_cheap_call_is_made_once_as_much_waits_as_is_left_to_play():
    costs = fast_costs()
    costs.overlap = 0.0
    for slack_s, chunks in ((0.9, 0), (0.8, 1)):
        stream = playing(1, slack_s=slack_s, frames_ready=58)
        assert len(_plan([stream, _silent(2)], costs).chunks) == chunks


def test_the_throughput_policy_waits_for_half_of_those_that_run():
    running = [playing(i, slack_s=0.0) for i in (1, 2, 3, 4)]
    ready = [playing(i, slack_s=0.0, frames_ready=58) for i in (5, 6, 7)]
    assert _called([*running, ready[0]], policy="throughput") == []
    assert _called([*running, *ready], policy="throughput") == [5, 6, 7]
    # Nothing else will come: no reason to wait.
    ended = playing(8, slack_s=0.0, frames_ready=58, is_generation_done=True)
    assert _called([ended], policy="throughput") == [8]


def test_a_step_is_no_longer_than_a_young_stream_can_bear():
    """It needs a row now and a call in the step after, all in 5 ms; 400 rows would take 5."""
    at_ease = [playing(i, slack_s=2.5) for i in range(10, 410)]
    young = playing(1, slack_s=0.005)
    assert len(_plan(at_ease, fast_costs()).decode) == 400
    decode = _plan([young, *at_ease], fast_costs()).decode
    assert decode[0] == 1
    assert len(decode) < 130


def test_the_hosts_work_takes_its_part_of_what_a_young_stream_can_bear():
    at_ease = [playing(i, slack_s=2.5) for i in range(10, 410)]
    young = playing(1, slack_s=0.013)
    costs = fast_costs()
    assert len(_plan([young, *at_ease], costs).decode) == 401
    costs.overhead_s = 4e-3
    assert _plan([young, *at_ease], costs).decode == (1,)


def test_rows_that_only_just_suffice_take_none_along():
    at_ease = [playing(i, slack_s=2.5) for i in range(10, 110)]
    assert _plan([playing(1, slack_s=0.0025), *at_ease], fast_costs()).decode == (1,)


def test_the_sizes_of_the_tests_are_as_they_say():
    costs = _dear_costs()
    sizes = [costs.chunk_s(1, 1), costs.chunk_s(1, 8), costs.chunk_s(4, 8)]
    assert sizes == pytest.approx([53e-3, 60e-3, 90e-3])
    assert CODEC.max_batch == 4
