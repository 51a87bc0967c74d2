"""Faults come when ordered, to the stream that ordered them, and to nobody else."""

import pytest
import torch
from torch import Tensor

from models.base import SpeechModel
from models.spec import OptionValue, PlanRequest
from models.toy import delayed, mixed
from models.toy.faulty import FaultyModel, ToyFaultError
from tests.models.toy.reference import Stream, codec_state, decode_chunks, speak

INNER = delayed.load()
FAULTY = FaultyModel(INNER)


def request(**options: OptionValue) -> PlanRequest:
    return PlanRequest(text="hello", options=options)


def test_without_a_fault_it_is_the_inner_model():
    ours = speak(FAULTY, FAULTY.plan(request()))
    assert ours == speak(INNER, INNER.plan(request()))
    plan = FAULTY.plan(request())
    expected = torch.cat(decode_chunks(INNER, ours.codes, [4], INNER.plan(request())))
    assert torch.equal(torch.cat(decode_chunks(FAULTY, ours.codes, [4], plan)), expected)


def test_a_plan_fault_is_not_a_plan_error():
    with pytest.raises(ToyFaultError):
        FAULTY.plan(request(fault="plan"))


def logits_by_row(model: SpeechModel, options: dict[str, OptionValue], n_rows: int) -> list[Tensor]:
    stream = Stream(model, model.plan(request(**options)))
    logits = []
    for _ in range(n_rows):
        logits.append(torch.cat(model.heads(stream.hidden), dim=1))
        if bool(logits[-1].isnan().any()) or not stream.step():
            break
    return logits


@pytest.mark.parametrize("at", [1, 2, 4])
def test_nan_comes_with_the_ordered_row(at: int):
    logits = logits_by_row(FAULTY, {"fault": "nan", "fault_at": at}, 9)
    assert len(logits) == at + 1
    assert not any(bool(row.isnan().any()) for row in logits[:at])
    assert bool(logits[at].isnan().all())


@pytest.mark.parametrize("at", [1, 3])
def test_a_step_fault_raises_before_the_ordered_row(at: int):
    stream = Stream(FAULTY, FAULTY.plan(request(fault="step", fault_at=at)))
    assert all(stream.step() for _ in range(at - 1))
    with pytest.raises(ToyFaultError):
        stream.step()
    # Row `at` would be drawn from the row that could not be run.
    assert len(stream.spoken.rows) == at


def test_only_the_marked_stream_of_a_batch_is_struck():
    state = torch.stack([FAULTY.plan(request(fault=f, fault_at=1)).state for f in ("none", "nan")])
    ids = torch.tensor([[delayed.CODE_LOW, 0, 0, 0]] * 2)
    out = FAULTY.advance(state, ids, None)  # type: ignore[arg-type]  # it has no streamed text
    x = FAULTY.embed(out.rows, out.state[:, 0])
    assert bool(x[0].isfinite().all())
    assert bool(x[1].isnan().all())


@pytest.mark.parametrize(("at", "n_calls"), [(0, 0), (3, 0), (4, 1), (9, 2)])
def test_a_decode_fault_raises_in_the_chunk_of_the_ordered_frame(at: int, n_calls: int):
    plan = FAULTY.plan(request(fault="decode", fault_at=at))
    state = codec_state(FAULTY, plan)
    frames, n_valid = torch.ones(1, 4, 4, dtype=torch.int64), torch.tensor([4])
    no = torch.tensor([False])
    for _ in range(n_calls):
        state = FAULTY.decode(frames, n_valid, state, no, no).state
    with pytest.raises(ToyFaultError):
        FAULTY.decode(frames, n_valid, state, no, no)


def test_an_endless_stream_is_ended_by_its_cap_alone():
    plan = FAULTY.plan(
        PlanRequest(text="hello", options={"fault": "endless", "frames": 2}, max_seconds=0.3)
    )
    spoken = speak(FAULTY, plan, max_rows=2 * plan.max_frames)
    assert not spoken.is_finished
    assert len(spoken.frames) > plan.max_frames


def test_guidance_and_phases_have_twins_so_that_ids_and_state_stay_legal():
    model = FaultyModel(mixed.load())
    names = [phase.name for phase in model.spec.phases]
    assert names[:4] == ["text", "bridge", "audio", "drain"]
    assert names[4:8] == ["text-nan", "bridge-nan", "audio-nan", "drain-nan"]
    assert model.spec.guidance is not None
    assert model.spec.guidance.phases == ("audio", "audio-nan", "audio-step")
