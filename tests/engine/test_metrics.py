"""Counters of the loop."""

from __future__ import annotations

import itertools

import pytest

from engine.costs import StepCosts
from engine.histogram import Histogram
from engine.metrics import LoopMetrics
from engine.stream import Stream
from engine.types import EngineStats, StreamId
from tests.engine.harness import Engine, TickingClock, load_toy, make_plan


def make_stream(**fields: object) -> Stream:
    return Stream(stream_id=StreamId(1), asked_s=10.0, max_frames=5, n_prompt_rows=[1], **fields)


def test_a_value_falls_under_the_first_bound_that_is_not_below_it():
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 7.0, 2.0):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1, 1]
    assert (histogram.n, histogram.sum, histogram.largest, histogram.last) == (6, 17.0, 7.0, 2.0)


def test_the_first_sound_of_a_caller_who_waits_is_measured():
    metrics = LoopMetrics()
    metrics.count_chunk(make_stream(), 0, 10.2)
    assert metrics.ttfa_s.n == 0
    metrics.count_chunk(make_stream(), 100, 10.5)
    assert metrics.ttfa_s.last == 0.5
    metrics.count_chunk(make_stream(play_from_s=20.0), 100, 11.0)
    metrics.count_chunk(make_stream(first_sent_s=10.5, sent_s=9.0), 100, 11.0)
    assert metrics.ttfa_s.n == 1
    assert metrics.n_samples == 300


def test_a_chunk_after_the_client_ran_dry_is_late():
    metrics = LoopMetrics()
    playing = make_stream(first_sent_s=10.0, sent_s=1.0, held_s=0.05)
    metrics.count_chunk(playing, 10, 10.9)
    metrics.count_chunk(playing, 10, 10.99)
    assert metrics.n_late_chunks == 0, "due a little early, and not late for that"
    metrics.count_chunk(playing, 10, 11.1)
    assert metrics.n_late_chunks == 1
    assert metrics.slack_s.sum == pytest.approx(0.05 - 0.04 - 0.15)


def test_slack_is_of_chunks_that_somebody_waits_for():
    metrics = LoopMetrics()
    metrics.count_chunk(make_stream(), 100, 10.5)
    metrics.count_chunk(make_stream(first_sent_s=10.0, sent_s=1.0), 0, 10.5)
    metrics.count_chunk(make_stream(first_sent_s=10.0, is_paced=False), 100, 10.5)
    assert metrics.slack_s.n == 0
    metrics.count_chunk(make_stream(play_from_s=20.0), 100, 19.0)
    assert metrics.slack_s.last == 1.0


def test_each_stage_tells_its_calls_and_its_batches():
    engine = Engine(load_toy("toy-tone"), clock=TickingClock())
    engine.speak([make_plan(engine.model, "abc")] * 3, seeds=[0, 1, 2])
    metrics = engine.loop.metrics
    for seconds in (metrics.decode_s, metrics.prefill_s, metrics.detokenize_s):
        assert seconds.n > 0
        # One tick of the clock between the two ends of a call.
        assert seconds.largest == pytest.approx(1e-3)
    assert metrics.decode_rows.largest == metrics.chunk_streams.largest == 3
    assert metrics.prefill_rows.n == metrics.prefill_s.n
    assert metrics.step_s.sum > metrics.decode_s.sum + metrics.detokenize_s.sum
    for name, histogram in metrics.histograms.items():
        assert sum(histogram.counts) == histogram.n, name


def test_the_snapshot_shows_what_was_counted():
    engine = Engine(load_toy("toy-mixed"))
    done, gone = engine.open(make_plan(engine.model)), engine.open(make_plan(engine.model))
    engine.step()
    engine.abort(gone)
    engine.run()
    assert engine.finished(done).reason == "stop"
    stats = engine.loop.stats
    assert (stats.n_finished, stats.n_aborted, stats.n_failed) == (1, 1, 0)
    assert stats.n_steps == engine.loop.metrics.step_s.n > 0
    assert engine.loop.metrics.shown_in(EngineStats()).n_finished == 1
    # 13 frames of speech after the text; pairs count two rows.
    assert engine.loop.metrics.decode_rows.largest == 2


def test_the_cost_model_is_taught_whole_steps_too():
    """Without them a burst of new streams looked cheaper than it was, and first chunks too long."""
    engine = Engine(load_toy("toy-tone"))
    engine.loop.costs = StepCosts()
    ticks = itertools.count()
    engine.loop._clock = lambda: 100.0 + 1e-3 * next(ticks)
    engine.speak([make_plan(engine.model, "abc")], seeds=[0])
    assert engine.loop.costs.recent_step_s > 0
