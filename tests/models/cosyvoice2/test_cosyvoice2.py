"""CosyVoice 2: how prompts are made, and which voices there are."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.base import PromptPlan
from models.cosyvoice2.config import (
    IS_OPEN,
    N_CODES,
    N_WORDS,
    SPEECH,
    TEXT_CAPACITY,
    WORDS,
)
from models.cosyvoice2.model import CosyVoiceModel, load, read_spec
from models.errors import PlanError, WeightError
from models.spec import OptionValue, PlanRequest
from tests.models.cosyvoice2.tiny import (
    load_codes_as_sound,
    make_checkpoint,
    saved_voice,
)

HUM = (0.5 * np.sin(np.arange(48_000) / 20)).astype(np.float32)
N_HUM = 50
"""Speech tokens of two seconds."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("cosyvoice2"))


@pytest.fixture(scope="module")
def model(checkpoint) -> CosyVoiceModel:
    return load_codes_as_sound(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def request(text: str = "hello", *, is_text_final: bool = True, **options: OptionValue):
    return PlanRequest(
        text=text,
        audio=HUM,
        audio_rate_hz=24_000,
        options=options,
        is_text_final=is_text_final,
    )


def ids_of(model: CosyVoiceModel, text: str) -> list[int]:
    ids: list[int] = model.tokenizer.encode(text).ids
    return ids


def parts(model: CosyVoiceModel, plan: PromptPlan) -> tuple[list[int], list[int]]:
    """Text, and speech tokens behind the mark."""
    ids = plan.ids[:, 0].tolist()
    assert ids[0] == model.config.start_mark
    at = ids.index(model.config.speech_mark)
    return ids[1:at], [idx - model.config.first_code for idx in ids[at + 1 :]]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text="hi"), "missing_audio"),
        (PlanRequest(text="hi", options={"reference_text": "so"}), "invalid_reference"),
        (PlanRequest(text="hi", voice="tara"), "unknown_voice"),
        (replace(request(), voice="tara"), "unknown_voice"),
        (request(" "), "empty_text"),
        (replace(request(), language="klingon"), "unsupported_language"),
        (request("x" * 1400), "prompt_too_long"),
        (request("hi", instructions="x" * 4100), "prompt_too_long"),
        (request(is_text_final=False, reference_text="so"), "text_not_streamed"),
        (request(is_text_final=False, instructions="slowly"), "text_not_streamed"),
        (request("x" * (TEXT_CAPACITY + 1), is_text_final=False), "prompt_too_long"),
        (request(temperature=3.0), "invalid_value"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("request_", "at_fault"),
    [
        (request("hi", instructions="x" * 4100), "instructions"),
        (request("hi", reference_text="x" * 4100), "reference_text"),
        (request("x" * 1400, instructions="slowly"), "text"),
    ],
)
def test_what_is_too_long_in_a_prompt_is_named(model, request_, at_fault):
    with pytest.raises(PlanError, match="prompt has") as caught:
        model.plan(request_)
    assert (caught.value.code, caught.value.param) == ("prompt_too_long", at_fault)


def test_speech_of_the_recording_stands_behind_its_words_only(model):
    text, codes = parts(model, model.plan(request()))
    assert (text, codes) == (ids_of(model, "hello"), [])
    text, codes = parts(model, model.plan(request(reference_text=" so it hums ")))
    assert text == ids_of(model, "so it humshello")
    assert len(codes) == N_HUM
    slowly = model.plan(request(instructions="slowly", reference_text="so it hums"))
    text, codes = parts(model, slowly)
    assert text == ids_of(model, "slowly<|endofprompt|>hello")
    assert codes == []


def test_a_text_has_speech_of_two_to_twenty_times_its_length(model):
    plan = model.plan(request(reference_text="so it hums"))
    n_text = len(ids_of(model, "hello"))
    assert plan.max_frames == 20 * n_text
    assert plan.max_rows == plan.max_frames + 1
    logits = torch.zeros(2, model.config.n_drawn)
    state = plan.state.repeat(2, 1)
    state[:, 1] = torch.tensor([2 * n_text - 1, 2 * n_text])
    may_end = model.line.constrain(state, logits)[:, model.config.n_codes :].isfinite()
    assert may_end.tolist() == [[False] * 3, [True] * 3]
    assert model.plan(replace(request(), max_seconds=1.0)).max_frames == 25


def test_no_end_comes_before_the_text_is_over_or_too_early_for_it(model):
    """Of a text that streamed in, ten ids were fed beside the five of the prompt."""
    plan = model.plan(request("hello", is_text_final=False))
    state = plan.state.repeat(3, 1)
    state[:, N_CODES] = torch.tensor([1000, 29, 30])
    state[:, N_WORDS] = 10
    state[1:, IS_OPEN] = 0
    logits = torch.zeros(3, model.config.n_drawn)
    may_end = model.line.constrain(state, logits)[:, model.config.n_codes].isfinite()
    assert may_end.tolist() == [False, False, True]


def test_tokens_and_mel_frames_of_a_recording_end_together(model):
    """It is a little longer than fifty tokens: of mel frames there are not enough for one more."""
    longer = np.concatenate([HUM, HUM[:400]])
    _, codes = parts(model, model.plan(replace(request(reference_text="so"), audio=longer)))
    assert len(codes) == N_HUM


def test_a_streamed_text_begins_with_a_group_or_waits_for_one(model):
    whole = model.plan(request("hello there", is_text_final=False))
    assert whole.ids[1:, 0].tolist() == ids_of(model, "hello")
    assert whole.text_ids is not None
    assert whole.text_ids.tolist() == ids_of(model, " there")
    assert (int(whole.state[0]), whole.is_text_final) == (SPEECH, False)
    short = model.plan(request("hell", is_text_final=False))
    assert len(short.ids) == 1
    assert short.text_ids is not None
    assert len(short.text_ids) == 4
    assert int(short.state[0]) == WORDS
    limited = model.plan(replace(request("hello", is_text_final=False), max_seconds=2.0))
    assert limited.max_frames == 50
    assert limited.max_rows == 50 + TEXT_CAPACITY + 2
    assert whole.max_rows == whole.max_frames + TEXT_CAPACITY + 2 < 3000


def test_sounds_have_the_checkpoint_s_own_marks(model):
    text, _ = parts(model, model.plan(request("<laughter> so <sigh>")))
    marks = [model.tokenizer.token_to_id(name) for name in ("[laughter]", "[sigh]")]
    assert None not in marks
    assert [text[0], text[-1]] == marks
    more = model.extend(model.plan(request()), "<cough>", is_final=True)
    assert more.tolist() == [model.tokenizer.token_to_id("[cough]")]


def test_text_and_instructions_hold_no_marks(model):
    """What stands before such a mark would not be spoken, and what follows it would end nothing."""
    text, _ = parts(model, model.plan(request("so<|endofprompt|>it<|im_end|>hums <|x|>")))
    assert text == ids_of(model, "so it hums <|x|>")
    asked = request("hello", instructions="slowly<|endofprompt|>")
    assert parts(model, model.plan(asked))[0] == ids_of(model, "slowly<|endofprompt|>hello")
    more = model.extend(model.plan(request()), " <|endofprompt|>", is_final=True)
    assert more.tolist() == []


def test_a_recording_is_heard_once_and_voices_differ(checkpoint):
    model = load(checkpoint)
    first, again = model.plan(request()), model.plan(request())
    other = model.plan(replace(request(), audio=-HUM[::-1] + 0.1 * np.sign(HUM)))
    state = {one.name: one for one in model.spec.codec.state}
    assert all(tensor.shape == state[name].shape for name, tensor in first.codec_state.items())
    assert all(first.codec_state[name] is tensor for name, tensor in again.codec_state.items())
    assert not torch.equal(first.codec_state["speaker"], other.codec_state["speaker"])


def test_voices_of_the_folder_are_offered_by_name(folder):
    lone = {"embedding": torch.full((1, 192), 0.5)}
    four = torch.arange(4, dtype=torch.int32).unsqueeze(0)
    mia = saved_voice(4, flow_prompt_speech_token=four)
    torch.save({"mia": mia, "leo": lone}, folder / "spk2info.pt")
    assert read_spec(folder).voices == ("mia", "leo")
    model = load_codes_as_sound(folder)
    text, codes = parts(model, model.plan(PlanRequest(text="hello", voice="mia")))
    assert (text, codes) == ([104, 105, *ids_of(model, "hello")], [0, 1, 2, 3])
    text, codes = parts(model, model.plan(PlanRequest(text="hello", voice="leo")))
    assert (text, codes) == (ids_of(model, "hello"), [])
    first = parts(model, model.plan(PlanRequest(text="hello")))
    assert first[1] == [0, 1, 2, 3], "the first voice, where none is named"
    streamed = model.plan(PlanRequest(text="hello", voice="mia", is_text_final=False))
    assert streamed.ids[1:, 0].tolist() == ids_of(model, "hello"), "its words have no place there"


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ([1, 2], "no voices by name"),
        ({"mia": torch.ones(3)}, "no voices by name"),
        ({"mia": {}}, r"voice 'mia' has no embedding"),
        ({"mia": {"embedding": torch.ones(1, 3)}}, r"embedding is \(1, 3\), expected \(1, 192\)"),
        ({"mia": saved_voice(prompt_speech_feat=torch.zeros(1, 7, 80))}, r"prompt_speech_feat is"),
        ({"mia": saved_voice(flow_prompt_speech_token=torch.tensor([[9000]]))}, "none of 6561"),
        ({"mia": saved_voice(prompt_text=torch.ones(2))}, r"prompt_text is \(2,\)"),
    ],
)
def test_voices_of_another_form_are_named(folder, held, shown):
    torch.save(held, folder / "spk2info.pt")
    with pytest.raises(WeightError, match=shown):
        read_spec(folder)


def test_damaged_voices_are_named(folder):
    (folder / "spk2info.pt").write_bytes(b"no file of torch")
    with pytest.raises(WeightError, match=r"spk2info\.pt cannot be read as voices"):
        read_spec(folder)
