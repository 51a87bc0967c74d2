"""CSM: what a checkpoint must hold, what a request may ask, and when the speech ends."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.base import PromptPlan, TextFeed
from models.csm.model import CODE_TABLE, CsmModel, load
from models.csm.weights import MOSHI_FILE, read_weights
from models.errors import PlanError, WeightError
from models.registry import read_spec
from models.spec import PlanRequest
from tests.engine.harness import CONFIG, Engine
from tests.models.csm.tiny import make_checkpoint

RATE_HZ = 24_000
SOUND = np.random.default_rng(3).uniform(-0.5, 0.5, 30_000).astype(np.float32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("csm"))


@pytest.fixture(scope="module")
def model(checkpoint) -> CsmModel:
    return load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_config(folder: Path, change) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def change_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = read_spec(checkpoint)
    assert spec == model.spec
    assert spec.n_columns == 9
    assert spec.backbone.head_dim == 16
    assert spec.depth is not None
    assert spec.depth.head_dim == 12
    assert spec.depth.n_positions == 8
    assert spec.frame.samples_per_frame == 1920


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda c: c.pop("text_vocab_size"), "does not state text_vocab_size"),
        (lambda c: c.pop("depth_decoder_config"), "does not state depth_decoder_config"),
        (
            lambda c: c["depth_decoder_config"].pop("hidden_size"),
            r"does not state depth_decoder_config\.hidden_size",
        ),
        (
            lambda c: c["codec_config"].pop("sliding_window"),
            r"does not state codec_config\.sliding_window",
        ),
        (lambda c: c.update(num_codebooks=32), "num_codebooks = 32, must be 8"),
        (lambda c: c.update(tie_codebooks_embeddings=False), "tie_codebooks_embeddings = False"),
        (lambda c: c["codec_config"].update(frame_rate=25.0), r"frame_rate = 25\.0"),
        (lambda c: c["codec_config"].update(use_causal_conv=False), "use_causal_conv = False"),
    ],
)
def test_what_is_absent_or_contradicts_is_named(folder, change, shown):
    change_config(folder, change)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
        (lambda t: t.pop("backbone_model.norm.weight"), r"lacks backbone_model\.norm\.weight"),
        (
            lambda t: t.pop("depth_decoder.model.layers.1.mlp.up_proj.weight"),
            r"lacks depth_decoder\.model\.layers\.1\.mlp\.up_proj",
        ),
        (lambda t: t.update({"backbone_model.x": torch.ones(1)}), r"know: backbone_model\.x"),
        (lambda t: t.update({"stray": torch.ones(1)}), "stray"),
        (
            lambda t: t.update({"depth_decoder.codebooks_head.weight": torch.ones(7, 32, 3)}),
            r"codebooks_head\.weight is \(7, 32, 3\)",
        ),
        (
            lambda t: t.pop("codec_model.upsample.conv.weight"),
            r"missing: codec_model\.upsample\.conv",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, shown):
    change_weights(folder, change)
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_the_code_table_may_stand_under_either_name_or_both(folder, model):
    tied = "depth_decoder.model.embed_tokens.weight"
    table = model.code_table.clone()
    for names in ((CODE_TABLE,), (tied,), (CODE_TABLE, tied)):

        def put(tensors, names=names):
            for name in (CODE_TABLE, tied):
                tensors.pop(name, None)
            tensors.update({name: table.clone() for name in names})

        change_weights(folder, put)
        assert torch.equal(load(folder).code_table, table)


def test_original_weights_without_a_codec_say_what_to_fetch(folder):
    save_file({"text_embeddings.weight": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(WeightError, match=r"no codec: put tokenizer-e351c8d8-.*kyutai/mimi into"):
        load(folder)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="hi", voice="tara"), "unknown_voice"),
        (PlanRequest(text="hi", options={"reference_text": "x"}), "invalid_reference"),
        (PlanRequest(text="hi", audio=SOUND, audio_rate_hz=RATE_HZ), "invalid_reference"),
        (
            PlanRequest(
                text="hi",
                audio=SOUND[:9000],
                audio_rate_hz=RATE_HZ,
                options={"reference_text": "x"},
            ),
            "audio_too_short",
        ),
        (PlanRequest(text="x" * 2100), "prompt_too_long"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


def test_a_voice_is_encoded_once_and_its_turn_can_be_shared(model, monkeypatch):
    n_calls = []
    encode = model.mimi.encode
    monkeypatch.setattr(model.mimi, "encode", lambda pcm: n_calls.append(1) or encode(pcm))

    def plan(text: str, words: str, pcm: np.ndarray = SOUND) -> PromptPlan:
        options = {"reference_text": words}
        return model.plan(PlanRequest(text=text, audio=pcm, audio_rate_hz=RATE_HZ, options=options))

    first, second = plan("hi", "my words"), plan("and so on", "my words")
    assert len(n_calls) == 1
    n_turn = first.prefix_rows
    assert n_turn == second.prefix_rows
    assert torch.equal(first.ids[:n_turn], second.ids[:n_turn])
    assert (first.ids[n_turn:, 0] != model.config.no_text).all()
    assert first.prefix_key == second.prefix_key != plan("hi", "my words", -SOUND).prefix_key


def test_a_frame_of_zeros_ends_the_speech_and_nothing_less_does(model):
    rows = torch.ones(3, model.spec.n_columns).long()
    rows[1, 1:] = 0
    rows[2, 1:-1] = 0  # the reference stops here already
    state = torch.zeros(3, 1).long()
    feed = TextFeed(
        ids=torch.zeros(3, 0).long(), n_ids=torch.zeros(3).long(), is_final=torch.ones(3).bool()
    )
    step = model.advance(state, rows, feed)
    assert step.is_finished.tolist() == [False, True, False]
    assert step.emits.tolist() == [True, False, True]


def test_marks_above_the_codec_s_codes_are_never_drawn(model, monkeypatch):
    """Not even where they are the likeliest, by the backbone or by the depth model."""
    n_codes = model.config.mimi.n_codes
    assert model.config.backbone.n_ids > n_codes
    drawn = []

    def favoured(logits: torch.Tensor) -> torch.Tensor:
        return torch.cat([logits[:, :n_codes], logits[:, n_codes:] + 1e6], dim=1)

    heads, depth_head, advance = model.heads, model.depth_head, model.advance
    monkeypatch.setattr(model, "heads", lambda hidden: [favoured(one) for one in heads(hidden)])
    monkeypatch.setattr(model, "depth_head", lambda *asked: favoured(depth_head(*asked)))
    monkeypatch.setattr(
        model, "advance", lambda state, ids, feed: drawn.append(ids) or advance(state, ids, feed)
    )
    plan = replace(model.plan(PlanRequest(text="hi")), max_frames=3)
    Engine(model, CONFIG).speak([plan], seeds=[1])
    assert len(drawn) >= 3
    assert int(torch.cat(drawn)[:, 1:].max()) < n_codes


def test_original_weights_find_their_codec(model, tmp_path):
    """As on the hub, in a folder of its own, or as Moshi publishes it, there or beside."""
    save_file({"text_embeddings.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "mimi").mkdir()
    for name in ("mimi/model.safetensors", f"mimi/{MOSHI_FILE}", MOSHI_FILE):
        save_file({name: torch.zeros(1)}, tmp_path / name)
        assert list(read_weights(tmp_path, model.config)[1]) == [name]
