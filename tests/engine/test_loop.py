"""The loop: ends, cancels, pauses, queues, memory, and what is published when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.types import StreamAdmitted, StreamFinished, StreamId, StreamQueued, TextDelta
from models.spec import SamplingParams
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan

LENGTHS = {
    "toy-interleaved": range(10),
    "toy-delayed": (0, 1, 3, 4, 5, 8, 31, 32, 33, 64),
    "toy-depth": range(12),
    "toy-streamed": (0, 1, 2, 7, 8, 9, 16),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_every_length_gives_exactly_its_samples_once(name):
    """Faults 15 and 24: a last chunk came twice, and tails were cut.

    Twice where the length was a multiple of the chunk; cut where it was not, and where the codec
    held frames back.
    """
    model = load_toy(name)
    engine = Engine(model)
    spf = model.spec.frame.samples_per_frame
    ids = {n: engine.open(make_plan(model, "text", frames=n), seed=n) for n in LENGTHS[name]}
    engine.run()
    for n_frames, stream_id in ids.items():
        end = engine.finished(stream_id)
        assert (end.reason, end.n_frames, end.n_samples) == ("stop", n_frames, n_frames * spf)
        assert len(engine.pcm(stream_id)) == n_frames * spf
        indices = [chunk.chunk_idx for chunk in engine.chunks(stream_id)]
        assert indices == list(range(len(indices)))
    engine.check_each_ended_once(list(ids.values()))
    engine.check_is_empty()


def test_a_stream_without_sound_ends_beside_others_that_sound():
    """Fault 5: a stream with no audio rows in a codec batch raised."""
    model = load_toy("toy-depth")
    engine = Engine(model)
    silent = engine.open(make_plan(model, "x", frames=0))
    loud = engine.open(make_plan(model, "x", frames=4))
    engine.run()
    assert engine.chunks(silent) == []
    assert engine.finished(silent).n_samples == 0
    assert engine.finished(loud).n_frames == 4


@pytest.mark.parametrize("name", ["toy-interleaved", "toy-depth", "toy-delayed"])
def test_the_cap_counts_generated_frames_not_the_prompt(name):
    """Fault 20: generation had no bound; and limits were compared with the prompt's length."""
    model = load_toy(name)
    engine = Engine(model)
    plan = make_plan(model, TEXTS[1] * 4, frames=50)
    assert len(plan.ids) > 20
    stream_id = engine.open(replace(plan, max_frames=7))
    engine.run()
    end = engine.finished(stream_id)
    assert (end.reason, end.n_frames) == ("length", 7)
    assert end.n_samples == 7 * model.spec.frame.samples_per_frame
    engine.check_is_empty()


def test_the_first_chunk_is_the_smallest_that_sounds():
    model = load_toy("toy-streamed")
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, TEXTS[1]))
    engine.run()
    first = engine.chunks(stream_id)[0]
    assert len(first.pcm) == model.spec.codec.chunk_frames[0] * model.spec.frame.samples_per_frame


def test_more_ready_chunks_than_a_call_holds_all_get_through():
    """Fault 10: more urgent streams than the batch made an endless loop."""
    model = load_toy("toy-interleaved")
    model.spec = replace(model.spec, codec=replace(model.spec.codec, max_batch=2))
    engine = Engine(model)
    ids = [engine.open(make_plan(model, "abc"), seed=n) for n in range(8)]
    engine.run()
    assert {engine.finished(stream_id).reason for stream_id in ids} == {"stop"}
    assert engine.loop.metrics.chunk_streams.sum == sum(len(engine.chunks(i)) for i in ids)


def test_an_opened_stream_is_admitted_then_sounds_then_finishes():
    model = load_toy("toy-interleaved")
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, "abc"))
    engine.run()
    events = engine.of(stream_id)
    assert isinstance(events[0], StreamAdmitted)
    assert isinstance(events[-1], StreamFinished)
    assert events[-1].n_prompt_rows == 44
    assert engine.loop.metrics.ttfa_s.n == 1


def test_a_step_publishes_once_or_not_at_all():
    model = load_toy("toy-interleaved")
    engine = Engine(model)
    for seed in range(6):
        engine.open(make_plan(model, "abcdef"), seed=seed)
    while True:
        n_before = engine.n_publishes
        wanted = engine.step()
        assert engine.n_publishes - n_before <= 1
        if wanted is None:
            break


def test_an_idle_engine_asks_for_no_step():
    engine = Engine(load_toy("toy-tone"))
    assert engine.loop.step() is None
    assert engine.loop.stats.n_steps == 0
    engine.speak([make_plan(engine.model, "x")], seeds=[0])
    assert engine.loop.step() is None


def test_a_stream_far_ahead_is_left_out_until_its_lead_is_used():
    model = load_toy("toy-delayed")
    engine = Engine(model, replace(CONFIG, lead_s=0.5))
    stream_id = engine.open(make_plan(model, "x", frames=200))
    waits = []
    while engine.loop.stats.n_finished == 0:
        wanted = engine.step()
        assert wanted is not None
        waits.append(wanted)
        sent_s = len(engine.pcm(stream_id)) / model.spec.frame.sample_rate_hz
        assert sent_s < engine.clock.now_s - 100.0 + 0.5 + 0.5
    assert max(waits) > 0
    assert engine.finished(stream_id).n_frames == 200


@pytest.mark.parametrize("after_steps", range(0, 40, 3))
@pytest.mark.parametrize("name", ["toy-mixed", "toy-depth"])
def test_a_cancel_at_any_moment_frees_everything_within_a_step(name, after_steps):
    """Fault 13: a client that left kept its memory, and the engine ran on for it."""
    model = load_toy(name)
    engine = Engine(model, replace(CONFIG, prefill_rows_per_step=4, page_size=2))
    gone = engine.open(make_plan(model, TEXTS[1]))
    for _ in range(after_steps):
        engine.step()
    engine.abort(gone)
    engine.step()
    assert engine.loop.stats.n_active == 0
    engine.check_is_empty()
    engine.check_each_ended_once([gone])
    engine.abort(gone)
    engine.step()
    engine.check_each_ended_once([gone])


def test_a_cancelled_neighbour_changes_nothing():
    model = load_toy("toy-delayed")
    plan = make_plan(model, TEXTS[1])
    expected = Engine(model).speak([plan], seeds=[1])[0]
    engine = Engine(model)
    stays = engine.open(plan, seed=1)
    goes = engine.open(make_plan(model, TEXTS[3]), seed=2)
    for _ in range(6):
        engine.step()
    engine.abort(goes)
    late = engine.open(plan, seed=1)
    engine.run()
    np.testing.assert_allclose(engine.pcm(stays), expected, atol=1e-6)
    np.testing.assert_allclose(engine.pcm(late), expected, atol=1e-6)


def test_a_paused_stream_stands_still_and_goes_on():
    model = load_toy("toy-interleaved")
    plan = make_plan(model, TEXTS[1])
    expected = Engine(model).speak([plan], seeds=[1])[0]
    engine = Engine(model)
    stream_id = engine.open(plan, seed=1)
    for _ in range(20):
        engine.step()
    engine.pause(stream_id, is_paused=True)
    engine.run()
    n_samples = len(engine.pcm(stream_id))
    assert engine.loop.step() is None
    assert engine.loop.stats.n_active == 1
    engine.pause(stream_id, is_paused=False)
    engine.run()
    assert len(engine.pcm(stream_id)) > n_samples
    np.testing.assert_allclose(engine.pcm(stream_id), expected, atol=1e-6)


# The queue.


def test_short_of_pages_streams_wait_their_turn():
    """Fault 1: an empty pool ended the engine."""
    model = load_toy("toy-depth")
    # Room for the worst case of one stream and a bit.
    plan = replace(make_plan(model, "abcd"), max_frames=20)
    engine = Engine(model, replace(CONFIG, n_pages=6, page_size=8))
    ids = [engine.open(plan, seed=n) for n in range(5)]
    engine.step()
    assert engine.loop.stats.n_active == 1
    assert engine.loop.stats.n_queued == 4
    queued = [e for e in engine.events if isinstance(e, StreamQueued)]
    assert [e.n_ahead for e in queued] == [0, 1, 2, 3]
    engine.run()
    for stream_id in ids:
        assert engine.finished(stream_id).reason == "stop"
    engine.check_is_empty()


def test_prefix_pages_make_room_when_pages_are_short():
    model = load_toy("toy-interleaved")
    # 45 prompt rows and 36 generated ones: 6 pages, of which 2 are shared and stay cached.
    plan = replace(make_plan(model, "abcd"), max_frames=5)
    engine = Engine(model, replace(CONFIG, n_pages=9))
    for n in range(5):
        engine.speak([replace(plan, prefix_key=f"voice {n}")], seeds=[n])
        engine.check_is_empty()
        assert engine.loop.n_cached_pages == min(2 * (n + 1), 4)
    assert engine.loop.stats.n_finished == 5


def test_a_stream_that_can_never_fit_is_refused():
    model = load_toy("toy-depth")
    engine = Engine(model, replace(CONFIG, n_pages=3))
    stream_id = engine.open(make_plan(model, TEXTS[1]))
    engine.run()
    assert engine.failed(stream_id).code == "prompt_too_long"
    engine.check_is_empty()


def test_a_full_queue_refuses_at_once_with_a_hint():
    model = load_toy("toy-tone")
    engine = Engine(model, replace(CONFIG, max_streams=1, max_queue=2))
    ids = [engine.open(make_plan(model, "abc")) for _ in range(5)]
    engine.step()
    for stream_id in ids[3:]:
        failure = engine.failed(stream_id)
        assert failure.code == "overloaded"
        assert failure.retry_after_s is not None
    engine.run()
    for stream_id in ids[:3]:
        assert engine.finished(stream_id).reason == "stop"
    assert engine.loop.stats.n_refused == 2
    engine.check_is_empty()


def test_the_quiet_after_a_stream_does_not_count_as_its_life():
    """Else after a quiet hour whoever cannot start at once would be refused: a turn takes hours."""
    model = load_toy("toy-tone")
    engine = Engine(model, replace(CONFIG, max_streams=1, queue_timeout_s=10.0))
    engine.open(make_plan(model, frames=20))
    engine.run()
    engine.clock.advance(3600.0)
    ids = [engine.open(make_plan(model, frames=20)) for _ in range(3)]
    engine.run()
    assert [engine.finished(stream_id).reason for stream_id in ids] == ["stop"] * 3


def test_a_waiting_stream_can_be_cancelled_and_extended():
    model = load_toy("toy-streamed")
    engine = Engine(model, replace(CONFIG, max_streams=1))
    first = engine.open(make_plan(model, "first"))
    gone = engine.open(make_plan(model, "gone"))
    waits = engine.open(make_plan(model, "wait", is_text_final=False), seed=3)
    engine.step()
    engine.abort(gone)
    engine.extend(waits, model.extend(None, "ing", is_final=True).tolist(), is_final=True)
    engine.run()
    assert engine.finished(first).reason == "stop"
    assert engine.finished(gone).reason == "aborted"
    expected = Engine(model).speak([make_plan(model, "waiting")], seeds=[3])[0]
    np.testing.assert_allclose(engine.pcm(waits), expected, atol=1e-6)
    engine.check_is_empty()


def test_no_kv_is_held_for_streams_that_cannot_run():
    """Faults 1 and 10: every arrival was given pages although only a batch made progress."""
    model = load_toy("toy-tone")
    engine = Engine(model, replace(CONFIG, max_streams=2))
    for seed in range(12):
        engine.open(make_plan(model, "abc"), seed=seed)
    engine.step()
    assert engine.loop.stats.n_slots_used == 2
    assert engine.loop.stats.n_queued == 10


# Text and sampling.


def test_text_comes_in_deltas_before_the_sound():
    model = load_toy("toy-mixed")
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, "hello", reply_letters=9))
    engine.run()
    kinds = [type(event) for event in engine.of(stream_id)]
    assert kinds.count(TextDelta) == 9
    assert len(engine.text(stream_id)) == 9
    last_text = len(kinds) - 1 - kinds[::-1].index(TextDelta)
    assert last_text < [k.__name__ for k in kinds].index("AudioChunk")


def test_a_penalty_without_a_window_is_no_penalty():
    """Fault 6: a penalty on a model without a window raised; beside one with a window, too."""
    model = load_toy("toy-interleaved")
    plan = make_plan(model, "abc")
    name = model.spec.columns[0].name
    odd = SamplingParams(repetition_penalty=2.0, repetition_window=0)
    even = SamplingParams(repetition_penalty=1.0)
    other = SamplingParams(repetition_penalty=2.0, repetition_window=8)
    for company in ([], [other]):
        plans = [replace(plan, sampling={name: one}) for one in (odd, even, *company)]
        got = Engine(model).speak(plans, seeds=[1] * len(plans))
        np.testing.assert_array_equal(got[0], got[1])


# Any order of anything.

_OPEN, _ABORT, _PAUSE, _RESUME, _EXTEND, _STEP = range(6)
ACTIONS = st.lists(
    st.tuples(st.sampled_from((_OPEN, _ABORT, _PAUSE, _RESUME, _EXTEND, _STEP)), st.integers(0, 9)),
    max_size=40,
)


def _act(engine: Engine, ids: list[StreamId], action: int, which: int) -> None:
    is_streamed = engine.model.spec.text_capacity > 0
    if action == _OPEN:
        plan = make_plan(engine.model, "abc"[: 1 + which % 3], is_text_final=not is_streamed)
        ids.append(engine.open(replace(plan, max_frames=8), seed=which))
    elif action == _STEP:
        for _ in range(which):
            engine.step()
    elif ids:
        stream_id = ids[which % len(ids)]
        if action == _ABORT:
            engine.abort(stream_id)
        elif action == _EXTEND:
            engine.extend(stream_id, [5, 6], is_final=which > 5)
        else:
            engine.pause(stream_id, is_paused=action == _PAUSE)


@pytest.mark.parametrize("name", ["toy-streamed", "toy-mixed", "toy-delayed"])
@given(actions=ACTIONS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_of_commands_leaves_no_leak_and_one_end_each(name, actions):
    model = load_toy(name)
    # Tight on slots, rows and pages, so that all of them are fought over.
    config = replace(CONFIG, max_streams=3, prefill_rows_per_step=5, page_size=4, max_queue=3)
    if name != "toy-mixed":
        config = replace(config, n_pages=40)
    engine = Engine(model, config)
    ids: list[StreamId] = []
    for action, which in actions:
        _act(engine, ids, action, which)
        engine.loop.check()
    for stream_id in ids:
        engine.pause(stream_id, is_paused=False)
        engine.extend(stream_id, [], is_final=True)
    engine.run()
    engine.check_each_ended_once(ids)
    engine.check_is_empty()
    for stream_id in ids:
        end = engine.of(stream_id)[-1]
        if isinstance(end, StreamFinished):
            n_samples = len(engine.pcm(stream_id))
            assert end.n_samples == n_samples
            if end.reason != "aborted":
                assert n_samples == end.n_frames * model.spec.frame.samples_per_frame


def test_positions_given_by_the_plan_are_followed():
    """Another position is another sound; the same one is the same."""
    model = load_toy("toy-interleaved")
    plan = make_plan(model, "abc", is_greedy=True)
    shifted = replace(plan, positions=torch.arange(len(plan.ids)) + 5)
    same = replace(plan, positions=torch.arange(len(plan.ids)))
    holes = replace(plan, positions=torch.arange(len(plan.ids)) * 2)
    got = Engine(model).speak([plan, same, shifted, holes], seeds=[0] * 4)
    np.testing.assert_allclose(got[1], got[0], atol=1e-6)
    # Rotary attention sees differences of positions only.
    np.testing.assert_allclose(got[2], got[0], atol=1e-6)
    assert not np.allclose(got[3], got[0], atol=1e-3)
