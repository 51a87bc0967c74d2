"""Steps that are collected one later: the same is said, and nothing is freed under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from engine.types import AudioChunk
from models.base import Advance, PromptPlan, SpeechModel, TextFeed
from models.toy.faulty import FaultyModel
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan

ALL = (
    *("toy-tone", "toy-interleaved", "toy-delayed", "toy-depth", "toy-mixed", "toy-audio-in"),
    "toy-streamed",
)
OVERLAPPED = replace(CONFIG, overlap="on")


def same_pcm(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order in which batches of another size add up."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def in_flight(engine: Engine) -> int:
    return sum(group.stream.is_in_flight for group in engine.loop._active.values())


@pytest.mark.parametrize("name", ALL)
def test_streams_say_what_they_say_without_overlap(name):
    """Rows beyond an end, or before a companion has come, leave no trace."""
    model = load_toy(name)
    plans = [make_plan(model, text) for text in TEXTS]
    expected = Engine(model).speak(plans, seeds=range(4))
    engine = Engine(model, OVERLAPPED)
    for got, wanted in zip(engine.speak(plans, seeds=range(4)), expected, strict=True):
        assert len(wanted) > 0
        same_pcm(got, wanted)
    engine.check_is_empty()


def test_a_playing_stream_is_collected_a_step_later_and_a_silent_one_at_once():
    model = load_toy("toy-depth")
    engine = Engine(model, OVERLAPPED)
    first = engine.open(make_plan(model, "x", frames=60))
    while not engine.chunks(first):
        engine.step()
        assert in_flight(engine) == 0, "somebody waits for the first sound"
    engine.step()
    assert in_flight(engine) == 1
    second = engine.open(make_plan(model, "y", frames=60))
    while not engine.chunks(second):
        engine.step()
        assert in_flight(engine) == 0
    engine.step()
    assert in_flight(engine) == 2
    engine.run()
    engine.check_is_empty()


@pytest.mark.parametrize("n_frames", [1, 7, 20])
def test_a_cap_on_frames_holds(n_frames):
    model = FaultyModel(load_toy("toy-depth"))
    plan = replace(make_plan(model, "x", fault="endless"), max_frames=n_frames)
    engine = Engine(model, OVERLAPPED)
    stream_id = engine.open(plan)
    engine.run()
    end = engine.finished(stream_id)
    assert (end.reason, end.n_frames) == ("length", n_frames)
    assert len(engine.pcm(stream_id)) == n_frames * model.spec.frame.samples_per_frame


def test_no_row_of_a_playing_stream_is_launched_beyond_the_last_position():
    model = load_toy("toy-depth")
    model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=64))
    model = FaultyModel(model)
    engine = Engine(model, replace(OVERLAPPED, page_size=1))
    stream_id = engine.open(replace(make_plan(model, "x", fault="endless"), max_frames=1000))
    engine.run()
    end = engine.finished(stream_id)
    assert end.reason == "length"
    assert end.n_frames == 64 - end.n_prompt_rows
    engine.check_is_empty()


class IllegalAfterTheEnd:
    """A model that gives rows which nobody may be fed where its speech has ended."""

    def __init__(self, inner: SpeechModel) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        out = self.inner.advance(state, ids, feed)
        return replace(out, rows=out.rows.masked_fill(out.is_finished.unsqueeze(1), 1 << 40))

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        assert int(ids.max()) < 1 << 20, "no row of the table"
        return self.inner.embed(ids, phase)


def test_the_row_after_an_end_is_not_fed():
    model = IllegalAfterTheEnd(load_toy("toy-depth"))
    engine = Engine(model, OVERLAPPED)
    ids = [engine.open(make_plan(model, text), seed=n) for n, text in enumerate(TEXTS)]
    engine.run()
    assert [engine.finished(stream_id).reason for stream_id in ids] == ["stop"] * 4


def test_no_row_is_launched_beyond_the_last_position():
    model = load_toy("toy-mixed")
    model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=64))
    texts = []
    for config in (CONFIG, OVERLAPPED):
        engine = Engine(model, config)
        stream_id = engine.open(make_plan(model, "abc", reply_letters=1000), seed=3)
        other = engine.open(make_plan(model, TEXTS[3]), seed=4)
        engine.run()
        assert engine.finished(stream_id).reason == "length"
        assert engine.finished(other).reason == "stop"
        texts.append(engine.text(stream_id))
        engine.check_is_empty()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("fault", ["nan", "step", "decode"])
def test_a_fault_ends_one_stream_and_no_other(fault):
    model = FaultyModel(load_toy("toy-delayed"))
    plans = [make_plan(model, text) for text in TEXTS[:2]]
    expected = Engine(model).speak(plans, seeds=[0, 1])
    engine = Engine(model, OVERLAPPED)
    ids = [engine.open(plan, seed=seed) for seed, plan in enumerate(plans)]
    bad = engine.open(make_plan(model, TEXTS[1], fault=fault, fault_at=9), seed=2)
    engine.run()
    assert engine.failed(bad).code == ("numerical_error" if fault == "nan" else "model_error")
    for stream_id, wanted in zip(ids, expected, strict=True):
        same_pcm(engine.pcm(stream_id), wanted)
    engine.check_each_ended_once([*ids, bad])
    engine.check_is_empty()


def test_memory_of_an_aborted_stream_is_freed_when_its_step_is_through():
    """One slot: who comes next gets it, and says what it says alone."""
    model = load_toy("toy-delayed")
    config = replace(OVERLAPPED, max_streams=1, n_pages=40)
    plan = replace(make_plan(model, TEXTS[1]), max_frames=40)
    expected = Engine(model).speak([plan], seeds=[5])[0]
    engine = Engine(model, config)
    first = engine.open(replace(make_plan(model, "x", frames=200), max_frames=60), seed=1)
    while not engine.chunks(first):
        engine.step()
    engine.step()
    assert in_flight(engine) == 1
    engine.abort(first)
    second = engine.open(plan, seed=5)
    engine.step()
    assert engine.finished(first).reason == "aborted"
    engine.run()
    same_pcm(engine.pcm(second), expected)
    engine.check_is_empty()


def test_the_last_chunk_is_told_before_the_end():
    model = load_toy("toy-interleaved")
    engine = Engine(model, OVERLAPPED)
    ids = [engine.open(make_plan(model, text), seed=n) for n, text in enumerate(TEXTS)]
    engine.run()
    engine.check_each_ended_once(ids)
    for stream_id in ids:
        n_sent = sum(len(e.pcm) for e in engine.of(stream_id) if isinstance(e, AudioChunk))
        assert engine.finished(stream_id).n_samples == n_sent


@pytest.mark.parametrize("gap", [0, 1, 2, 5])
def test_text_that_comes_late_says_the_same(gap):
    """A stream starves while its next row is under way already."""
    model = load_toy("toy-streamed")
    text = "streamed text in bits"
    expected = Engine(model).speak([make_plan(model, text)], seeds=[4])[0]
    engine = Engine(model, OVERLAPPED)
    plan: PromptPlan = make_plan(model, text[:3], is_text_final=False)
    stream_id = engine.open(plan, seed=4)
    engine.run()
    for letter in text[3:]:
        ids = model.extend(plan, letter, is_final=False).tolist()
        engine.extend(stream_id, ids, is_final=False)
        for _ in range(gap):
            engine.step()
    engine.extend(stream_id, [], is_final=True)
    engine.run()
    same_pcm(engine.pcm(stream_id), expected)
    engine.check_is_empty()
