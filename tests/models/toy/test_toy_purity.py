"""No toy changes its arguments, and no row of a batch changes another."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.base import Advance, PromptPlan, TextFeed
from models.spec import PlanRequest
from tests.models.toy.all_toys import MODELS, each_model, make_plan
from tests.models.toy.reference import Stream


def full_feed(name: str, n_streams: int, n_ids: int = 4) -> TextFeed:
    capacity = MODELS[name].spec.text_capacity
    n_ids = min(n_ids, capacity)
    return TextFeed(
        ids=torch.randint(3, 250, (n_streams, capacity)),
        n_ids=torch.full((n_streams,), n_ids),
        is_final=torch.ones(n_streams, dtype=torch.bool),
    )


def copies(value: object) -> object:
    """A deep copy of tensors in lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [copies(part) for part in value]
    if isinstance(value, dict):
        return {key: copies(part) for key, part in value.items()}
    if isinstance(value, TextFeed | PromptPlan | Advance):
        return {field.name: copies(getattr(value, field.name)) for field in fields(value)}
    return value


def is_same(value: object, other: object) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        # NaN of an ordered fault is no change.
        return value.shape == other.shape and bool(
            torch.equal(value.nan_to_num(), other.nan_to_num())
        )
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(is_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(is_same(value[k], other[k]) for k in value)
    return value == other


def assert_pure(call: Callable[..., object], *args: object) -> object:
    """Call twice; arguments must stay as they were and the answers must agree."""
    before = copies(list(args))
    first = copies(call(*args))
    assert is_same(copies(list(args)), before), "an argument was changed"
    assert is_same(copies(call(*args)), first), "two calls differ"
    return first


@cache
def visited(name: str, n_frames: int = 3) -> tuple[Tensor, Tensor]:
    """States and drawn ids of a whole stream: real ones, in every phase that it passes."""
    stream = Stream(MODELS[name], make_plan(name, frames=n_frames))
    states, drawn = [], []
    while True:
        state = stream.state
        is_going = stream.step()
        states.append(state)
        drawn.append(torch.tensor([stream.spoken.rows[-1]]))
        if not is_going:
            return torch.cat(states), torch.cat(drawn)


@each_model
def test_advance_and_constrain_are_pure(name: str):
    model = MODELS[name]
    states, drawn = visited(name)
    feed = full_feed(name, len(states))
    assert_pure(model.advance, states, drawn, feed)
    logits = model.heads(torch.randn(len(states), model.spec.backbone.hidden))
    assert_pure(model.constrain, states, logits, feed)


@each_model
def test_embed_decode_and_plan_are_pure(name: str):
    model, plan = MODELS[name], make_plan(name)
    assert_pure(model.embed, plan.ids, torch.full((len(plan.ids),), -1))
    audio = np.ones(1600, dtype=np.float32)
    request = PlanRequest(text="abc", audio=audio, audio_rate_hz=16_000)
    assert_pure(model.plan, request)
    assert bool((audio == 1).all())
    codec, frame = model.spec.codec, model.spec.frame
    frames = torch.ones(2, codec.left_context_frames + codec.chunk_frames[-1], frame.n_codebooks)
    state = {
        part.name: torch.ones(2, *part.shape, dtype=getattr(torch, part.dtype))
        for part in codec.state
    }
    if name == "toy-faulty":
        state["frames_left"] = torch.zeros(2, 1, dtype=torch.int64)
    flags = (torch.tensor([True, False]), torch.tensor([False, True]))
    n_valid = torch.tensor([codec.chunk_frames[-1], 1])
    before = copies(state)
    first = model.decode(frames.long(), n_valid, state, *flags)
    second = model.decode(frames.long(), n_valid, state, *flags)
    assert is_same(copies(state), before)
    assert torch.equal(first.pcm, second.pcm)
    assert is_same(copies(first.state), copies(second.state))
    assert {key: (tuple(v.shape[1:]), v.dtype) for key, v in first.state.items()} == {
        part.name: (part.shape, getattr(torch, part.dtype)) for part in codec.state
    }


@each_model
def test_advance_gives_the_types_of_the_contract(name: str):
    model = MODELS[name]
    states, drawn = visited(name)
    out = model.advance(states, drawn, full_feed(name, len(states)))
    n = len(states)
    spec = model.spec
    shapes = {
        "rows": (n, spec.n_columns),
        "state": (n, spec.state_size),
        "frames": (n, spec.frame.n_codebooks),
        "text_ids": (n,),
    }
    for field, shape in shapes.items():
        value = getattr(out, field)
        assert (tuple(value.shape), value.dtype) == (shape, torch.int64)
    for field in ("emits", "is_finished", "is_starved"):
        value = getattr(out, field)
        assert (tuple(value.shape), value.dtype) == ((n,), torch.bool)


@each_model
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_rows_of_a_batch_do_not_touch_each_other(name: str, seed: int):
    model = MODELS[name]
    states, drawn = visited(name)
    order = torch.randperm(len(states), generator=torch.Generator().manual_seed(seed))
    feed = full_feed(name, len(states))
    logits = model.heads(torch.randn(len(states), model.spec.backbone.hidden))
    shuffled = TextFeed(ids=feed.ids[order], n_ids=feed.n_ids[order], is_final=feed.is_final[order])
    out = model.advance(states, drawn, feed)
    mixed = model.advance(states[order], drawn[order], shuffled)
    for field in fields(Advance):
        assert torch.equal(getattr(mixed, field.name), getattr(out, field.name)[order])
    kept = model.constrain(states, logits, feed)
    kept_mixed = model.constrain(states[order], [part[order] for part in logits], shuffled)
    assert all(torch.equal(a[order], b) for a, b in zip(kept, kept_mixed, strict=True))


@each_model
def test_constrain_only_forbids_and_always_leaves_something(name: str):
    model = MODELS[name]
    states, _ = visited(name)
    logits = model.heads(torch.randn(len(states), model.spec.backbone.hidden))
    kept = model.constrain(states, logits, full_feed(name, len(states)))
    for before, after in zip(logits, kept, strict=True):
        is_kept = after > -torch.inf
        assert torch.equal(before[is_kept], after[is_kept])
        assert bool(is_kept.any(dim=1).all())
