"""Chatterbox: what a checkpoint must hold, what a request may ask, voices, rows of speech."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.base import TextFeed
from models.chatterbox import english, multilingual
from models.chatterbox.model import ChatterboxModel
from models.errors import PlanError, WeightError
from models.spec import PlanRequest
from tests.models.chatterbox.tiny import make_checkpoint, make_tokenizer

NOISE = np.random.default_rng(3).uniform(-0.5, 0.5, 40_000).astype(np.float32)
NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)
N_SETTINGS = 6
"""Rows of the speaker, of the reference's speech, and of the feeling."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("chatterbox"))


@pytest.fixture(scope="module")
def model(checkpoint) -> ChatterboxModel:
    return english.load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """The same files; one may be taken away or replaced."""
    for path in checkpoint.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture
def many(folder) -> Path:
    """A folder that could be the multilingual model's: the LM has room for its text too."""
    (folder / "t3_cfg.safetensors").rename(folder / "t3_mtl23ls_v2.safetensors")
    make_tokenizer(
        folder / "grapheme_mtl_merged_expanded_v1.json",
        *(f"[{x}]" for x in multilingual.FACTS.languages),
    )
    return folder


def spoil(folder: Path, name: str, change: Callable) -> None:
    """Put a changed file in the place of a link."""
    tensors = load_file(folder / name)
    change(tensors)
    (folder / name).unlink()
    save_file(tensors, folder / name)


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = english.read_spec(checkpoint)
    assert spec == model.spec
    assert spec.name == "chatterbox"
    assert (spec.frame.sample_rate_hz, spec.frame.samples_per_frame) == (24_000, 960)
    assert spec.columns[0].ids == (0, 6563)
    assert spec.guidance is not None
    assert spec.guidance.scale == 1.5
    assert spec.languages == ("en",)


def test_a_folder_is_known_by_its_files(folder, many, tmp_path_factory):
    assert not english.is_in(tmp_path_factory.mktemp("empty"))
    assert multilingual.is_in(many)
    assert not english.is_in(many)
    (many / "t3_cfg.safetensors").symlink_to((many / "t3_mtl23ls_v2.safetensors").resolve())
    assert multilingual.is_in(many)
    assert not english.is_in(many), "of a folder with both, the one that knows English too"
    (many / "t3_mtl23ls_v2.safetensors").rename(many / "other")
    assert english.is_in(many)


@pytest.mark.parametrize(
    ("name", "change", "shown"),
    [
        (
            "t3_cfg.safetensors",
            lambda t: t.pop("text_pos_emb.emb.weight"),
            r"lacks text_pos_emb\.emb\.weight",
        ),
        (
            "t3_cfg.safetensors",
            lambda t: t.pop("tfmr.layers.1.mlp.up_proj.weight"),
            r"lacks tfmr\.layers\.1\.mlp\.up_proj\.weight",
        ),
        ("t3_cfg.safetensors", lambda t: t.update(stray=torch.ones(1)), "unexpected: stray"),
        (
            "t3_cfg.safetensors",
            lambda t: t.update({"speech_head.weight": torch.ones(9, 64)}),
            r"unfit: speech_head\.weight is \(9, 64\)",
        ),
        (
            "t3_cfg.safetensors",
            lambda t: t.update({"speech_emb.weight": torch.ones(6562, 64)}),
            r"speech_emb\.weight has 6562 rows for 6561 tokens",
        ),
        (
            "t3_cfg.safetensors",
            lambda t: t.update({"tfmr.layers.0.self_attn.q_proj.weight": torch.ones(100, 64)}),
            r"gives \[100, 64\], no multiples of 64",
        ),
        (
            "t3_cfg.safetensors",
            lambda t: t.update({"cond_enc.spkr_enc.weight": torch.ones(64, 40)}),
            "ve.safetensors tells a voice by 24 numbers, the LM takes 40",
        ),
        (
            "s3gen.safetensors",
            lambda t: t.pop("flow.input_embedding.weight"),
            r"lacks flow\.input_embedding\.weight",
        ),
        (
            "s3gen.safetensors",
            lambda t: t.pop("flow.decoder.estimator.final_proj.bias"),
            r"missing: decoder\.estimator\.final_proj\.bias",
        ),
        (
            "s3gen.safetensors",
            lambda t: t.update({"vocoder.weight": torch.ones(1)}),
            r"keys of no known part: vocoder\.weight",
        ),
        (
            "s3gen.safetensors",
            lambda t: t.update({"mel2wav.more": torch.ones(1)}),
            "unexpected: more",
        ),
        (
            "s3gen.safetensors",
            lambda t: [t.pop(key) for key in list(t) if key.startswith("mel2wav.resblocks.")],
            r"lacks mel2wav\.resblocks\.",
        ),
        (
            "s3gen.safetensors",
            lambda t: t.update({"flow.encoder_proj.weight": torch.ones(60, 32)}),
            "flow.decoder has mel frames of 80, flow of 60",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, name, change, shown):
    spoil(folder, name, change)
    with pytest.raises(WeightError, match=shown):
        english.load(folder)


@pytest.mark.parametrize("name", ["s3gen.safetensors", "ve.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(WeightError, match=f"{name} is missing"):
        english.load(folder)


def test_tables_that_nobody_asks_may_be_absent_or_there(folder):
    """The text's head and the decoder's own table; what the codec's file holds beside weights."""
    spoil(
        folder,
        "t3_cfg.safetensors",
        lambda t: [t.pop(key) for key in ("text_head.weight", "tfmr.embed_tokens.weight")],
    )
    spoil(
        folder,
        "s3gen.safetensors",
        lambda t: (t.pop("tokenizer.window"), t.update(trim_fade=torch.ones(960))),
    )
    tensors = load_file(folder / "ve.safetensors")
    (folder / "ve.safetensors").unlink()
    torch.save(tensors, folder / "ve.pt")
    english.load(folder)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda v: v.pop("gen"), r"gen\.prompt_token = NoneType"),
        (lambda v: v["t3"].pop("speaker_emb"), r"t3\.speaker_emb = NoneType"),
        (
            lambda v: v["gen"].update(prompt_feat=torch.ones(19, 80)),
            r"gen\.prompt_feat = \(19, 80\)",
        ),
        (
            lambda v: v["gen"].update(prompt_feat=torch.ones(1, 19, 80)),
            "has 19 mel frames for 10 prompt tokens",
        ),
        (
            lambda v: v["t3"].update(speaker_emb=torch.ones(1, 7)),
            r"conds\.pt tells a voice by 7 numbers, the LM takes 24",
        ),
        (
            lambda v: v["gen"].update(prompt_token=torch.full((1, 10), 6561)),
            "conds.pt has speech tokens beyond 6560",
        ),
    ],
)
def test_a_voice_that_does_not_fit_is_named(folder, change, shown):
    held = torch.load(folder / "conds.pt", weights_only=True)
    change(held)
    (folder / "conds.pt").unlink()
    torch.save(held, folder / "conds.pt")
    with pytest.raises(WeightError, match=shown):
        english.load(folder)


def test_a_file_that_is_no_voice_is_named(folder):
    (folder / "conds.pt").unlink()
    (folder / "conds.pt").write_bytes(b"no zip")
    with pytest.raises(WeightError, match=r"conds\.pt cannot be read as a voice"):
        english.load(folder)


# Requests.


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="x" * 200), "prompt_too_long"),
        (PlanRequest(text="hi", language="de"), "unsupported_language"),
        (PlanRequest(text="hi", options={"exaggeration": 3.0}), "invalid_value"),
        (PlanRequest(text="hi", options={"mood": 3.0}), "unknown_option"),
        (PlanRequest(text="hi", audio=0 * NOISE, audio_rate_hz=24_000), "empty_audio"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


def test_without_a_voice_of_its_own_a_recording_must_be_given(model, monkeypatch):
    monkeypatch.setattr(model, "voice", None)
    with pytest.raises(PlanError) as caught:
        model.plan(PlanRequest(text="hi"))
    assert caught.value.code == "missing_audio"
    assert caught.value.param == "reference_audio"
    model.plan(PlanRequest(text="hi", audio=NOISE, audio_rate_hz=24_000))


def test_the_companion_has_the_settings_and_the_text_s_length_alone(model):
    plan, other = (model.plan(PlanRequest(text=text)) for text in ("hi", "no"))
    assert torch.equal(plan.companion.embeds, other.companion.embeds)
    assert torch.equal(plan.companion.embeds[:N_SETTINGS], plan.embeds[:N_SETTINGS])
    differ = (plan.embeds != other.embeds).any(dim=1).nonzero()[:, 0].tolist()
    assert differ == [N_SETTINGS + 1, N_SETTINGS + 2]
    assert plan.guidance_scale == 1.5


def test_a_weight_of_0_turns_guidance_off(model):
    plan = model.plan(PlanRequest(text="hi", options={"cfg_weight": 0.0}))
    assert plan.companion is None
    assert plan.guidance_scale == 1.0


def test_exaggeration_changes_its_own_row_and_no_other(model):
    plain = model.plan(PlanRequest(text="hi"))
    changed = model.plan(PlanRequest(text="hi", options={"exaggeration": 1.0}))
    differ = (plain.embeds != changed.embeds).any(dim=1).nonzero()[:, 0].tolist()
    assert differ == [N_SETTINGS - 1]
    assert plain.prefix_key != changed.prefix_key
    assert plain.prefix_rows == N_SETTINGS


def test_options_of_the_draw_reach_the_sampler(model):
    options = {"temperature": 0.3, "min_p": 0.2, "top_p": 0.9, "repetition_penalty": 1.7}
    told = model.plan(PlanRequest(text="hi", options=options)).sampling["speech"]
    found = (told.temperature, told.min_p, told.top_p, told.repetition_penalty)
    assert found == tuple(options.values())
    default = model.plan(PlanRequest(text="hi")).sampling["speech"]
    assert default == model.spec.phases[0].columns[0].sampling


def test_a_recording_changes_the_voice_alone_and_is_heard_once(model):
    n_heard = []
    model.listener.encoder.register_forward_hook(lambda *told: n_heard.append(1))
    plain = model.plan(PlanRequest(text="hi"))
    request = PlanRequest(text="hi", audio=NOISE[::-1].copy(), audio_rate_hz=24_000)
    plans = [model.plan(request) for _ in range(2)]
    assert len(n_heard) == 1
    assert torch.equal(plans[0].embeds, plans[1].embeds)
    differ = (plain.embeds != plans[0].embeds).any(dim=1).nonzero()[:, 0].tolist()
    assert differ == list(range(N_SETTINGS - 1))
    assert plans[0].codec_state.keys() <= {one.name for one in model.spec.codec.state}
    assert any(
        not torch.equal(plans[0].codec_state[name], plain.codec_state[name])
        for name in plain.codec_state
    )


def test_a_long_text_has_at_most_40_s(model):
    """The tiny checkpoint has places for 202 rows of text, with its marks, and 304 of speech."""
    assert len(model.plan(PlanRequest(text="x" * 199)).ids) == N_SETTINGS + 202 + 2
    assert model.plan(PlanRequest(text="x" * 150)).max_frames == 303
    assert model.plan(PlanRequest(text="hi", max_seconds=1.0)).max_frames == 25


# Rows of speech.


def test_a_row_knows_its_place_and_the_end_ends(model):
    state = torch.zeros(2, model.spec.state_size, dtype=torch.int64)
    ids = torch.tensor([[5, 0], [7, 0]])
    for place in (1, 2, 3):
        step = model.advance(state, ids, NO_FEED)
        assert step.rows.tolist() == [[5, place], [7, place]]
        assert step.frames.tolist() == [[5], [7]]
        assert step.emits.all()
        assert not step.is_finished.any()
        state = step.state
    step = model.advance(state, torch.tensor([[6562, 0], [0, 0]]), NO_FEED)
    assert step.is_finished.tolist() == [True, False]
    assert step.emits.tolist() == [False, True]


def test_what_is_no_speech_token_is_never_drawn(model):
    assert model.spec.phases[0].columns[0].allowed == ((0, 6561), (6562, 6563))
    assert model.heads(torch.zeros(1, 64))[0].shape == (1, 6563)


# The multilingual model.


def test_languages_are_told_to_the_model(many):
    model = multilingual.load(many)
    assert model.spec == multilingual.read_spec(many)
    assert model.spec.name == "chatterbox-multilingual"
    assert model.spec.languages[0] == "en"
    english_, german = (model.plan(PlanRequest(text="hi", language=x)) for x in (None, "de"))
    differ = (english_.embeds != german.embeds).any(dim=1).nonzero()[:, 0].tolist()
    assert differ == [N_SETTINGS + 1]


def test_chinese_needs_its_list(many):
    assert "zh" not in multilingual.read_spec(many).languages
    (many / "Cangjie5_TC.json").write_text(json.dumps(["日\ta"]))
    assert "zh" in multilingual.read_spec(many).languages
    assert len(multilingual.read_spec(many).languages) == 23


def test_of_several_lms_the_newest_is_read(many):
    older = many / "t3_mtl23ls_v2.safetensors"
    (many / "t3_mtl23ls_v3.safetensors").symlink_to(older.resolve())
    older.unlink()
    older.write_bytes(b"not read")
    multilingual.read_spec(many)
    assert multilingual.needs(many).weights[0] == "t3_mtl23ls_v3.safetensors"


def test_what_is_fetched_of_the_hub(folder):
    expected = ("t3_cfg.safetensors", "s3gen.safetensors", "ve.safetensors", "conds.pt")
    assert english.needs(folder).weights == expected
