"""The text model on our own engine: batched, stopped, cut, cancelled, its prompts shared."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from engine.types import AudioChunk, TextDelta
from models.smollm.config import END_ID
from models.smollm.model import SmolModel
from models.spec import Message, OptionValue, PlanRequest
from tests.engine.harness import Engine
from tests.models.smollm.tiny import tiny_model

SYSTEM = Message(role="system", text="You are a helpful voice assistant. Give short answers.")
TEXTS = ("Hello", "A longer question, is it not?", "no", "three words here")


@cache
def model() -> SmolModel:
    return tiny_model()


def request(text: str, **options: OptionValue) -> PlanRequest:
    return PlanRequest(text=text, messages=(SYSTEM,), options={"max_tokens": 24, **options})


def reply(text: str, seed: int, **options: OptionValue) -> str:
    engine = Engine(model())
    stream_id = engine.open(model().plan(request(text, **options)), seed=seed)
    engine.run()
    return engine.text(stream_id)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_in_a_batch_is_the_reply_alone(temperature: float):
    engine = Engine(model())
    ids = []
    for seed, text in enumerate(TEXTS):
        plan = model().plan(request(text, temperature=temperature))
        ids.append(engine.open(plan, seed=seed))
        # Streams join and leave at different steps.
        engine.step()
    engine.run()
    alone = [reply(text, seed, temperature=temperature) for seed, text in enumerate(TEXTS)]
    assert [engine.text(stream_id) for stream_id in ids] == alone
    assert len(set(alone)) == len(TEXTS)
    engine.check_is_empty()
    engine.check_each_ended_once(ids)


def test_a_seed_repeats_and_another_differs():
    replies = [reply("Hello", seed, temperature=1.0) for seed in (1, 1, 2)]
    assert replies[0] == replies[1] != replies[2]


def test_a_reply_that_reaches_max_tokens_ends_by_length_and_gives_no_audio():
    engine = Engine(model())
    stream_id = engine.open(model().plan(request("Hello", max_tokens=5)))
    engine.run()
    assert engine.finished(stream_id).reason == "length"
    events = engine.of(stream_id)
    assert not [event for event in events if isinstance(event, AudioChunk)]
    assert 0 < len([event for event in events if isinstance(event, TextDelta)]) <= 5


@pytest.mark.parametrize("end_id", [0, END_ID])
def test_an_end_mark_stops_the_reply_and_is_no_text(end_id: int):
    ending = tiny_model()
    # Row `end_id` of the tied table becomes the largest of all logits after a few rows.
    calls = iter(range(1000))
    heads = ending.heads

    def heads_that_end(hidden):  # type: ignore[no-untyped-def]
        logits = heads(hidden)
        if next(calls) == 3:
            logits[0][:, end_id] = 1e4
        return logits

    ending.heads = heads_that_end  # type: ignore[method-assign]
    engine = Engine(ending)
    stream_id = engine.open(ending.plan(request("Hello")))
    engine.run()
    assert engine.finished(stream_id).reason == "stop"
    assert engine.text(stream_id) == ending.detokenize_text(_greedy_ids(3))
    engine.check_is_empty()


def _greedy_ids(n_ids: int) -> list[int]:
    """The first ids of the reply, by the text that the engine gives for so many tokens."""
    return model().tokenizer.encode(reply("Hello", 0, max_tokens=n_ids))


def test_a_cancelled_reply_is_freed_and_says_no_more():
    engine = Engine(model())
    kept, cancelled = (engine.open(model().plan(request(text))) for text in TEXTS[:2])
    engine.run(until=lambda: bool(engine.text(cancelled)))
    engine.abort(cancelled)
    n_events = len(engine.of(cancelled))
    engine.step()
    assert engine.finished(cancelled).reason == "aborted"
    assert len(engine.of(cancelled)) == n_events + 1
    engine.run()
    assert engine.text(kept) == reply(TEXTS[0], 0)
    engine.check_is_empty()


def test_the_system_message_is_run_once_and_changes_no_reply():
    engine = Engine(model())
    first = engine.open(model().plan(request("Hello")))
    engine.run()
    n_cached = engine.loop.n_cached_pages
    assert n_cached > 0
    again = engine.open(model().plan(request("Hello")))
    engine.step()
    # Only what the full pages do not hold is run: under a page of rows.
    assert engine.text(again), "the first token comes with the first step"
    engine.run()
    assert engine.text(again) == engine.text(first)
    assert engine.loop.n_cached_pages == n_cached


def test_a_stream_is_never_planned_past_its_positions():
    plan = model().plan(request("Hello", max_tokens=24))
    engine = Engine(model())
    stream_id = engine.open(replace(plan, max_frames=100_000))
    engine.run()
    assert engine.finished(stream_id).reason in ("length", "stop")
    engine.check_is_empty()
