"""Counters of the loop."""

from __future__ import annotations

import itertools

from engine.costs import StepCosts
from engine.metrics import LoopMetrics, Total
from engine.stream import Stream
from engine.types import EngineStats, StreamId
from tests.engine.harness import Engine, load_toy, make_plan


def make_stream(**fields: object) -> Stream:
    return Stream(stream_id=StreamId(1), asked_s=10.0, max_frames=5, n_prompt_rows=[1], **fields)


def test_a_total_keeps_number_sum_largest_and_last():
    total = Total()
    for value in (2.0, 5.0, 1.0):
        total.add(value)
    assert (total.n, total.sum, total.largest, total.last) == (3, 8.0, 5.0, 1.0)


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
    playing = make_stream(first_sent_s=10.0, sent_s=1.0)
    metrics.count_chunk(playing, 10, 10.9)
    assert metrics.n_late_chunks == 0
    metrics.count_chunk(playing, 10, 11.1)
    assert metrics.n_late_chunks == 1


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
