"""Which loop steps when several share the device."""

from __future__ import annotations

import pytest

from engine.sharing import FIRST_TEXT_ROWS, MOST_SKIPS, Turns, is_pressing
from tests.engine.harness import Engine, load_toy, make_plan
from tests.engine.policy_streams import limits, playing, startup

NOW_S = 100.0
LIMITS = limits(urgent_s=0.3, lead_s=3.0)


def writing(n_rows: int, **fields):
    """A stream of text."""
    return startup(wants_pcm=False, n_rows=n_rows, first_sent_s=1.0 if n_rows else None, **fields)


@pytest.mark.parametrize(
    ("stream", "presses"),
    [
        (startup(), True),
        (startup(is_paced=False), False),
        (startup(is_paused=True), False),
        (startup(is_starved=True), False),
        (playing(1, slack_s=2.0), False),
        (playing(1, slack_s=0.29), True),
        (playing(1, slack_s=-1.0), True),
        (playing(1, slack_s=0.1, is_paused=True), False),
        (writing(0), True),
        (writing(FIRST_TEXT_ROWS - 1), True),
        (writing(FIRST_TEXT_ROWS), False),
        (writing(3, is_generation_done=True), False),
    ],
)
def test_who_is_waited_for(stream, presses):
    assert is_pressing([stream], NOW_S, LIMITS) is presses
    assert is_pressing([playing(2, slack_s=9.0), stream], NOW_S, LIMITS) is presses


def test_frames_that_were_not_sent_do_not_calm_a_listener():
    """Generated frames become sound only when their loop steps."""
    assert is_pressing([playing(1, slack_s=0.1, frames_ready=90)], NOW_S, LIMITS)


def test_all_step_while_nobody_waits_and_while_all_do():
    turns = Turns(3)
    assert turns.next([False, False, False]) == [True, True, True]
    assert turns.next([True, True, True]) == [True, True, True]


def test_a_loop_stands_back_but_never_for_long():
    turns = Turns(2)
    steps = [turns.next([True, False]) for _ in range(2 * (MOST_SKIPS + 1))]
    assert all(first for first, _ in steps)
    assert [second for _, second in steps] == ([False] * MOST_SKIPS + [True]) * 2


def test_skips_are_forgotten_once_a_loop_has_stepped():
    turns = Turns(2)
    turns.next([True, False])
    turns.next([False, False])
    assert [turns.next([True, False])[1] for _ in range(MOST_SKIPS + 1)] == (
        [False] * MOST_SKIPS + [True]
    )


def test_a_loop_that_stands_back_takes_commands_and_runs_nothing():
    engine = Engine(load_toy("toy-tone"))
    plan = make_plan(engine.model, "hello")
    kept, cut = engine.open(plan), engine.open(plan)
    assert engine.loop.step(stands_back=True) == 0.0
    assert engine.loop.is_pressing
    assert engine.loop.stats.n_active == 2
    assert engine.loop.stats.n_steps == 0
    engine.abort(cut)
    engine.loop.step(stands_back=True)
    assert engine.finished(cut).reason == "aborted"
    engine.run()
    assert engine.finished(kept).reason == "stop"
    assert engine.loop.step(stands_back=True) is None
    assert not engine.loop.is_pressing
