"""The engine's clock leaps by an hour: nothing underflows, and all are served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.types import ReportPlayout
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan

HOUR_S = 3600.0
WITH_DEADLINES = replace(CONFIG, lead_s=2.0, queue_timeout_s=10.0)


@pytest.mark.parametrize("after_steps", [0, 1, 9])
def test_streams_that_run_go_on_after_a_leap_and_sound_the_same(after_steps):
    model = load_toy("toy-tone")
    plans = [make_plan(model, text, frames=40) for text in TEXTS[:3]]
    expected = Engine(model).speak(plans, seeds=[1, 2, 3])
    engine = Engine(model, WITH_DEADLINES)
    ids = [engine.open(plan, seed=seed) for seed, plan in enumerate(plans, start=1)]
    for _ in range(after_steps):
        engine.step()
    engine.clock.advance(HOUR_S)
    for _ in range(5000):
        wanted_in_s = engine.step()
        assert wanted_in_s is None or 0 <= wanted_in_s < 60, "a wait that is not one"
        if wanted_in_s is None:
            break
    for stream_id, wanted in zip(ids, expected, strict=True):
        assert engine.finished(stream_id).reason == "stop"
        np.testing.assert_allclose(engine.pcm(stream_id), wanted, rtol=0, atol=1e-6)
    engine.check_is_empty()


def test_the_leap_is_one_gap_and_not_one_for_each_chunk_after_it():
    """The listener's time line moves with it: who is an hour late once is on time again."""
    model = load_toy("toy-tone")
    engine = Engine(model, WITH_DEADLINES)
    stream_id = engine.open(make_plan(model, "abc", frames=100))
    engine.run(until=lambda: len(engine.chunks(stream_id)) >= 2)
    engine.clock.advance(HOUR_S)
    n_before = len(engine.chunks(stream_id))
    engine.run()
    assert engine.finished(stream_id).reason == "stop"
    assert len(engine.chunks(stream_id)) > n_before + 3
    assert engine.loop.metrics.n_late_chunks == 1


def test_who_waited_over_the_leap_is_refused_with_a_hint_and_newcomers_are_served():
    model = load_toy("toy-tone")
    engine = Engine(model, replace(WITH_DEADLINES, max_streams=1))
    plays = engine.open(make_plan(model, "abc", frames=60))
    waits = engine.open(make_plan(model, "abc"))
    engine.run(until=lambda: bool(engine.chunks(plays)))
    engine.clock.advance(HOUR_S)
    late = engine.open(make_plan(model, "abc"))
    engine.run()
    refused = engine.failed(waits)
    assert refused.code == "overloaded"
    assert 1 <= refused.retry_after_s <= 60
    assert engine.finished(plays).reason == engine.finished(late).reason == "stop"
    engine.check_is_empty()


def test_a_report_from_before_the_leap_does_not_send_a_stream_into_the_past():
    model = load_toy("toy-tone")
    engine = Engine(model, WITH_DEADLINES)
    stream_id = engine.open(make_plan(model, "abc", frames=100))
    engine.run(until=lambda: len(engine.chunks(stream_id)) >= 2)
    before_s = engine.clock.now_s
    engine.clock.advance(HOUR_S)
    engine.loop.inbox.put(ReportPlayout(stream_id=stream_id, heard_s=0.01, at_s=before_s))
    assert engine.step() is not None
    engine.run()
    assert engine.finished(stream_id).reason == "stop"
    engine.check_is_empty()
