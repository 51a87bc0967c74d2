"""Orpheus: what a checkpoint must hold, what a request may ask, and how rows become frames."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.orpheus.config import N_SLOTS, SLOT_ORDER, is_orpheus
from models.orpheus.model import ROW, OrpheusModel, load
from models.registry import read_spec
from models.spec import PlanRequest
from tests.models.orpheus.tiny import make_checkpoint

NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("orpheus"))


@pytest.fixture(scope="module")
def model(checkpoint) -> OrpheusModel:
    return load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_config(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del values[key]
        else:
            values[key] = value
    path.write_text(json.dumps(values))


def change_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# Checkpoints.


def test_the_facts_come_from_the_files(checkpoint):
    spec = read_spec(checkpoint)
    assert spec.backbone.head_dim == 24
    assert spec.frame.samples_per_frame == 2048
    assert spec.frame.frame_rate_hz == pytest.approx(11.71875)
    assert spec.codec.lookahead_frames == 3


@pytest.mark.parametrize(
    "key",
    ["head_dim", "num_hidden_layers", "rms_norm_eps", "vocab_size", "tie_word_embeddings"],
)
def test_a_number_that_is_not_there_is_named(folder, key):
    change_config(folder / "config.json", **{key: None})
    with pytest.raises(WeightError, match=f"does not state {key}"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"vocab_size": 400}, "vocab_size 400 has no room"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn' is not known"),
    ],
)
def test_a_decoder_of_another_kind_is_refused(folder, changes, shown):
    change_config(folder / "config.json", **changes)
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_rotary_settings_in_the_older_spelling_mean_the_same(folder, model):
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    older = {key: value for key, value in rope.items() if key != "rope_theta"}
    change_config(
        folder / "config.json",
        rope_parameters=None,
        rope_theta=rope["rope_theta"],
        rope_scaling=older,
    )
    assert torch.equal(load(folder).decoder.rotary.table, model.decoder.rotary.table)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"lacks model\.layers\.1\.mlp\.up"),
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing, expected"),
        (lambda t: t.pop("model.norm.weight"), r"lacks model\.norm\.weight"),
        (lambda t: t.update({"model.layers.3.x": torch.ones(1)}), r"know: model\.layers\.3\.x"),
        (lambda t: t.update({"stray": torch.ones(1)}), "know: stray"),
        (
            lambda t: t.update({"model.embed_tokens.weight": torch.ones(3, 64)}),
            r"embed_tokens\.weight is \(3, 64\), expected",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.ones(3, 64)}),
            r"unfit: model\.layers\.0\.mlp\.down_proj\.weight is \(3, 64\)",
        ),
        (
            lambda t: t.update({"model.layers.1.self_attn.k_proj.weight": torch.ones(3, 64)}),
            r"unfit: model\.layers\.1\.self_attn\.k_proj\.weight is \(3, 64\), expected",
        ),
        (
            # Each has rows of the other: together they are as many as there must be.
            lambda t: t.update(
                {
                    "model.layers.1.self_attn.k_proj.weight": torch.ones(50, 64),
                    "model.layers.1.self_attn.v_proj.weight": torch.ones(46, 64),
                }
            ),
            r"unfit: .*k_proj\.weight is \(50, 64\), .*v_proj\.weight is \(46, 64\), expected",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, shown):
    change_weights(folder, change)
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_a_tied_head_may_be_absent(folder):
    change_config(folder / "config.json", tie_word_embeddings=True)
    change_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    tied = load(folder)
    low, high = tied.config.id_range
    assert torch.equal(tied.head.weight, tied.table.weight[low:high])


def test_the_detokenizer_must_be_there_and_be_its_own(folder):
    change_config(folder / "snac_24khz" / "config.json", vq_strides=[8, 4, 2, 1])
    with pytest.raises(WeightError, match="Orpheus writes"):
        load(folder)
    shutil.rmtree(folder / "snac_24khz")
    with pytest.raises(WeightError, match=r"has no detokenizer: put .* into .*snac_24khz"):
        load(folder)


def test_detokenizer_weights_that_do_not_fit_are_named(folder):
    path = folder / "snac_24khz" / "pytorch_model.bin"
    tensors = torch.load(path, weights_only=True)
    tensors.pop("decoder.model.1.bias")
    tensors["decoder.model.99.bias"] = torch.ones(1)
    torch.save(tensors, path)
    with pytest.raises(WeightError, match=r"missing: decoder\.model\.1\.bias") as caught:
        load(folder)
    assert "unexpected: decoder.model.99.bias" in str(caught.value)


def test_a_plain_llama_is_no_orpheus(folder):
    assert is_orpheus(folder)
    change_config(folder / "config.json", architectures=["Qwen2ForCausalLM"])
    assert not is_orpheus(folder)
    with pytest.raises(WeightError, match="holds no model that is known here"):
        read_spec(folder)


# Requests.


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text="  "), "empty_text"),
        (PlanRequest(text="hi", voice="alloy"), "unknown_voice"),
        (PlanRequest(text="hi", language="de"), "unsupported_language"),
        (PlanRequest(text="hi", options={"pitch": 1}), "unknown_option"),
        (PlanRequest(text="hi", options={"top_p": 2.0}), "invalid_value"),
        (PlanRequest(text="x" * 5000), "prompt_too_long"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


def test_speech_is_bounded_by_its_text_and_by_the_request(model):
    short, long = (model.plan(PlanRequest(text="a" * n)).max_frames for n in (2, 20))
    assert short < long < 400
    assert model.plan(PlanRequest(text="hello", max_seconds=2.0)).max_frames == 23


# Rows to frames.


def states(n_rows: int, *rows: int) -> torch.Tensor:
    state = torch.zeros(len(rows), 2 + N_SLOTS, dtype=torch.int64)
    state[:, ROW] = torch.tensor(rows)
    assert n_rows == len(rows)
    return state


def test_a_row_holds_a_code_of_its_slot_or_the_end(model):
    low, high = model.config.id_range
    n_codes, first = model.config.snac.n_codes, model.config.ids.first_code
    (logits,) = model.constrain(states(3, 0, 6, 9), [torch.zeros(3, high - low)], NO_FEED)
    for row, slot in enumerate((0, 6, 2)):
        allowed = (logits[row].isfinite().nonzero().flatten() + low).tolist()
        own = range(first + slot * n_codes, first + (slot + 1) * n_codes)
        assert allowed == [model.config.ids.speech_end, *own]


def test_seven_rows_make_a_frame_ordered_by_level(model):
    first, n_codes = model.config.ids.first_code, model.config.snac.n_codes
    state, emitted = states(1, 0), []
    for row in range(2 * N_SLOTS):
        slot = row % N_SLOTS
        ids = torch.tensor([[first + slot * n_codes + row]])
        step = model.advance(state, ids, NO_FEED)
        assert not step.is_finished.any()
        assert bool(step.emits) == (slot == N_SLOTS - 1)
        if step.emits:
            emitted.append(step.frames[0].tolist())
        state = step.state
    assert emitted == [[slot + 7 * n for slot in SLOT_ORDER] for n in range(2)]


def test_code_zero_counts_and_a_stop_drops_the_open_frame(model):
    ids = model.config.ids
    state = states(1, 0)
    for slot in range(N_SLOTS):
        step = model.advance(state, torch.tensor([[ids.first_code + slot * 64]]), NO_FEED)
        state = step.state
    assert step.emits.all()
    assert step.frames[0].tolist() == [0] * N_SLOTS
    end = model.advance(state, torch.tensor([[ids.speech_end]]), NO_FEED)
    assert end.is_finished.all()
    assert not end.emits.any()
