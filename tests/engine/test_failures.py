"""One stream's failure is its own: typed, told once, everything freed, neighbours untouched."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.types import StreamFailed
from models.base import PromptPlan, SpeechModel
from models.toy.faulty import FaultyModel
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan

INNER = ("toy-delayed", "toy-depth", "toy-interleaved")


def faulty(name: str) -> SpeechModel:
    return FaultyModel(load_toy(name))


@pytest.mark.parametrize("fault", ["nan", "step", "decode"])
@pytest.mark.parametrize("name", INNER)
def test_a_fault_ends_one_stream_and_no_other(name, fault):
    model = faulty(name)
    sound = [make_plan(model, text) for text in TEXTS[:3]]
    bad = make_plan(model, TEXTS[1], fault=fault, fault_at=5)
    expected = Engine(model).speak(sound, seeds=[1, 2, 3])
    engine = Engine(model)
    ids = [engine.open(plan, seed=seed) for seed, plan in enumerate(sound, start=1)]
    culprit = engine.open(bad, seed=9)
    engine.run()
    failure = engine.failed(culprit)
    assert failure.code == ("numerical_error" if fault == "nan" else "model_error")
    if fault != "nan":
        assert "ToyFaultError" in failure.message
    for stream_id, wanted in zip(ids, expected, strict=True):
        assert engine.finished(stream_id).reason == "stop"
        np.testing.assert_allclose(engine.pcm(stream_id), wanted, rtol=0, atol=1e-6)
    engine.check_each_ended_once([*ids, culprit])
    engine.check_is_empty()
    assert engine.loop.stats.n_failed == 1


def test_audio_before_the_fault_was_sent():
    model = faulty("toy-interleaved")
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, TEXTS[1], fault="decode", fault_at=3))
    engine.run()
    assert engine.failed(stream_id).code == "model_error"
    assert len(engine.pcm(stream_id)) == 3 * model.spec.frame.samples_per_frame


def test_an_endless_model_is_ended_by_the_cap():
    """Fault 20: without a stop id nothing ended generation."""
    model = faulty("toy-depth")
    engine = Engine(model)
    stream_id = engine.open(replace(make_plan(model, "x", fault="endless"), max_frames=23))
    engine.run()
    end = engine.finished(stream_id)
    assert (end.reason, end.n_frames) == ("length", 23)
    assert len(engine.pcm(stream_id)) == 23 * model.spec.frame.samples_per_frame


def test_an_endless_text_is_ended_by_the_positions():
    model = load_toy("toy-mixed")
    model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=64))
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, "abc", reply_letters=1000))
    engine.run()
    end = engine.finished(stream_id)
    assert end.reason == "length"
    assert len(engine.text(stream_id)) == 64 - end.n_prompt_rows
    engine.check_is_empty()


def test_what_is_not_a_number_does_not_outlive_its_stream():
    """Pages and slots of a failed stream are reused; a NaN in them would spread."""
    model = faulty("toy-delayed")
    plan = make_plan(model, TEXTS[1])
    expected = Engine(model).speak([plan], seeds=[1])[0]
    # One slot, and pages for one stream: the next one gets exactly those.
    capped = replace(plan, max_frames=40)
    bad = replace(make_plan(model, TEXTS[1], fault="nan", fault_at=9), max_frames=40)
    engine = Engine(model, replace(CONFIG, max_streams=1, n_pages=12))
    first = engine.open(bad)
    second = engine.open(capped, seed=1)
    engine.run()
    assert engine.failed(first).code == "numerical_error"
    np.testing.assert_allclose(engine.pcm(second), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ids": torch.zeros((3, 9), dtype=torch.int64)}, "ids"),
        ({"ids": torch.zeros((0, 4), dtype=torch.int64)}, "ids"),
        ({"state": torch.zeros(1, dtype=torch.int64)}, "state"),
        ({"positions": torch.arange(2)}, "positions"),
        ({"embeds": torch.zeros(2, 2)}, "embeds"),
        ({"text_ids": torch.zeros(4, dtype=torch.int64)}, "text_ids"),
        ({"max_frames": 0}, "max_frames"),
        ({"codec_state": {"no such": torch.zeros(1)}}, "codec_state"),
        ({"codec_state": {"gain": torch.zeros(2)}}, "codec_state"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_name(change, named):
    model = load_toy("toy-delayed")
    engine = Engine(model)
    plan: PromptPlan = replace(make_plan(model, "abc"), **change)
    stream_id = engine.open(plan)
    engine.run()
    failure = engine.failed(stream_id)
    assert failure.code == "model_error"
    assert named in failure.message
    engine.check_is_empty()


def test_a_prompt_beyond_the_positions_is_refused():
    model = load_toy("toy-depth")
    engine = Engine(model)
    plan = make_plan(model, "abc")
    n_most = model.spec.backbone.max_positions
    stream_id = engine.open(replace(plan, ids=plan.ids[:1].expand(n_most, -1)))
    engine.run()
    assert engine.failed(stream_id).code == "prompt_too_long"
    engine.check_is_empty()


class BadAudio(FaultyModel):
    """Says one sample that is not a number in every chunk of the quieter streams."""

    def decode(self, frames: Tensor, n_valid: Tensor, state, is_first, is_last):
        out = super().decode(frames, n_valid, state, is_first, is_last)
        is_bad = (state["gain"] < 1).squeeze(1)
        pcm = out.pcm.clone()
        pcm[:, 0] = torch.where(is_bad, math.nan, pcm[:, 0])
        return replace(out, pcm=pcm)


def test_audio_that_is_not_a_number_fails_its_stream():
    model = BadAudio(load_toy("toy-delayed"))
    engine = Engine(model)
    plan = make_plan(model, "abc")
    good = engine.open(plan)
    bad = engine.open(replace(plan, codec_state={**plan.codec_state, "gain": torch.tensor([0.5])}))
    engine.run()
    assert engine.finished(good).reason == "stop"
    assert engine.failed(bad).code == "numerical_error"
    assert len(engine.pcm(bad)) == 0


class NothingAllowed(FaultyModel):
    """Leaves no id to draw for streams that want an odd number of frames."""

    def constrain(self, state: Tensor, logits, feed):
        first, *rest = super().constrain(state, logits, feed)
        is_odd = (state[:, 2] % 2 == 1).unsqueeze(1)
        return [torch.where(is_odd, -math.inf, first), *rest]


def test_a_row_with_no_id_left_fails_its_stream():
    model = NothingAllowed(load_toy("toy-delayed"))
    engine = Engine(model)
    even, odd = engine.open(make_plan(model, "abcd")), engine.open(make_plan(model, "abc"))
    engine.run()
    assert engine.finished(even).reason == "stop"
    assert engine.failed(odd).code == "numerical_error"


def test_a_text_that_raises_fails_its_stream(monkeypatch):
    model = load_toy("toy-mixed")
    engine = Engine(model)

    def broken(ids):
        raise RuntimeError("no text today")

    monkeypatch.setattr(model, "detokenize_text", broken)
    talks = engine.open(make_plan(model, "abc", reply_letters=3))
    silent = engine.open(make_plan(model, "abc", reply_letters=0))
    engine.run()
    assert engine.failed(talks).code == "model_error"
    assert engine.finished(silent).reason == "stop"
    engine.check_is_empty()


@pytest.mark.parametrize("name", INNER)
def test_the_end_of_the_engine_ends_all_streams(name):
    model = load_toy(name)
    engine = Engine(model, replace(CONFIG, max_streams=2))
    ids = [engine.open(make_plan(model, TEXTS[1]), seed=n) for n in range(4)]
    for _ in range(5):
        engine.step()
    ids.append(engine.open(make_plan(model, "late")))
    engine.loop.end_all("told to")
    engine.check_each_ended_once(ids)
    for stream_id in ids:
        assert engine.failed(stream_id) == StreamFailed(
            stream_id=stream_id, code="engine_stopped", message="told to"
        )
    stats = engine.loop.stats
    assert (stats.is_alive, stats.is_ready, stats.failure) == (False, False, "told to")
