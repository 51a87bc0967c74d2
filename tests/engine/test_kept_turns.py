"""A turn that goes on from an earlier one runs what is new alone, and says the same.

Regression of the reference systems: each turn of a conversation ran all of it again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan, SpeechModel
from tests.engine.harness import CONFIG, ONE_SLOT, Engine, load_toy, make_plan

PAGE = CONFIG.page_size
NEW = torch.arange(40, 53).unsqueeze(1)
"""Rows of what the user says next."""


@pytest.fixture
def model() -> SpeechModel:
    """One column, seven rows a frame; a voice of 40 rows is shared anyway."""
    toy = load_toy("toy-interleaved")
    toy.spec = replace(toy.spec, keeps_turns=True)
    return toy


def turn(model: SpeechModel, history: np.ndarray | None = None, *, frames: int = 12) -> PromptPlan:
    """A turn that may be gone on from; after another one, with new rows behind it."""
    plan = replace(make_plan(model, "hello", is_greedy=True, frames=frames), prefix_key="talk")
    if history is not None:
        plan = replace(plan, ids=torch.cat([torch.from_numpy(history), NEW]))
    return replace(plan, prefix_rows=len(plan.ids), max_rows=7 * frames + 1)


def first_turn(engine: Engine, model: SpeechModel) -> np.ndarray:
    """Rows of a conversation after its first answer."""
    stream_id = engine.open(turn(model))
    engine.run()
    rows = engine.finished(stream_id).rows
    assert rows is not None
    return rows


def count_prefilled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Prompt rows of each later prefill call."""
    counts: list[int] = []
    runner = engine.loop._device.runner
    prefill = runner.prefill

    def counted(batch):
        counts.append(len(batch.ids))
        return prefill(batch)

    monkeypatch.setattr(runner, "prefill", counted)
    return counts


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, overlap="on")], ids=["plain", "overlap"]
)
def test_a_second_turn_prefills_only_what_is_new(model, monkeypatch, config: EngineConfig):
    engine = Engine(model, config)
    history = first_turn(engine, model)
    n_prompt = len(turn(model).ids)
    assert len(history) == n_prompt + 7 * 12, "the end mark was never fed"
    assert (history[:n_prompt] == turn(model).ids.numpy()).all()
    counts = count_prefilled(engine, monkeypatch)
    second = turn(model, history)
    stream_id = engine.open(second)
    engine.run()
    n_kept = len(history) // PAGE * PAGE
    assert sum(counts) == len(second.ids) - n_kept
    assert sum(counts) < len(NEW) + PAGE
    fresh = Engine(model, config)
    (expected,) = fresh.speak([second], seeds=[0])
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(engine.pcm(stream_id), expected, rtol=0, atol=1e-5)
    rows, whole = engine.finished(stream_id).rows, fresh.finished(1).rows
    assert rows is not None
    assert np.array_equal(rows, whole), "every id that was drawn"
    engine.check_is_empty()


def test_a_third_turn_goes_on_from_the_second(model, monkeypatch):
    engine = Engine(model)
    history = first_turn(engine, model)
    engine.open(turn(model, history))
    engine.run()
    counts = count_prefilled(engine, monkeypatch)
    longer = engine.finished(2).rows
    assert longer is not None
    assert len(longer) > len(history)
    engine.open(turn(model, longer))
    engine.run()
    assert sum(counts) < len(NEW) + PAGE


def test_another_answer_in_the_history_is_not_taken_for_this_one(model, monkeypatch):
    """One id differs: from its page on, everything is run again."""
    engine = Engine(model)
    history = first_turn(engine, model)
    n_prompt, at = len(turn(model).ids), len(turn(model).ids) + 20
    history[at] = history[at] + 1 if history[at] % 16 else history[at] - 1
    counts = count_prefilled(engine, monkeypatch)
    second = turn(model, history)
    stream_id = engine.open(second)
    engine.run()
    assert sum(counts) == len(second.ids) - at // PAGE * PAGE
    assert at // PAGE * PAGE >= n_prompt, "part of the answer was found"
    (expected,) = Engine(model).speak([second], seeds=[0])
    np.testing.assert_allclose(engine.pcm(stream_id), expected, rtol=0, atol=1e-5)


def test_two_conversations_at_once_keep_their_own(model):
    engine = Engine(model)
    ids = [engine.open(turn(model, frames=n), seed=n) for n in (6, 9, 12)]
    engine.run()
    histories = [engine.finished(one).rows for one in ids]
    seconds = [turn(model, rows, frames=5 + n) for n, rows in enumerate(histories)]
    got = engine.speak(seconds, seeds=[1, 2, 3])
    for plan, pcm, seed in zip(seconds, got, (1, 2, 3), strict=True):
        (alone,) = Engine(model).speak([plan], seeds=[seed])
        np.testing.assert_allclose(pcm, alone, rtol=0, atol=1e-5)
    engine.check_is_empty()


def test_pages_of_turns_that_nobody_goes_on_from_make_room(model):
    """The cache holds what is not needed; a stream that needs the room has it."""
    n_pages = 1 + 3 * (len(turn(model).ids) + 7 * 12) // PAGE
    engine = Engine(model, replace(CONFIG, n_pages=n_pages))
    for seed in range(6):
        plan = turn(model)
        plan = replace(plan, ids=plan.ids + seed % 2)
        stream_id = engine.open(replace(plan, prefix_key=f"talk {seed}"), seed=seed)
        engine.run()
        assert engine.finished(stream_id).rows is not None
    assert 0 < engine.loop.n_cached_pages < n_pages
    engine.check_is_empty()


def test_a_stream_that_gave_way_keeps_its_turn_too(model):
    engine = Engine(model, ONE_SLOT)
    stream_id = engine.open(turn(model), is_paced=False)
    engine.run_with_breaks((2, 20), replace(turn(model), max_frames=1))
    rows = engine.finished(stream_id).rows
    assert rows is not None
    assert np.array_equal(rows, first_turn(Engine(model), model))


def test_an_aborted_stream_and_other_models_give_no_rows(model):
    engine = Engine(model)
    stream_id = engine.open(turn(model))
    engine.step()
    engine.abort(stream_id)
    engine.run()
    assert engine.finished(stream_id).rows is None
    model.spec = replace(model.spec, keeps_turns=False)
    engine = Engine(model)
    stream_id = engine.open(turn(model))
    engine.run()
    assert engine.finished(stream_id).rows is None
