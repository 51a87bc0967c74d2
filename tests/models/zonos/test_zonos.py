# ruff: noqa: RUF001 -- phonemes are input here
"""Zonos: what a checkpoint must hold, what a request may ask, delays and the end, phonemes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.layers.delay import NEVER
from models.registry import read_spec
from models.spec import PlanRequest
from models.zonos.config import LANGUAGES, LAST, PAST, ROW
from models.zonos.model import ZonosModel, load
from models.zonos.phonemes import BEGIN, END, N_IDS, PROGRAM, UNKNOWN, espeak, phoneme_ids
from models.zonos.speaker import ENCODER_FILE, FOLDER, PROJECTION_FILE
from tests.models.zonos.tiny import add_speaker_encoder, make_checkpoint, spell

NOISE = np.random.default_rng(3).uniform(-0.5, 0.5, 20_000).astype(np.float32)
NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("zonos"))


@pytest.fixture(scope="module")
def model(checkpoint) -> ZonosModel:
    loaded = load(checkpoint)
    loaded.phonemize = spell
    return loaded


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_config(folder: Path, change) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = read_spec(checkpoint)
    assert spec == model.spec
    assert spec.frame.sample_rate_hz == 44_100
    assert spec.frame.samples_per_frame == 512
    assert [column.delay_rows for column in spec.columns] == list(range(9))
    assert spec.codec.lookahead_frames == 10
    assert spec.guidance is not None


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda c: c["backbone"].pop("n_layer"), r"does not state backbone\.n_layer"),
        (lambda c: c["backbone"].update(ssm_cfg={"layer": "Mamba2"}), "is a hybrid Zonos"),
        (lambda c: c.update(eos_token_id=63), "eos_token_id 63 does not follow 64 codes"),
        (
            lambda c: c["prefix_conditioner"]["conditioners"][2].update(type="MoodConditioner"),
            "conditioner 'MoodConditioner' is not one of",
        ),
        (
            lambda c: c["prefix_conditioner"].update(projection="cubic"),
            "projection 'cubic' is not",
        ),
        (lambda c: c["prefix_conditioner"].pop("conditioners"), "conditioners as a list"),
    ],
)
def test_what_is_absent_or_unknown_is_named(folder, change, shown):
    change_config(folder, change)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("heads.3.weight"), r"missing: heads\.3\.weight"),
        (lambda t: t.update({"stray": torch.ones(1)}), "unexpected: stray"),
        (
            lambda t: t.update({"backbone.layers.0.mixer.conv.weight": torch.ones(1)}),
            r"no known layout: backbone\.layers\.0\.mixer\.conv",
        ),
        (lambda t: t.update({"embeddings.0.weight": torch.ones(3, 48)}), "unfit: embeddings"),
        (
            lambda t: t.pop("backbone.layers.1.mixer.in_proj.weight"),
            r"missing: backbone\.layers\.1\.mixer\.in_proj\.weight",
        ),
        (
            lambda t: t.update({"backbone.layers.0.mlp.fc1.weight": torch.ones(4, 48)}),
            r"unfit: backbone\.layers\.0\.mlp\.fc1\.weight is \(4, 48\)",
        ),
        (
            lambda t: t.update({"backbone.layers.0.mlp.fc1.weight": torch.ones(1, 4, 48)}),
            r"unfit: backbone\.layers\.0\.mlp\.fc1\.weight is \(1, 4, 48\)",
        ),
        (
            lambda t: t.update({"backbone.layers.0.norm2.weight_g": torch.ones(48)}),
            r"no known layout: backbone\.layers\.0\.norm2\.weight_g",
        ),
        (
            lambda t: t.update({"backbone.norm_f.bias": torch.ones(3)}),
            r"unfit: backbone\.norm_f\.bias",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, shown):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_a_missing_detokenizer_says_what_to_fetch(folder):
    shutil.rmtree(folder / "dac_44khz")
    with pytest.raises(WeightError, match="put descript/dac_44khz into"):
        load(folder)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="hi", language="klingon"), "unsupported_language"),
        (PlanRequest(text="hi", options={"pitch_std": 500.0}), "invalid_value"),
        (PlanRequest(text="hi", audio=NOISE, audio_rate_hz=16_000), "speaker_encoder_missing"),
        (PlanRequest(text="hi", audio=0 * NOISE, audio_rate_hz=16_000), "empty_audio"),
        (PlanRequest(text="x" * 4080), "prompt_too_long"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


def test_without_guidance_there_is_no_companion(model):
    plan = model.plan(PlanRequest(text="hi", options={"guidance": 1.0}))
    assert plan.companion is None
    guided = model.plan(PlanRequest(text="hi"))
    assert guided.companion is not None
    assert guided.companion.ids.shape == guided.ids.shape


def test_settings_change_their_own_row_and_no_other(model):
    plain = model.plan(PlanRequest(text="hi")).embeds
    for name, value in (("pitch_std", 90.0), ("fmax", 8000.0), ("speaking_rate", 30.0)):
        changed = model.plan(PlanRequest(text="hi", options={name: value})).embeds
        assert int((changed != plain).any(dim=1).sum()) == 1
    german = model.plan(PlanRequest(text="hi", language="de")).embeds
    assert int((german != plain).any(dim=1).sum()) == 1


# Voices of recordings.


@pytest.fixture(scope="module")
def with_speaker(checkpoint, tmp_path_factory) -> Path:
    copy = tmp_path_factory.mktemp("voiced") / "zonos"
    return add_speaker_encoder(Path(shutil.copytree(checkpoint, copy)))


def test_a_voice_changes_its_own_row_and_is_encoded_once(with_speaker):
    model = load(with_speaker)
    model.phonemize = spell
    n_calls = []
    model.speaker.register_forward_hook(lambda *told: n_calls.append(1))
    plain = model.plan(PlanRequest(text="hi"))
    voiced = PlanRequest(text="hi", audio=NOISE, audio_rate_hz=18_000)
    plans = [model.plan(voiced), model.plan(voiced)]
    assert len(n_calls) == 1
    assert torch.equal(plans[0].embeds, plans[1].embeds)
    assert int((plans[0].embeds != plain.embeds).any(dim=1).sum()) == 1
    assert torch.equal(plans[0].companion.embeds, plain.companion.embeds)


@pytest.mark.parametrize(
    ("file", "change", "shown"),
    [
        (ENCODER_FILE, lambda t: t.pop("front.conv1.weight"), r"lacks front\.conv1\.weight"),
        (ENCODER_FILE, lambda t: t.pop("bottleneck.bias"), r"missing: bottleneck\.bias"),
        (ENCODER_FILE, lambda t: t.update(stray=torch.ones(1)), "unexpected: stray"),
        (
            ENCODER_FILE,
            lambda t: t.update({"pooling.attention.0.weight": torch.ones(12, 321, 1)}),
            "takes 321 channels, no multiple of the 32",
        ),
        (
            ENCODER_FILE,
            lambda t: [t.pop(key) for key in list(t) if key.startswith("front.layer3.")],
            r"lacks front\.layer3\.",
        ),
        (PROJECTION_FILE, lambda t: t.pop("weight"), "lacks weight"),
        (
            PROJECTION_FILE,
            lambda t: t.update(weight=torch.ones(15, 24), bias=torch.ones(15)),
            "tells a voice by 15 numbers, the checkpoint takes 16",
        ),
    ],
)
def test_files_of_the_speaker_encoder_that_do_not_fit_are_named(
    with_speaker, tmp_path, file, change, shown
):
    folder = Path(shutil.copytree(with_speaker, tmp_path / "copy"))
    path = folder / FOLDER / file
    tensors = torch.load(path, weights_only=True)
    change(tensors)
    torch.save(tensors, path)
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_a_checkpoint_that_takes_no_voice_has_no_option_for_it(folder):
    change_config(folder, lambda c: c["prefix_conditioner"]["conditioners"].pop(1))
    assert "reference_audio" not in {option.name for option in read_spec(folder).options}


def run_rows(model: ZonosModel, rows: list[list[int]]):
    """Advance through sampled rows; the fed rows, the emitted frames, and where it ended."""
    state = torch.zeros(1, model.spec.state_size, dtype=torch.int64)
    state[:, LAST], state[:, PAST:] = NEVER, model.config.blank
    fed, frames = [], []
    for number, row in enumerate(rows):
        step = model.advance(state, torch.tensor([row]), NO_FEED)
        assert int(state[0, ROW]) == number
        fed.append(step.rows[0].tolist())
        if step.emits:
            frames.append(step.frames[0].tolist())
        state = step.state
        if step.is_finished:
            return fed, frames, number
    return fed, frames, None


@pytest.mark.parametrize("n_frames", [1, 2, 8, 9, 50])
def test_delayed_codebooks_come_back_as_frames(model, n_frames):
    """Codebook k of frame f is drawn in row f + k; the end stands behind the last frame."""
    codes = torch.randint(0, 64, (n_frames, 9), generator=torch.Generator().manual_seed(n_frames))
    eos, blank = model.config.eos, model.config.blank
    rows = []
    for row in range(n_frames + 8):
        drawn = [7] * 9
        for k in range(9):
            if 0 <= row - k < n_frames:
                drawn[k] = int(codes[row - k, k])
        if row == n_frames:
            drawn[0] = eos
        rows.append(drawn)
    fed, frames, end = run_rows(model, rows)
    assert frames == codes.tolist()
    assert end == n_frames + 7
    for row, ids in enumerate(fed):
        for k, idx in enumerate(ids):
            frame = row - k
            if frame < 0 or frame > n_frames:
                assert idx == blank
            elif frame == n_frames:
                assert idx == eos
            else:
                assert idx == int(codes[frame, k])


def test_an_end_at_once_is_speech_of_no_frame(model):
    fed, frames, end = run_rows(model, [[model.config.eos, *[5] * 8]])
    assert (frames, end) == ([], 0)
    assert fed[0][0] == model.config.eos


def test_only_the_first_codebook_can_end(model):
    allowed = [column.allowed for column in model.spec.phases[0].columns]
    assert allowed[0] == ()
    assert set(allowed[1:]) == {((0, 64),)}


# Phonemes.


def test_ids_are_those_of_the_published_table():
    """189 rows, as the published table has; marks first, then punctuation, letters, IPA."""
    assert N_IDS == 189
    assert len(LANGUAGES) == 109
    assert LANGUAGES[24] == "en-us"
    ids = phoneme_ids(";A a5", "en-us", spell)
    assert ids == [BEGIN, 4, 28, 21, 54, UNKNOWN, END]


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"the program {PROGRAM} is not here")
def test_espeak_keeps_punctuation_and_stress():
    line = espeak("Hello there, friend! Why?", "en-us")
    assert line.count(",") == line.count("!") == line.count("?") == 1
    assert line.startswith("həlˈoʊ ")
    assert "fɹˈɛnd!" in line
    assert UNKNOWN not in phoneme_ids("Hello there, friend! Why?", "en-us", espeak)


def test_what_the_program_cannot_read_is_named(tmp_path, monkeypatch):
    program = tmp_path / PROGRAM
    program.write_text("#!/bin/sh\necho 'no voices here' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(PlanError, match="no voices here") as caught:
        espeak("hello", "en-us")
    assert caught.value.code == "phonemizer_failed"


def test_without_espeak_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PlanError, match="apt-get install espeak-ng") as caught:
        espeak("hello", "en-us")
    assert caught.value.code == "phonemizer_missing"
