"""Streams that give way: they come back as if nothing had been, and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.types import StreamAdmitted, StreamFinished, StreamId
from models.base import PromptPlan, SpeechModel
from models.spec import SamplingParams
from tests.engine.harness import CONFIG, ONE_SLOT, TEXTS, Engine, load_toy, make_plan

TOYS = (
    "toy-interleaved",
    "toy-delayed",
    "toy-depth",
    "toy-mixed",
    "toy-audio-in",
    "toy-streamed",
)
AFTER = (1, 3, 8)
"""Steps after which a file's stream gives way: in its prompt, at its first row, later."""


def plan_of(model: SpeechModel, *, is_greedy: bool) -> PromptPlan:
    """A plan whose draws depend on all that a stream carries: its history, and how many it made."""
    text = "twelve bytes" if model.spec.frame.rows_per_frame == 1 else "abc"
    plan = make_plan(model, text, is_greedy=is_greedy)
    if is_greedy:
        return plan
    names = [column.name for column in model.spec.columns]
    params = SamplingParams(temperature=0.9, repetition_penalty=1.5, repetition_window=20)
    return replace(plan, sampling=dict.fromkeys(names, params))


@pytest.mark.parametrize(("is_greedy", "overlap"), [(True, "off"), (False, "on")])
@pytest.mark.parametrize("name", TOYS)
def test_it_goes_on_as_if_it_had_never_stopped(name, is_greedy, overlap):
    """Draws, penalties, delays, companions, text and codec state: none may notice."""
    model = load_toy(name)
    plan, short = plan_of(model, is_greedy=is_greedy), make_plan(model, "x", frames=1)
    engine = Engine(model, replace(ONE_SLOT, overlap=overlap))
    alone = engine.open(plan, seed=3)
    engine.run()
    for after in AFTER:
        stream_id = engine.open(plan, seed=3, is_paced=False)
        n_before = engine.loop.metrics.n_gave_way
        # Twice each time: what it went on from once, it can go on from again.
        others = engine.run_with_breaks((after, 2), short)
        assert engine.loop.metrics.n_gave_way - n_before == 2, after
        np.testing.assert_allclose(engine.pcm(stream_id), engine.pcm(alone), atol=1e-6)
        assert engine.text(stream_id) == engine.text(alone)
        end, expected = engine.finished(stream_id), engine.finished(alone)
        assert replace(end, stream_id=alone) == expected
        indices = [chunk.chunk_idx for chunk in engine.chunks(stream_id)]
        assert indices == list(range(len(indices)))
        kinds = [type(event) for event in engine.of(stream_id)]
        assert kinds.count(StreamAdmitted) == 1
        assert {engine.finished(other).reason for other in others} == {"stop"}
        engine.check_is_empty()


def test_rows_are_run_again_in_the_phases_in_which_they_were_made(monkeypatch):
    model = load_toy("toy-mixed")
    embed = model.embed

    def phased(ids, phase):
        """As a model whose rows mean something else in each phase."""
        return embed(ids, phase) + torch.where(phase < 0, 0.0, 0.5 * phase + 0.5).unsqueeze(1)

    monkeypatch.setattr(model, "embed", phased)
    plan = make_plan(model, "hello", is_greedy=True, reply_letters=5, frames=20)
    engine = Engine(model, ONE_SLOT)
    (expected,) = engine.speak([plan], seeds=[0])
    for after in (3, 14):
        stream_id = engine.open(plan, is_paced=False)
        engine.run_with_breaks((after,), make_plan(model, "x", reply_letters=0, frames=1))
        np.testing.assert_allclose(engine.pcm(stream_id), expected, atol=1e-6)


def test_both_sequences_of_a_guided_pair_give_way_at_once():
    """One half of a pair cannot go on: nothing of either may stay behind."""
    model = load_toy("toy-mixed")
    engine = Engine(model, ONE_SLOT)
    plan = replace(make_plan(model, "hello", reply_letters=2, frames=60), max_frames=60)
    short = replace(make_plan(model, "x", reply_letters=0, frames=1), max_frames=1)
    stream_id = engine.open(plan, is_paced=False)
    while not engine.chunks(stream_id):
        engine.step()
    other = engine.open(short)
    engine.step()
    assert (engine.loop.metrics.n_gave_way, engine.loop.stats.n_active) == (1, 1)
    engine.loop.check()
    # The pool holds the worst case of one pair, which the other has now.
    assert engine.loop.stats.n_pages_used == engine.loop.stats.n_pages
    engine.run()
    engine.check_each_ended_once([stream_id, other])
    engine.check_is_empty()


def test_text_that_comes_meanwhile_is_spoken():
    model = load_toy("toy-streamed")
    expected = Engine(model).speak([make_plan(model, "one two three")], seeds=[3])[0]
    engine = Engine(model, ONE_SLOT)
    stream_id = engine.open(make_plan(model, "one", is_text_final=False), seed=3, is_paced=False)
    # It has spoken what there is, and starves.
    for _ in range(30):
        engine.step()
    other = engine.open(make_plan(model, "x", frames=40))
    for _ in range(4):
        engine.step()
    assert engine.loop.metrics.n_gave_way == 1
    for text, is_final in ((" two", False), (" three", True)):
        ids = model.extend(None, text, is_final=is_final).tolist()
        engine.extend(stream_id, ids, is_final=is_final)
        engine.step()
    engine.run()
    np.testing.assert_allclose(engine.pcm(stream_id), expected, atol=1e-6)
    engine.check_each_ended_once([stream_id, other])
    engine.check_is_empty()


def test_text_that_was_handed_over_in_the_step_of_giving_way_is_spoken():
    """The stream was about to go on with it: giving way must not forget that it may."""
    model = load_toy("toy-streamed")
    expected = Engine(model).speak([make_plan(model, "one and many more words.")], seeds=[3])[0]
    engine = Engine(model, ONE_SLOT)
    stream_id = engine.open(make_plan(model, "one", is_text_final=False), seed=3, is_paced=False)
    for _ in range(30):
        engine.step()
    engine.extend(
        stream_id,
        model.extend(None, " and many more words", is_final=False).tolist(),
        is_final=False,
    )
    engine.open(make_plan(model, "x", frames=2))
    engine.step()
    assert engine.loop.metrics.n_gave_way == 1
    for _ in range(30):
        engine.step()
    assert engine.chunks(stream_id), "it goes on before more text comes"
    engine.extend(stream_id, model.extend(None, ".", is_final=True).tolist(), is_final=True)
    engine.run()
    np.testing.assert_allclose(engine.pcm(stream_id), expected, atol=1e-6)


@pytest.mark.parametrize("after", range(0, 40, 4))
def test_a_cancel_meanwhile_frees_everything(after):
    model = load_toy("toy-mixed")
    engine = Engine(model, ONE_SLOT)
    gone = engine.open(make_plan(model, TEXTS[1]), is_paced=False)
    for _ in range(after):
        engine.step()
    stays = engine.open(make_plan(model, TEXTS[2]))
    engine.step()
    assert engine.loop.metrics.n_gave_way == (after > 0)
    engine.abort(gone)
    engine.step()
    assert engine.finished(gone).reason == "aborted"
    assert engine.loop.stats.n_queued == 0
    engine.run()
    engine.check_each_ended_once([gone, stays])
    engine.check_is_empty()


# Who gives way, and when.


def test_a_stream_that_plays_never_gives_way():
    model = load_toy("toy-tone")
    engine = Engine(model, ONE_SLOT)
    first = engine.open(make_plan(model, frames=50))
    for _ in range(10):
        engine.step()
    second = engine.open(make_plan(model, frames=5))
    engine.run()
    assert engine.loop.metrics.n_gave_way == 0
    ends = [e.stream_id for e in engine.events if isinstance(e, StreamFinished)]
    assert ends == [first, second]


def test_files_do_not_take_each_others_places():
    model = load_toy("toy-tone")
    engine = Engine(model, ONE_SLOT)
    ids = [engine.open(make_plan(model, frames=30), is_paced=False) for _ in range(3)]
    engine.run()
    assert engine.loop.metrics.n_gave_way == 0
    assert [e.stream_id for e in engine.events if isinstance(e, StreamFinished)] == ids


def test_a_stalled_client_s_stream_gives_way_after_a_while_and_returns_when_it_reads():
    model = load_toy("toy-delayed")
    plan = make_plan(model, TEXTS[1])
    expected = Engine(model).speak([plan], seeds=[1])[0]
    engine = Engine(model, replace(ONE_SLOT, patience_s=2.0))
    stalled = engine.open(plan, seed=1)
    for _ in range(12):
        engine.step()
    engine.pause(stalled, is_paused=True)
    engine.step()
    waits = engine.open(make_plan(model, "x", frames=3))
    engine.step()
    assert engine.loop.metrics.n_gave_way == 0, "a client may be slow for a moment"
    engine.clock.advance(2.0)
    engine.run()
    assert engine.loop.metrics.n_gave_way == 1
    assert engine.finished(waits).reason == "stop"
    assert engine.loop.step() is None, "nobody waits for the stalled one, and it wants nothing"
    assert (engine.loop.stats.n_active, engine.loop.stats.n_queued) == (0, 0)
    # When it reads again it goes before whoever is new, and nobody tires of its waiting.
    engine.clock.advance(10 * ONE_SLOT.queue_timeout_s)
    others = [engine.open(make_plan(model, "x", frames=30)) for _ in range(2)]
    engine.step()
    engine.pause(stalled, is_paused=False)
    engine.run()
    np.testing.assert_allclose(engine.pcm(stalled), expected, atol=1e-6)
    ends = [e.stream_id for e in engine.events if isinstance(e, StreamFinished)]
    assert ends == [waits, others[0], stalled, others[1]]
    engine.check_is_empty()


def test_one_that_has_only_its_last_chunks_left_needs_no_pages_to_come_back():
    model = load_toy("toy-interleaved")
    plan = replace(make_plan(model, "abc", frames=9), max_frames=6)
    long = replace(make_plan(model, "abc", frames=20), max_frames=20)
    expected = Engine(model).speak([plan], seeds=[1])[0]
    # The long one's 44 prompt rows and 141 more take 24 pages of 8 rows; 5 are left.
    config = replace(ONE_SLOT, max_streams=2, n_pages=30, patience_s=0.0)
    engine = Engine(model, config)
    stalled = engine.open(plan, seed=1)
    # The first row comes with the prompt, and the last frame is not detokenized in its own step.
    while engine.loop.metrics.decode_rows.n < 41:
        engine.step()
    engine.pause(stalled, is_paused=True)
    engine.step()
    other = engine.open(long)
    engine.step()
    assert engine.loop.metrics.n_gave_way == 1
    engine.pause(stalled, is_paused=False)
    engine.run()
    np.testing.assert_allclose(engine.pcm(stalled), expected, atol=1e-6)
    ends = [e.stream_id for e in engine.events if isinstance(e, StreamFinished)]
    assert ends == [stalled, other]
    engine.check_is_empty()


def test_pages_are_taken_from_as_many_as_it_needs_and_from_no_more():
    model = load_toy("toy-depth")
    plan = replace(make_plan(model, "abcd"), max_frames=20)
    # Each takes 4 pages of 8 rows; the pool has 13.
    engine = Engine(model, replace(CONFIG, n_pages=14, page_size=8))
    files = [engine.open(plan, seed=n, is_paced=False) for n in range(3)]
    for _ in range(3):
        engine.step()
    assert engine.loop.stats.n_active == 3
    waited_for = engine.open(plan, seed=7)
    engine.step()
    assert engine.loop.metrics.n_gave_way == 1
    assert engine.loop.stats.n_active == 3
    engine.run()
    engine.check_each_ended_once([*files, waited_for])
    engine.check_is_empty()


def test_the_throughput_policy_lets_nobody_give_way():
    model = load_toy("toy-tone")
    engine = Engine(model, replace(ONE_SLOT, policy="throughput"))
    engine.open(make_plan(model, frames=30), is_paced=False)
    for _ in range(5):
        engine.step()
    engine.open(make_plan(model, frames=5))
    engine.run()
    assert engine.loop.metrics.n_gave_way == 0


# Any order of anything.

_LISTEN, _FILE, _ABORT, _PAUSE, _RESUME, _STEP = range(6)
ACTIONS = st.lists(
    st.tuples(st.sampled_from((_LISTEN, _FILE, _FILE, _PAUSE, _RESUME, _ABORT, _STEP, _STEP)),
              st.integers(0, 9)),
    max_size=40,
)  # fmt: skip
N_TEXTS = 3


def _plan(model: SpeechModel, which: int) -> PromptPlan:
    return replace(make_plan(model, "abc"[: 1 + which % N_TEXTS]), max_frames=8)


@pytest.fixture(scope="module", params=["toy-mixed", "toy-delayed", "toy-depth"])
def spoken(request) -> tuple[SpeechModel, list[np.ndarray]]:
    """A toy, and what each of the drawn requests sounds like alone."""
    model = load_toy(request.param)
    plans = [_plan(model, which) for which in range(10)]
    return model, [Engine(model).speak([plan], seeds=[n])[0] for n, plan in enumerate(plans)]


@pytest.mark.parametrize("overlap", ["off", "on"])
@given(actions=ACTIONS)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_in_any_order_each_is_heard_whole_and_nothing_leaks(spoken, overlap, actions):
    model, expected = spoken
    config = replace(CONFIG, max_streams=2, prefill_rows_per_step=5, page_size=4, patience_s=0.0)
    config = replace(config, overlap=overlap)
    engine = Engine(model, config)
    ids: dict[StreamId, int] = {}
    for action, which in actions:
        if action in (_LISTEN, _FILE):
            stream_id = engine.open(_plan(model, which), seed=which, is_paced=action == _LISTEN)
            ids[stream_id] = which
        elif action == _STEP:
            for _ in range(which):
                engine.step()
        elif ids:
            stream_id = list(ids)[which % len(ids)]
            if action == _ABORT:
                engine.abort(stream_id)
            else:
                engine.pause(stream_id, is_paused=action == _PAUSE)
        engine.loop.check()
    for stream_id in ids:
        engine.pause(stream_id, is_paused=False)
    engine.run()
    engine.check_each_ended_once(list(ids))
    engine.check_is_empty()
    for stream_id, which in ids.items():
        pcm = engine.pcm(stream_id)
        if engine.finished(stream_id).reason == "aborted":
            assert len(pcm) <= len(expected[which])
            np.testing.assert_allclose(pcm, expected[which][: len(pcm)], atol=1e-6)
        else:
            np.testing.assert_allclose(pcm, expected[which], atol=1e-6)
