"""What every toy must keep: the shapes and ranges of its spec, its plans, its lengths, its ids."""

import numpy as np
import pytest
import torch
from torch import Tensor

from models.base import SpeechModel
from models.errors import PlanError
from models.spec import PlanRequest
from models.toy.catalogue import TOYS
from tests.models.toy.all_toys import MODELS, each_model, make_plan
from tests.models.toy.reference import FullAttention, Spoken, speak

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


@each_model
def test_text_is_given_back_only_in_whole_characters(name: str):
    model = MODELS[name]
    if name == "toy-tone":
        assert model.detokenize_text([5]) == ""
        return
    ids = [3 + byte for byte in "aé🙂b".encode()]
    texts = [model.detokenize_text(ids[:n]) for n in range(len(ids) + 1)]
    assert texts == ["", "a", "a", "aé", "aé", "aé", "aé", "aé🙂", "aé🙂b"]
