"""The model as the contract sees it: facts that agree with its functions."""

from __future__ import annotations

import torch

from models import registry
from models.spec import PlanRequest
from tests.engine.harness import check_giving_way
from tests.models.pico.harness import decode_chunks, no_feed, roll_out, tiny_model


def test_the_spec_agrees_with_the_functions() -> None:
    model, _ = tiny_model()
    spec, plan = model.spec, model.plan(PlanRequest(text="Hi."))
    x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
    assert x.shape == (len(plan.ids), spec.backbone.hidden)
    assert [column.name for column in spec.columns] == [
        *("advance", "unit-1", "unit+0", "unit+1", "unit+2", "unit+3", "stay", "code0", "code1")
    ]
    assert [column.delay_rows for column in spec.columns[-2:]] == [1, 2]
    out = model.advance(plan.state[None], torch.zeros(1, spec.n_columns, dtype=torch.int64), None)
    assert out.rows.shape == (1, spec.n_columns)
    assert out.state.shape == (1, spec.state_size)
    assert out.frames.shape == (1, spec.frame.n_codebooks)
    assert abs(spec.frame.frame_rate_hz - 21.533) < 1e-3
    assert spec.frame.samples_per_frame == 1024


def test_every_id_of_a_row_lies_in_its_column() -> None:
    model, _ = tiny_model()
    plan = model.plan(PlanRequest(text="Hello there, friend!"))
    state = plan.state[None]
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        logits = [
            torch.randn(1, model.spec.columns[idx].n_ids, generator=generator)
            for idx in model.spec.backbone_columns
        ]
        drawn = model.constrain(state, logits, no_feed(1))
        ids = torch.zeros(1, model.spec.n_columns, dtype=torch.int64)
        ids[0, list(model.spec.backbone_columns)] = torch.stack([d.argmax() for d in drawn])
        step = model.advance(state, ids, no_feed(1))
        for value, column in zip(step.rows[0].tolist(), model.spec.columns, strict=True):
            assert column.ids[0] <= value < column.ids[1] or value == column.pad_id
        state = step.state
        if step.is_finished[0]:
            return
    raise AssertionError("the grammar ends every text")


def test_text_to_audio_ends_by_itself_and_is_as_long_as_its_steps() -> None:
    model, _ = tiny_model()
    plan = model.plan(PlanRequest(text="Hello there."))
    take = roll_out(model, [plan], plan.max_frames)[0]
    assert take.is_finished
    assert take.advances.count(4) >= 1
    n_steps = take.advances.index(4)
    assert len(take.frames) == n_steps
    pcm = decode_chunks(model, [torch.stack(take.frames)], [[6, 4]])[0]
    assert len(pcm) == n_steps * 1024
    assert pcm.isfinite().all()


def test_streams_of_a_batch_speak_as_they_do_alone() -> None:
    model, _ = tiny_model(n_books=3)
    texts = ("Hello there.", "Yes!", "What time is it in New York today?")
    plans = [model.plan(PlanRequest(text=text)) for text in texts]
    for plan, together in zip(plans, roll_out(model, plans, 60), strict=True):
        alone = roll_out(model, [plan], 60)[0]
        assert torch.equal(torch.stack(alone.frames), torch.stack(together.frames))
        for one, other in zip(alone.logits, together.logits, strict=True):
            for a, b in zip(one, other, strict=True):
                # Matrix products of other sizes round in another order.
                torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_giving_way_and_coming_back_changes_nothing() -> None:
    model = registry.load("pico")
    plan = model.plan(PlanRequest(text="The quick brown fox jumps over the lazy dog."))
    check_giving_way(model, plan, n_frames=40)
