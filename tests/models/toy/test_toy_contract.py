"""What every toy must keep: the shapes and ranges of its spec, purity, independence of rows."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.base import Advance, PromptPlan, SpeechModel, TextFeed
from models.errors import PlanError
from models.spec import OptionValue, PlanRequest
from models.toy.catalogue import TOYS
from tests.models.toy.reference import FullAttention, Spoken, Stream, speak

MODELS: dict[str, SpeechModel] = {name: load() for name, (_, load) in TOYS.items()}
each_model = pytest.mark.parametrize("name", MODELS)


def make_plan(name: str, text: str = "hello", **options: OptionValue) -> PromptPlan:
    audio = np.sin(np.arange(8000) / 9).astype(np.float32)
    has_audio = MODELS[name].spec.takes_audio
    return MODELS[name].plan(
        PlanRequest(
            text=text,
            options=options,
            audio=audio if has_audio else None,
            audio_rate_hz=16_000 if has_audio else None,
        )
    )


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


# The spec.


@each_model
def test_phases_allow_ids_of_their_columns_only(name: str):
    spec = MODELS[name].spec
    for phase in spec.phases:
        for column, rule in zip(spec.columns, phase.columns, strict=True):
            for low, high in rule.allowed:
                assert column.ids[0] <= low < high <= column.ids[1]
            if rule.fill == "forced":
                assert rule.forced_id is not None
                in_range = column.ids[0] <= rule.forced_id < column.ids[1]
                assert in_range or rule.forced_id == column.pad_id
            else:
                assert rule.forced_id is None


@each_model
def test_depth_columns_are_those_of_the_depth_model(name: str):
    spec = MODELS[name].spec
    named = set() if spec.depth is None else set(spec.depth.columns)
    for phase in spec.phases:
        filled = {
            column.name
            for column, rule in zip(spec.columns, phase.columns, strict=True)
            if rule.fill == "depth"
        }
        assert filled in (set(), named)
        if filled and spec.depth is not None:
            first = spec.column_idx(spec.depth.first_column)
            assert phase.columns[first].fill == "sampled"


def test_the_toys_together_use_every_part_of_the_contract():
    specs = [model.spec for model in MODELS.values()]
    fills = {c.fill for spec in specs for phase in spec.phases for c in phase.columns}
    assert fills == {"sampled", "depth", "forced", "derived"}
    assert any(spec.frame.rows_per_frame == 7 for spec in specs)
    assert any(column.delay_rows for spec in specs for column in spec.columns)
    guidances = {(s.guidance.companion, s.guidance.entry) for s in specs if s.guidance}
    assert guidances == {("own_rows", "start"), ("zero_rows", "phase")}
    assert {bool(spec.text_capacity) for spec in specs} == {True, False}
    assert {spec.takes_audio for spec in specs} == {True, False}
    assert {spec.gives_text for spec in specs} == {True, False}
    assert {bool(spec.codec.lookahead_frames) for spec in specs} == {True, False}
    assert {bool(spec.codec.left_context_frames) for spec in specs} == {True, False}
    assert {bool(spec.codec.state) for spec in specs} == {True, False}
    assert {dtype.dtype for spec in specs for dtype in spec.codec.state} == {"float32", "int64"}


# Plans.


@each_model
def test_a_plan_has_the_shapes_of_the_spec(name: str):
    spec, plan = MODELS[name].spec, make_plan(name)
    assert plan.ids.dtype == torch.int64
    assert plan.ids.shape[1] == spec.n_columns
    assert plan.ids.shape[0] >= 1
    assert plan.state.shape == (spec.state_size,)
    assert plan.state.dtype == torch.int64
    assert 0 <= int(plan.state[0]) < len(spec.phases)
    assert set(plan.codec_state) <= {part.name for part in spec.codec.state}
    if plan.companion is not None:
        assert plan.companion.ids.shape[1] == spec.n_columns
    for column, ids in zip(spec.columns, plan.ids.T, strict=True):
        in_range = (ids >= column.ids[0]) & (ids < column.ids[1])
        assert bool((in_range | (ids == column.pad_id)).all())


@each_model
def test_prompt_and_longest_answer_fit_the_positions(name: str):
    spec = MODELS[name].spec
    text = "x" * 500
    plan = make_plan(name, text, frames=1_000_000)
    delay = max(column.delay_rows for column in spec.columns)
    n_rows = len(plan.ids) + plan.max_frames * spec.frame.rows_per_frame + delay
    assert n_rows <= spec.backbone.max_positions


@each_model
def test_the_cap_follows_the_seconds_asked_for(name: str):
    model = MODELS[name]
    audio = np.ones(1600, dtype=np.float32) if model.spec.takes_audio else None
    request = PlanRequest(text="x", max_seconds=2.0, audio=audio, audio_rate_hz=16_000)
    seconds = model.plan(request).max_frames * model.spec.frame.frame_s
    assert 2.0 <= seconds < 2.0 + model.spec.frame.frame_s


@each_model
@pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
def test_empty_text_is_a_named_error(name: str, text: str):
    if MODELS[name].spec.takes_audio:
        assert len(make_plan(name, text).ids) > 0  # the audio is enough
        return
    with pytest.raises(PlanError) as caught:
        make_plan(name, text)
    assert (caught.value.code, caught.value.param) == ("empty_text", "text")


@each_model
def test_text_that_does_not_fit_is_a_named_error(name: str):
    with pytest.raises(PlanError) as caught:
        make_plan(name, "x" * 20_000)
    assert caught.value.code == "text_too_long"


@each_model
@pytest.mark.parametrize("text", ["a|b", "\ud800", "\x00", "🙂" * 20, "שלום", "e\u0301"])
def test_odd_text_is_spoken(name: str, text: str):
    assert speak(MODELS[name], make_plan(name, text, frames=2)).is_finished


@each_model
@pytest.mark.parametrize(
    ("fields_", "code"),
    [
        ({"options": {"frame": 3}}, "unknown_option"),
        ({"options": {"frames": "3"}}, "invalid_type"),
        ({"options": {"frames": -3}}, "invalid_value"),
    ],
)
def test_bad_options_are_refused_by_the_plan(name: str, fields_: dict, code: str):
    audio = np.ones(1600, dtype=np.float32) if MODELS[name].spec.takes_audio else None
    with pytest.raises(PlanError) as caught:
        MODELS[name].plan(PlanRequest(text="x", audio=audio, audio_rate_hz=16_000, **fields_))
    assert caught.value.code == code


@each_model
def test_unknown_voices_and_languages_are_refused(name: str):
    model = MODELS[name]
    audio = np.ones(1600, dtype=np.float32) if model.spec.takes_audio else None
    with pytest.raises(PlanError) as caught:
        model.plan(PlanRequest(text="x", voice="nobody", audio=audio, audio_rate_hz=16_000))
    assert caught.value.code == "unknown_voice"
    with pytest.raises(PlanError) as caught:
        model.plan(PlanRequest(text="x", language="xx", audio=audio, audio_rate_hz=16_000))
    assert caught.value.code == "unsupported_language"


# Speech.


@each_model
@pytest.mark.parametrize("n_frames", [0, 1, 2, 9])
def test_a_stream_gives_the_frames_that_were_asked_for(name: str, n_frames: int):
    spec = MODELS[name].spec
    spoken = speak(MODELS[name], make_plan(name, frames=n_frames))
    assert spoken.is_finished
    assert len(spoken.frames) == n_frames
    assert all(len(frame) == spec.frame.n_codebooks for frame in spoken.frames)


@each_model
def test_rows_hold_ids_of_their_columns(name: str):
    spec = MODELS[name].spec
    for row in speak(MODELS[name], make_plan(name)).rows:
        for column, id_ in zip(spec.columns, row, strict=True):
            assert column.ids[0] <= id_ < column.ids[1] or id_ == column.pad_id


@each_model
def test_text_comes_from_phases_that_feed_text(name: str):
    model = MODELS[name]
    spoken = speak(model, make_plan(name))
    assert bool(spoken.text_ids) == model.spec.gives_text
    text = model.detokenize_text(spoken.text_ids)
    assert len(text) == len(spoken.text_ids)
    assert text == "" or text.isalpha()


def fingerprint(spoken: Spoken) -> tuple:
    return spoken.rows, spoken.frames, spoken.text_ids


@pytest.mark.parametrize("name", [name for name in MODELS if name != "toy-tone"])
def test_seed_and_text_decide_the_ids(name: str):
    model = MODELS[name]
    take = fingerprint(speak(model, make_plan(name, "hello", frames=9), seed=1))
    assert fingerprint(speak(model, make_plan(name, "hello", frames=9), seed=1)) == take
    assert fingerprint(speak(model, make_plan(name, "hello", frames=9), seed=2)) != take
    if not model.spec.takes_audio:
        assert fingerprint(speak(model, make_plan(name, "hullo", frames=9), seed=1)) != take


@pytest.mark.parametrize("name", [name for name in MODELS if name != "toy-tone"])
def test_two_loads_have_the_same_weights_and_leave_the_global_generator_alone(name: str):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = TOYS[name][1]()
    assert torch.equal(torch.rand(3), expected)
    x = torch.randn(4, MODELS[name].spec.backbone.hidden)
    for ours, theirs in zip(MODELS[name].heads(x), again.heads(x), strict=True):
        assert torch.equal(ours, theirs)


@each_model
def test_heads_give_logits_of_the_sampled_columns(name: str):
    spec = MODELS[name].spec
    logits = MODELS[name].heads(torch.randn(3, spec.backbone.hidden))
    sizes = [spec.columns[idx].n_ids for idx in spec.backbone_columns]
    assert [tuple(part.shape) for part in logits] == [(3, size) for size in sizes]


@each_model
def test_every_id_of_every_column_has_a_finite_embedding(name: str):
    spec = MODELS[name].spec
    for idx, column in enumerate(spec.columns):
        ids = torch.tensor([[c.pad_id for c in spec.columns]]).repeat(column.n_ids + 1, 1)
        ids[1:, idx] = torch.arange(*column.ids)
        x = MODELS[name].embed(ids, torch.full((len(ids),), -1))
        assert x.shape == (len(ids), spec.backbone.hidden)
        assert bool(x.isfinite().all())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "toy-tone"])
def test_every_prompt_row_counts(name: str):
    """An engine that mixed up KV pages must not get the same ids."""
    model, plan = MODELS[name], make_plan(name, "hello there")
    before = prompt_logits(model, plan.ids)
    for row in range(len(plan.ids)):
        changed = plan.ids.clone()
        changed[row, 0] = 50 if int(plan.ids[row, 0]) != 50 else 51
        after = prompt_logits(model, changed)
        moved = [
            (a.softmax(-1) - b.softmax(-1)).abs().sum() for a, b in zip(before, after, strict=True)
        ]
        assert sum(moved) > 0.01


def prompt_logits(model: SpeechModel, ids: Tensor) -> list[Tensor]:
    x = model.embed(ids, torch.full((len(ids),), -1))
    return model.heads(model.backbone(x, torch.arange(len(ids)), FullAttention())[-1:])


@each_model
def test_a_prompt_in_pieces_equals_the_prompt_at_once(name: str):
    model, plan = MODELS[name], make_plan(name)
    x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
    positions = torch.arange(len(x))
    whole = model.backbone(x, positions, FullAttention())
    attention = FullAttention()
    parts = [model.backbone(x[:1], positions[:1], attention)]
    if len(x) > 1:
        parts.append(model.backbone(x[1:], positions[1:], attention))
    # 1e-5: float32 sums of other lengths.
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-5)


# Purity, and rows of a batch on their own.


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


@each_model
def test_text_is_given_back_only_in_whole_characters(name: str):
    model = MODELS[name]
    if name == "toy-tone":
        assert model.detokenize_text([5]) == ""
        return
    ids = [3 + byte for byte in "aé🙂b".encode()]
    texts = [model.detokenize_text(ids[:n]) for n in range(len(ids) + 1)]
    assert texts == ["", "a", "a", "aé", "aé", "aé", "aé", "aé🙂", "aé🙂b"]
