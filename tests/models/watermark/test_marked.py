"""A marked model on the engine: every sample there, streams as they are alone, steps recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine import device as device_module
from engine.graphs import Graphs
from models.base import Decoded
from models.watermark.marked import Marked
from models.watermark.stage import Stage
from tests.engine.harness import CONFIG, Engine, load_toy, make_plan
from tests.engine.recorded_graphs import record
from tests.models.watermark.tiny import MARKS, make_cipher, make_perth, whole

TOYS = ("toy-tone", "toy-depth", "toy-interleaved", "toy-delayed")
"""With state, with context, and with look-ahead of their own."""
TEXTS = ("hello", "no", "a longer sentence")
TOLERANCE = 2e-6


def marked_toy(name: str) -> Marked:
    return Marked(load_toy(name), make_perth())


@pytest.mark.parametrize("name", TOYS)
def test_streams_are_those_of_the_model_with_the_mark(name):
    """Together, in whatever chunks the engine makes, against whole signals of the bare model."""
    plain, model = load_toy(name), marked_toy(name)
    plans = [make_plan(plain, text) for text in TEXTS]
    bare = Engine(plain).speak(plans, seeds=[1, 2, 3])
    engine = Engine(model)
    spoken = engine.speak([make_plan(model, text) for text in TEXTS], seeds=[1, 2, 3])
    stage = Stage(make_perth(), plain.spec.frame)
    for pcm, marked in zip(bare, spoken, strict=True):
        assert len(marked) == len(pcm) > 0
        assert np.abs(marked - pcm).max() > 1e-4
        expected = whole(stage, torch.from_numpy(pcm)[None])[0].clamp(-1, 1)
        np.testing.assert_allclose(marked, expected, rtol=0, atol=TOLERANCE)
    engine.check_is_empty()


def test_a_codec_with_a_ramp_of_its_own_for_first_calls_keeps_it():
    """As those by flow matching have it; the last call has room for what they hold back."""
    plain, model = (load_toy("toy-delayed") for _ in range(2))
    ramp = {"chunk_frames": (5, 10), "first_frames": (3, 8), "last_room_frames": 2}
    for toy in (plain, model):
        toy.spec = replace(toy.spec, codec=replace(toy.spec.codec, **ramp))
    marked = Marked(model, make_perth())
    (pcm,) = Engine(plain).speak([make_plan(plain, TEXTS[2])], seeds=[1])
    (got,) = Engine(marked).speak([make_plan(marked, TEXTS[2])], seeds=[1])
    expected = whole(Stage(make_perth(), plain.spec.frame), torch.from_numpy(pcm)[None])[0]
    assert marked.spec.codec.first_frames == (3, 8)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", MARKS)
def test_recorded_and_overlapped_steps_say_what_plain_steps_say(kind, monkeypatch):
    monkeypatch.setattr(
        device_module,
        "make_graphs",
        lambda choice, device: None if choice == "off" else Graphs(record),
    )
    toy = load_toy("toy-delayed")
    toy.spec = replace(toy.spec, codec=replace(toy.spec.codec, chunk_frames=(4, 8)))
    model = Marked(toy, MARKS[kind]())
    plan = make_plan(model, "hello there")
    config = replace(CONFIG, max_streams=1)
    (expected,) = Engine(model, replace(config, graphs="off")).speak([plan], seeds=[1])
    engine = Engine(model, replace(config, graphs="cuda", overlap="on"))
    engine.loop.warm_up()
    (got,) = engine.speak([plan], seeds=[1])
    assert len(got) > 0
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
    engine.check_is_empty()


def test_a_mark_that_holds_back_more_than_a_chunk_waits():
    """No chunk of the model is as long as what is held back: the first ones give nothing."""
    model = load_toy("toy-tone")
    codec = replace(model.spec.codec, chunk_frames=(1,))
    model.spec = replace(model.spec, codec=codec)
    slow = Marked(model, make_cipher())
    assert slow.spec.codec.lookahead_frames >= 1
    engine = Engine(slow)
    (pcm,) = engine.speak([make_plan(slow, "hello")], seeds=[1])
    assert len(pcm) == 5 * 1920
    engine.check_is_empty()


def test_what_a_model_leaves_behind_its_samples_is_not_heard(monkeypatch):
    """Nothing says that it is silence."""
    model = marked_toy("toy-tone")
    (expected,) = Engine(model).speak([make_plan(model, "hello")], seeds=[1])
    decode = model.model.decode

    def littered(*asked: object) -> Decoded:
        given = decode(*asked)
        return replace(given, pcm=torch.nn.functional.pad(given.pcm, (0, 100), value=0.5))

    monkeypatch.setattr(model.model, "decode", littered)
    (pcm,) = Engine(model).speak([make_plan(model, "hello")], seeds=[1])
    np.testing.assert_allclose(pcm, expected, rtol=0, atol=TOLERANCE)


def test_a_cancelled_stream_leaves_nothing_behind():
    model = marked_toy("toy-tone")
    (expected,) = Engine(model).speak([make_plan(model, "hello")], seeds=[1])
    engine = Engine(model, replace(CONFIG, max_streams=1))
    first = engine.open(make_plan(model, "a longer sentence, spoken"))
    engine.run(until=lambda: bool(engine.chunks(first)))
    engine.abort(first)
    engine.run()
    (pcm,) = engine.speak([make_plan(model, "hello")], seeds=[1])
    assert np.array_equal(pcm, expected)
    engine.check_is_empty()


def test_only_the_codec_differs_from_the_model():
    model = load_toy("toy-tone")
    marked = marked_toy("toy-tone")
    spec, own = marked.spec, model.spec
    assert spec.watermark == "Perth"
    assert own.watermark == ""
    assert spec.codec.lookahead_frames == own.codec.lookahead_frames + 1
    assert [part.name for part in spec.codec.state] == [
        *(part.name for part in own.codec.state),
        "mark.pcm",
        "mark.n_samples",
        "mark.level",
    ]
    assert replace(spec, codec=own.codec, watermark="") == own
