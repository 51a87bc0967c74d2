"""Requests to prompts, and every reason to refuse one."""

from __future__ import annotations

import pytest
import torch

from models.errors import PlanError
from models.pico.config import MAX_UNITS
from models.pico.front import text_to_units
from models.pico.units import BOA_ID, BOS_ID
from models.spec import PlanRequest
from tests.models.pico.harness import tiny_model

MODEL, _ = tiny_model()


def test_the_prompt_is_the_units_between_bos_and_boa() -> None:
    plan = MODEL.plan(PlanRequest(text="Hello there."))
    units = text_to_units("Hello there.").ids
    assert plan.ids.shape == (len(units) + 2, MODEL.spec.n_columns)
    assert plan.ids[:, 1].tolist() == [BOS_ID, *units, BOA_ID]
    assert plan.state.shape == (MODEL.spec.state_size,)
    assert plan.ids.dtype == plan.state.dtype == torch.int64
    assert len(units) < plan.max_frames < 6 * len(units) + 60


def test_options_reach_the_plan() -> None:
    options = {"speed": 1.25, "temperature": 0.3, "timing_temperature": 0}
    plan = MODEL.plan(PlanRequest(text="Hi.", voice="joe", language="en-US", options=options))
    assert plan.codec_state["clock"].tolist() == [0, 1250]
    temperatures = {name: params.temperature for name, params in plan.sampling.items()}
    assert temperatures == {"advance": 0, "code0": 0.3, "code1": 0.3}


def test_without_options_the_trained_defaults_hold() -> None:
    plan = MODEL.plan(PlanRequest(text="Hi."))
    assert plan.sampling == {}
    assert plan.codec_state["clock"].tolist() == [0, 1000]


def test_max_seconds_counts_heard_seconds() -> None:
    step_s = 1024 / 22050
    plan = MODEL.plan(PlanRequest(text="Hello there.", max_seconds=10.5 * step_s))
    assert plan.max_frames == 10
    fast = PlanRequest(text="Hello there.", max_seconds=10.5 * step_s, options={"speed": 2.0})
    assert MODEL.plan(fast).max_frames == 21


@pytest.mark.parametrize(
    ("request_fields", "code", "param"),
    [
        ({"text": ""}, "empty_text", "text"),
        ({"text": " \n\t "}, "empty_text", "text"),
        ({"text": "— … !? ---"}, "empty_text", "text"),
        ({"text": "🙂👍"}, "empty_text", "text"),
        ({"text": "Привет, как дела?"}, "unsupported_script", "text"),
        ({"text": "ok\0 fine"}, "invalid_text", "text"),
        ({"text": "ok\ud800 fine"}, "invalid_text", "text"),
        ({"text": "and then we went on " * 40}, "prompt_too_long", "text"),
        ({"text": "word " * 20_000}, "prompt_too_long", "text"),
        ({"text": "Hi.", "voice": "jo"}, "unknown_voice", "voice"),
        ({"text": "Hi.", "language": "de"}, "unsupported_language", "language"),
        ({"text": "Hi.", "options": {"speed": 3.0}}, "invalid_value", "speed"),
        ({"text": "Hi.", "options": {"speed": "fast"}}, "invalid_type", "speed"),
        ({"text": "Hi.", "options": {"pitch": 1.0}}, "unknown_option", "pitch"),
    ],
)
def test_refusals_name_the_field(request_fields: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(PlanError) as caught:
        MODEL.plan(PlanRequest(**request_fields))
    assert (caught.value.code, caught.value.param) == (code, param)


def test_the_script_and_the_limit_are_named() -> None:
    with pytest.raises(PlanError, match="Cyrillic"):
        MODEL.plan(PlanRequest(text="Привет"))
    with pytest.raises(PlanError, match=f"{MAX_UNITS}.*sentences"):
        MODEL.plan(PlanRequest(text="and then we went on " * 40))


def test_english_beside_another_script_is_spoken() -> None:
    plan = MODEL.plan(PlanRequest(text="שלום עולם and hello"))
    assert plan.ids[1:-1, 1].tolist() == list(text_to_units("and hello").ids)


def test_streamed_text_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        MODEL.extend(MODEL.plan(PlanRequest(text="Hi.")), "more", is_final=True)
    assert caught.value.code == "text_not_streamed"
