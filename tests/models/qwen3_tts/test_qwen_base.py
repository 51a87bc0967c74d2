"""Qwen3-TTS Base: what such a checkpoint must hold, and what a request with a voice may ask."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.qwen3_tts.config import IS_TOLD
from models.qwen3_tts.model import QwenTtsModel, load
from models.registry import read_spec
from models.spec import PlanRequest
from tests.models.qwen3_tts.tiny import make_base_checkpoint
from tests.parity.test_mimi import fresh_state

RATE_HZ = 24_000
NOISE = np.random.default_rng(3).uniform(-0.5, 0.5, 40_000).astype(np.float32)
VOICED = PlanRequest(text="hi", audio=NOISE, audio_rate_hz=RATE_HZ)
N_FRAMES = 21
"""Of the noise."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_base_checkpoint(tmp_path_factory.mktemp("qwen3_tts"))


@pytest.fixture(scope="module")
def model(checkpoint) -> QwenTtsModel:
    return load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def with_words(request: PlanRequest, words: str = "so it sounds") -> PlanRequest:
    return replace(request, options={"reference_text": words})


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = read_spec(checkpoint)
    assert spec == model.spec
    assert spec.voices == ()
    options = {option.name: option.kind for option in spec.options}
    assert options["reference_audio"] == "audio"
    assert options["reference_text"] == "string"
    assert "instructions" not in options


def test_with_the_words_of_a_recording_text_is_taken_whole(model):
    assert model.spec.streams_text({})
    assert not model.spec.streams_text({"reference_text": "so"})
    with pytest.raises(PlanError) as caught:
        model.plan(replace(with_words(VOICED), is_text_final=False))
    assert caught.value.code == "text_not_streamed"
    assert not model.plan(replace(VOICED, is_text_final=False)).is_text_final


@pytest.mark.parametrize(
    ("file", "change", "shown"),
    [
        ("config.json", lambda c: c.pop("speaker_encoder_config"), "speaker_encoder_config"),
        (
            "config.json",
            lambda c: c["speaker_encoder_config"].pop("enc_dim"),
            r"speaker_encoder_config\.enc_dim",
        ),
        (
            "config.json",
            lambda c: c["speaker_encoder_config"].update(enc_dim=40),
            r"talker_config\.hidden_size = 48, must be 40",
        ),
        (
            "config.json",
            lambda c: c["speaker_encoder_config"].update(enc_dilations=[1, 2]),
            "enc_dilations differ",
        ),
        (
            "config.json",
            lambda c: c["speaker_encoder_config"].update(sample_rate=16_000),
            "sample_rate = 16000, must be 24000",
        ),
        (
            "speech_tokenizer/config.json",
            lambda c: c["encoder_config"].pop("num_filters"),
            r"encoder_config\.num_filters",
        ),
        (
            "speech_tokenizer/config.json",
            lambda c: c.update(encoder_valid_num_quantizers=7),
            "encoder_valid_num_quantizers = 7, must be 8",
        ),
    ],
)
def test_what_is_absent_or_contradicts_is_named(folder, file, change, shown):
    values = json.loads((folder / file).read_text())
    change(values)
    (folder / file).write_text(json.dumps(values))
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("file", "key", "shown"),
    [
        ("model.safetensors", "speaker_encoder.fc.bias", r"missing: speaker_encoder\.fc\.bias"),
        (
            "speech_tokenizer/model.safetensors",
            "encoder.downsample.conv.weight",
            r"missing: encoder\.downsample\.conv\.weight",
        ),
    ],
)
def test_weights_that_are_missing_are_named(folder, file, key, shown):
    tensors = load_file(folder / file)
    tensors.pop(key)
    save_file(tensors, folder / file)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text="hi"), "missing_audio"),
        (with_words(PlanRequest(text="hi")), "invalid_reference"),
        (replace(VOICED, text=" "), "empty_text"),
        (replace(VOICED, voice="vivian"), "unknown_voice"),
        (replace(VOICED, audio=NOISE[:20_000]), "audio_too_short"),
        (replace(VOICED, options={"instructions": "softly"}), "unknown_option"),
        (with_words(VOICED, "x" * 2047), "prompt_too_long"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


def test_a_voice_stands_in_the_speaker_s_place_and_is_encoded_once(model):
    n_calls = []
    hook = model.voices.speaker.register_forward_hook(lambda *told: n_calls.append(1))
    pcm = 0.7 * NOISE
    plans = [model.plan(replace(VOICED, text=text, audio=pcm)) for text in ("hi", "and so on")]
    hook.remove()
    assert len(n_calls) == 1
    at = [int(plan.embed_mask.nonzero()) for plan in plans]
    # Three rows of the role, three of the language; padding and the start follow.
    assert at == [6, 6]
    assert len(plans[0].ids) == 9
    row = plans[0].embeds[6]
    assert torch.equal(row, plans[1].embeds[6])
    pad = model.embed(torch.tensor([[model.config.tts_pad, *no_codes(model)]]), torch.tensor([-1]))
    vector = model.voices.speaker(torch.from_numpy(pcm))
    torch.testing.assert_close(row, pad[0] + vector)


def no_codes(model: QwenTtsModel) -> list[int]:
    return [model.config.no_code(n) for n in range(model.config.n_codebooks)]


def test_a_recording_stands_before_the_speech_with_words_and_text_beside_it(model):
    config = model.config
    plan = model.plan(with_words(VOICED))
    words = model.tokenizer.encode("so it sounds").ids
    text = model.tokenizer.encode("hi").ids
    rows = plan.ids[-(N_FRAMES + 1) :]
    beside = [*words, *text, config.tts_eos]
    n_pad = N_FRAMES + 1 - len(beside)
    assert rows[:, 0].tolist() == beside + [config.tts_pad] * n_pad
    assert rows[0, 1].item() == config.marks.bos
    assert (rows[1:, 1:] < config.codec.n_codes).all()
    assert len(plan.text_ids) == 0
    assert plan.state[IS_TOLD] == 1


@pytest.mark.parametrize("n_more", [-1, 0, 1, 9])
def test_text_that_has_no_place_beside_the_recording_follows(model, n_more):
    """All of it but the end, which follows the last of it, or stands in the prompt already."""
    n_words = len(model.tokenizer.encode("so it sounds").ids)
    n_text = N_FRAMES - n_words + n_more
    plan = model.plan(with_words(replace(VOICED, text="x" * n_text)))
    n_left = max(0, n_more)
    is_told = n_more <= 0
    assert len(plan.text_ids) == max(0, n_left - 1)
    assert bool(plan.state[IS_TOLD]) == is_told
    feed = TextFeed(
        ids=torch.nn.functional.pad(plan.text_ids, (0, 4)).unsqueeze(0),
        n_ids=torch.tensor([len(plan.text_ids)]),
        is_final=torch.tensor([True]),
    )
    state, given = plan.state.unsqueeze(0), []
    row = torch.full((1, model.spec.n_columns), 3)
    for _ in range(n_left + 2):
        step = model.advance(state, row, feed)
        state = step.state
        given.append(int(step.rows[0, 0]))
    end = [] if is_told else [model.config.tts_eos]
    expected = [*plan.text_ids.tolist(), *end]
    assert given == expected + [model.config.tts_pad] * (n_left + 2 - len(expected))


def test_prompts_of_one_voice_begin_alike(model):
    first, second = (
        model.plan(with_words(replace(VOICED, text=text))) for text in ("hi", "and so on")
    )
    n_rows = first.prefix_rows
    assert n_rows == second.prefix_rows == 8 + len(model.tokenizer.encode("so it sounds").ids)
    assert torch.equal(first.ids[:n_rows], second.ids[:n_rows])
    assert first.prefix_key == second.prefix_key
    assert first.prefix_key != model.plan(with_words(replace(VOICED, audio=-NOISE))).prefix_key


def test_the_codec_goes_on_from_the_recording(model):
    """The state is that of a codec that has decoded all of it, though it has decoded its end."""
    pcm = np.random.default_rng(5).uniform(-0.5, 0.5, 70 * 1920).astype(np.float32)
    plan = model.plan(with_words(replace(VOICED, audio=pcm)))
    codec = model.codec
    frames = plan.ids[-70:, 1:].unsqueeze(0)
    after = codec.decode(frames, torch.tensor([70]), fresh_state(codec, 1)).state
    assert plan.codec_state.keys() == after.keys()
    for name, tensor in after.items():
        torch.testing.assert_close(plan.codec_state[name], tensor[0], atol=1e-4, rtol=1e-3)
