"""Chatterbox Turbo: what a checkpoint must hold, what a request may ask, the silence at the end."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from models.base import TextFeed
from models.chatterbox import english, multilingual, turbo
from models.chatterbox.turbo import TurboModel
from models.chatterbox.turbo_prompt import text_ids
from models.errors import PlanError, WeightError
from models.layers.transformer import cast_decoders
from models.spec import PlanRequest
from tests.models.chatterbox.test_chatterbox import spoil
from tests.models.chatterbox.tiny import make_turbo_checkpoint
from tests.models.toy.reference import FullAttention

NOISE = np.random.default_rng(3).uniform(-0.5, 0.5, 40_000).astype(np.float32)
NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_turbo_checkpoint(tmp_path_factory.mktemp("turbo"))


@pytest.fixture(scope="module")
def model(checkpoint) -> TurboModel:
    return turbo.load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """The same files; one may be taken away or replaced."""
    for path in checkpoint.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = turbo.read_spec(checkpoint)
    assert spec == model.spec
    assert spec.name == "chatterbox-turbo"
    assert spec.guidance is None
    assert spec.columns[0].ids == (0, 6563)
    assert turbo.is_in(checkpoint)
    assert not english.is_in(checkpoint)
    assert not multilingual.is_in(checkpoint)
    assert turbo.needs(checkpoint).weights[0] == "t3_turbo_v1.safetensors"


def test_nano_is_of_the_same_shape(folder, model):
    (folder / "t3_turbo_v1.safetensors").rename(folder / "t3_nano_v1.safetensors")
    assert turbo.is_in(folder)
    assert turbo.read_spec(folder) == model.spec


@pytest.mark.parametrize(
    ("name", "change", "shown"),
    [
        (
            "t3_turbo_v1.safetensors",
            lambda t: t.pop("tfmr.h.1.mlp.c_fc.bias"),
            r"missing: tfmr\.h\.1\.mlp\.c_fc\.bias",
        ),
        (
            "t3_turbo_v1.safetensors",
            lambda t: t.update({"tfmr.h.1.attn.c_attn.weight": torch.ones(192, 64)}),
            r"unfit: tfmr\.h\.1\.attn\.c_attn\.weight",
        ),
        ("t3_turbo_v1.safetensors", lambda t: t.update(stray=torch.ones(1)), "unexpected: stray"),
        (
            "t3_turbo_v1.safetensors",
            lambda t: t.update({"speech_emb.weight": torch.ones(6566, 64)}),
            r"speech_emb\.weight has 6566 rows for 6561 tokens",
        ),
        (
            "t3_turbo_v1.safetensors",
            lambda t: t.update({"text_emb.weight": torch.ones(200, 64)}),
            "the tokenizer has 258 ids, the LM has rows for 200",
        ),
        (
            "s3gen_meanflow.safetensors",
            lambda t: t.pop("flow.decoder.estimator.time_embed_mixer.weight"),
            "is no flow of Turbo",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, name, change, shown):
    spoil(folder, name, change)
    with pytest.raises(WeightError, match=shown):
        turbo.load(folder)


def test_masks_of_older_files_are_not_read(folder):
    spoil(
        folder,
        "t3_turbo_v1.safetensors",
        lambda t: t.update({"tfmr.h.0.attn.bias": torch.ones(1, 1, 9, 9)}),
    )
    turbo.load(folder)


def test_both_layouts_of_the_tokenizer_are_read(folder, model):
    model.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").unlink()
    again = turbo.load(folder).tokenizer
    assert text_ids("Hi <laugh>, you", again) == text_ids("Hi <laugh>, you", model.tokenizer)


def test_a_gap_in_the_tokenizer_is_named(folder):
    (folder / "tokenizer_config.json").unlink()
    added = {"900": {"content": "[laugh]", "special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(WeightError, match=r"puts '\[laugh\]' at 900, behind a gap"):
        turbo.load(folder)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="x" * 800), "prompt_too_long"),
        (PlanRequest(text="hi", language="de"), "unsupported_language"),
        (PlanRequest(text="hi", options={"exaggeration": 0.5}), "unknown_option"),
        (PlanRequest(text="hi", audio=0 * NOISE, audio_rate_hz=24_000), "empty_audio"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


def test_sounds_stand_in_square_brackets(model):
    tokenizer = model.tokenizer
    ids = text_ids("oh <laugh> dear; so", tokenizer)
    shown = [tokenizer.id_to_token(idx) for idx in ids]
    assert shown == [*"Oh", "Ġ", "[laugh]", "Ġ", *"dear;", "Ġ", *"so."]


def test_a_recording_changes_the_voice_alone(model):
    plain = model.plan(PlanRequest(text="hi"))
    voiced = model.plan(PlanRequest(text="hi", audio=NOISE, audio_rate_hz=24_000))
    n_said = [len(plan.ids) - 1 - len("Hi.") - 1 for plan in (plain, voiced)]
    assert n_said == [20, 42]
    assert torch.equal(plain.embeds[21:], voiced.embeds[43:])
    assert not torch.equal(plain.embeds[0], voiced.embeds[0])
    assert voiced.prefix_rows == 43
    assert voiced.codec_state.keys() <= {one.name for one in model.spec.codec.state}


def test_options_of_the_draw_reach_the_sampler(model):
    options = {"temperature": 0.3, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.7}
    told = model.plan(PlanRequest(text="hi", options=options)).sampling["speech"]
    found = (told.temperature, told.top_k, told.top_p, told.repetition_penalty)
    assert found == tuple(options.values())
    default = model.plan(PlanRequest(text="hi")).sampling["speech"]
    assert default == model.spec.phases[0].columns[0].sampling


def test_speech_ends_with_three_tokens_of_silence(model):
    state = torch.zeros(1, model.spec.state_size, dtype=torch.int64)
    frames, is_finished = [], []
    for drawn in (5, 7, 6562, 9, 11):
        step = model.advance(state, torch.tensor([[drawn]]), NO_FEED)
        state = step.state
        frames.append(int(step.frames))
        is_finished.append(bool(step.is_finished))
        assert step.emits.all()
    assert frames == [5, 7, 4299, 4299, 4299]
    assert is_finished == [False, False, False, False, True]


def test_the_decoder_alone_computes_in_another_precision(model):
    half = copy.deepcopy(model)
    cast_decoders(half, torch.bfloat16)
    assert half.lm.decoder.wpe.weight.dtype == torch.bfloat16
    assert half.lm.speech_emb.weight.dtype == torch.float32
    rows, places = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)), torch.arange(5)
    expected, got = (one.backbone(rows, places, FullAttention()) for one in (model, half))
    assert got.dtype == torch.float32
    assert 1e-4 < (got - expected).abs().max() < 0.2
