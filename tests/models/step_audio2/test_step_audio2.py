"""Step-Audio 2: what a checkpoint must hold, what a request may ask, and how rows become sound."""

from __future__ import annotations

import base64
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.registry import read_spec
from models.spec import Message, PlanRequest
from models.step_audio2.facts import CLOSING, SPEECH
from models.step_audio2.model import StepModel, is_in, load
from models.step_audio2.vocoder import read_vocoder_config
from tests.engine.harness import Engine, let_it_end
from tests.models.checkpoints import made
from tests.models.step_audio2.tiny import write_voice

NO_FEED = TextFeed(
    ids=torch.zeros(1, 0).long(), n_ids=torch.zeros(1).long(), is_final=torch.ones(1).bool()
)
RATE_HZ = 16_000
CONFIG = EngineConfig(max_streams=4)


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return made("step-audio2")


@pytest.fixture(scope="module")
def model(checkpoint) -> StepModel:
    return load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    n_samples = round(seconds * RATE_HZ)
    return 0.1 * np.random.default_rng(seed).standard_normal(n_samples, dtype=np.float32)


def change_config(path: Path, part: str, **changes: object) -> None:
    stated = json.loads(path.read_text())
    values = stated[part] if part else stated
    for key, value in changes.items():
        if value is None:
            del values[key]
        else:
            values[key] = value
    path.write_text(json.dumps(stated))


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# Checkpoints.


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = read_spec(checkpoint)
    assert spec == model.spec
    assert is_in(checkpoint)
    assert spec.voices == ("default_female",)
    assert spec.backbone.head_dim == 12
    assert spec.frame.samples_per_frame == 960
    assert spec.codec.first_frames == (15, 40)
    assert spec.codec.chunk_frames == (25, 50)


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("text_config", "num_hidden_layers"),
        ("text_config", "vocab_size"),
        ("text_config", "rope_theta"),
        ("audio_encoder_config", "n_audio_layer"),
        ("audio_encoder_config", "adapter_stride"),
    ],
)
def test_a_number_that_is_not_there_is_named(folder, part, key):
    change_config(folder / "config.json", part, **{key: None})
    with pytest.raises(WeightError, match=f"does not state {part}.{key}"):
        load(folder)


@pytest.mark.parametrize(
    ("part", "changes", "shown"),
    [
        ("text_config", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("text_config", {"vocab_size": 4000}, "vocab_size 4000 has no room"),
        ("text_config", {"num_attention_groups": 4}, "num_attention_groups = 4"),
        ("audio_encoder_config", {"llm_dim": 64}, "llm_dim = 64"),
        ("text_config", {"num_attention_heads": 0}, "num_attention_heads = 0, must be 1 or more"),
        ("text_config", {"num_hidden_layers": 0}, "num_hidden_layers = 0, must be 1 or more"),
        ("audio_encoder_config", {"n_audio_ctx": -1}, "n_audio_ctx = -1, must be 1 or more"),
        ("audio_encoder_config", {"n_audio_head": 5}, "n_audio_head = 5, must be a divisor"),
    ],
)
def test_what_is_not_known_is_refused(folder, part, changes, shown):
    change_config(folder / "config.json", part, **changes)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize("name", ["<|EOT|>", "<audio_patch>", "<tts_start>", "<audio_6561>"])
def test_a_mark_that_the_tokenizer_lacks_is_named(folder, name):
    change_text(folder / "tokenizer.json", json.dumps(name), '"<other>"')
    with pytest.raises(WeightError, match=r"no token '.*': this is no Step-Audio 2") as error:
        read_spec(folder)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("estimator: !new:cosyvoice2.flow.decoder_dit.DiT", "estimator: !new:a.Unet", "'Unet'"),
        ("vocab_size: 6561", "", "does not state flow.vocab_size"),
        ("key_bias: True", "key_bias: False", "key_bias = False"),
        ("in_channels: 64", "in_channels: 80", "in_channels = 80"),
        ("attention_heads: 4", "attention_heads: 0", "attention_heads = 0, must be 1 or more"),
        ("attention_heads: 4", "attention_heads: 5", "attention_heads = 5, must be a divisor"),
        ("spk_embed_dim: 192", "spk_embed_dim: -1", "spk_embed_dim = -1, must be 1 or more"),
        ("mlp_ratio: 4.0", "mlp_ratio: -1", "mlp_ratio = -1.0, must be above 0"),
        ("depth: 2", "depth: 3", r"flow\.pt does not fit SpeechFlow: missing: .*blocks\.2"),
    ],
)
def test_what_flow_yaml_states_must_fit(folder, old, new, shown):
    change_text(folder / "token2wav" / "flow.yaml", old, new)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize("name", ["flow.pt", "hift.pt", "flow.yaml", "campplus.onnx"])
def test_a_part_that_is_missing_is_named(folder, name):
    (folder / "token2wav" / name).unlink()
    with pytest.raises(WeightError, match=name):
        load(folder)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("encoder.blocks.1.attn.query.bias", None, r"missing: blocks\.1\.attn\.query\.bias"),
        ("encoder.after_norm.weight", None, r"encoder\.after_norm\.weight is missing"),
        ("adapter.conv.weight", torch.ones(3), r"adapter\.conv\.weight is \(3,\), expected"),
        ("adapter.linear1.bias", None, r"adapter\.linear1"),
        ("lm_head.weight", torch.ones(3, 48), r"lm_head\.weight is \(3, 48\)"),
        ("model.layers.1.mlp.up_proj.weight", None, r"lacks model\.layers\.1\.mlp\.up_proj"),
        ("stray", torch.ones(1), "does not know: stray"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, key, tensor, shown):
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    name = places["weight_map"].setdefault(key, "model-00001-of-00002.safetensors")
    tensors = load_file(folder / name)
    if tensor is None:
        del tensors[key], places["weight_map"][key]
    else:
        tensors[key] = tensor
    save_file(tensors, folder / name)
    index.write_text(json.dumps(places))
    with pytest.raises(WeightError, match=shown):
        load(folder)


# Requests.


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"text": " "}, "empty_text", "text"),
        ({"options": {"speed": 1.0}}, "unknown_option", "speed"),
        ({"options": {"top_p": 2.0}}, "invalid_value", "top_p"),
        ({"voice": "nobody"}, "unknown_voice", "voice"),
        ({"language": "de"}, "unsupported_language", "language"),
        ({"text": "word " * 8000}, "prompt_too_long", "text"),
        ({"text": "", "audio": noise(130.0)}, "audio_too_long", "input_audio"),
        ({"text": "", "audio": np.zeros(9000, dtype=np.float32)}, "empty_audio", "input_audio"),
        ({"text": "", "messages": (Message(role="assistant", text="Hm."),)}, "empty_text", "text"),
    ],
)
def test_what_cannot_be_answered_is_refused(model, changes, code, param):
    asked = replace(PlanRequest(text="Hello."), **changes)
    if asked.audio is not None:
        asked = replace(asked, audio_rate_hz=RATE_HZ)
    with pytest.raises(PlanError) as error:
        model.plan(asked)
    assert (error.value.code, error.value.param) == (code, param)


def test_without_a_voice_it_says_where_to_get_one(folder):
    shutil.rmtree(folder / "assets")
    with pytest.raises(PlanError, match=r"default_female\.wav of https:") as error:
        load(folder).plan(PlanRequest(text="Hello."))
    assert error.value.code == "missing_audio"


def test_voices_of_the_folder_are_told_apart(folder):
    write_voice(folder / "assets" / "another.wav", seed=5)
    model = load(folder)
    assert model.spec.voices == ("default_female", "another")
    plans = [model.plan(PlanRequest(text="Hello.", voice=one)) for one in (None, "another")]
    first, second = (plan.codec_state["flow_kept"] for plan in plans)
    assert (first - second).abs().max() > 0.1
    # What the LM is told is the same.
    assert torch.equal(plans[0].ids, plans[1].ids)


def test_a_recording_is_the_voice_and_what_is_said_is_not(model, tmp_path):
    write_voice(tmp_path / "voice.wav", seed=7)
    file = base64.b64encode((tmp_path / "voice.wav").read_bytes()).decode()
    asked = PlanRequest(text="", audio=noise(0.5), audio_rate_hz=RATE_HZ)
    named = model.plan(asked).codec_state["flow_kept"]
    given = {"reference_audio": file}
    recorded = model.plan(replace(asked, options=given)).codec_state["flow_kept"]
    others = model.plan(replace(asked, audio=noise(0.5, seed=3))).codec_state["flow_kept"]
    assert torch.equal(named, others)
    assert (named - recorded).abs().max() > 0.1


def test_a_voice_has_two_mel_frames_for_each_code(checkpoint, monkeypatch):
    """Where the recording ends within a code, its last frame goes on, as in the reference."""
    model = load(checkpoint)
    heard = []
    monkeypatch.setattr(model.voices.token2wav, "seed", lambda *given: heard.append(given) or {})
    model.plan(PlanRequest(text="Hello."))
    ((codes, mel, speaker),) = heard
    # 1.7 s: 42.5 codes, and 85 frames.
    assert (len(codes), mel.shape, len(speaker)) == (43, (16, 86), 192)
    assert torch.equal(mel[:, 85], mel[:, 84])
    assert mel[:, 84].std() > 0.01


def test_a_damaged_voice_is_named(folder):
    (folder / "assets" / "default_female.wav").write_bytes(b"RIFF")
    with pytest.raises(WeightError, match=r"default_female\.wav"):
        load(folder)


def test_the_oldest_messages_are_left_out(model):
    said = [
        Message(role=role, text=f"{n} " * 60) for n in range(30) for role in ("user", "assistant")
    ]
    plan = model.plan(PlanRequest(text="", messages=(*said, Message(role="user", text="So?"))))
    text = model.tokenizer.decode(plan.ids[:, 0].tolist(), skip_special_tokens=False)
    assert len(plan.ids) < 2100
    assert "29 29" in text
    assert "So?" in text
    assert "3 3 3" not in text


def test_what_is_left_out_is_not_listened_to(model, monkeypatch):
    """A long conversation costs what fits into a prompt, at each turn."""
    listened = []
    hidden = model.spec.backbone.hidden

    def rows(pieces):
        listened.extend(pieces)
        return [torch.zeros(125, hidden) for _ in pieces]

    monkeypatch.setattr(model.hearing, "rows", rows)
    said = [Message(role="user", text="", audio=noise(10.0, seed=n)) for n in range(20)]
    plan = model.plan(PlanRequest(text="So?", messages=tuple(said)))
    n_heard = int(plan.embed_mask.sum()) // 125
    assert 10 < n_heard < 17
    assert len(listened) <= n_heard + 1
    newest = {one.audio[:100].tobytes() for one in said[-n_heard:]}
    assert newest <= {piece[:100].tobytes() for piece in listened}


def test_what_was_said_in_earlier_turns_is_heard_again(model):
    heard = noise(0.5)
    asked = PlanRequest(text="", audio=heard, audio_rate_hz=RATE_HZ)
    now = model.plan(asked)
    said = Message(role="user", text="", audio=heard), Message(role="assistant", text="Yes.")
    later = model.plan(replace(asked, audio=noise(0.3, seed=2), messages=said))
    first = now.embeds[now.embed_mask]
    assert torch.equal(later.embeds[later.embed_mask][: len(first)], first)
    assert int(later.embed_mask.sum()) > len(first)
    # The rows that a further turn has in common with this one may be shared.
    assert later.prefix_rows > len(now.ids) - 10


# Rows.


def test_words_codes_and_marks_are_told_apart(model):
    ids = model.config.ids
    last = ids.first_code + model.config.n_codes
    row = torch.tensor([[65], [ids.first_code], [last - 1], [last], [ids.speaking], [ids.end]])
    out = model.advance(torch.full((6, 1), SPEECH), row, NO_FEED)
    assert out.text_ids.tolist() == [65, -1, -1, -1, -1, -1]
    assert out.emits.tolist() == [False, True, True, False, False, False]
    assert out.frames[1:3, 0].tolist() == [0, model.config.n_codes - 1]
    assert out.is_finished.tolist() == [False] * 5 + [True]
    assert torch.equal(out.rows, row)


def test_behind_the_end_of_speech_nothing_is_said(model):
    ids = model.config.ids
    out = model.advance(torch.tensor([[SPEECH]]), torch.tensor([[ids.spoken]]), NO_FEED)
    assert out.state.tolist() == [[CLOSING]]
    row = torch.tensor([[65], [ids.first_code + 7]])
    out = model.advance(torch.full((2, 1), CLOSING), row, NO_FEED)
    assert out.text_ids.tolist() == [-1, -1]
    assert not out.emits.any()
    assert out.state.tolist() == [[CLOSING]] * 2


@pytest.mark.parametrize("n_rows", [0, 3, 20, 60])
def test_an_end_of_the_model_s_own_loses_nothing(model, monkeypatch, n_rows):
    """The reference never gives the last 160 ms."""
    plan = model.plan(PlanRequest(text="Hello there."))
    let_it_end(monkeypatch, model, torch.tensor([model.config.ids.end]), n_rows)
    engine = Engine(model, CONFIG)
    stream_id = engine.open(plan, seed=3)
    engine.run()
    finished = engine.finished(stream_id)
    assert finished.reason == "stop"
    assert finished.n_samples == finished.n_frames * 960
    assert len(engine.pcm(stream_id)) == finished.n_samples
    engine.check_is_empty()


PUBLISHED = {
    "output_size: 16": "output_size: 80",
    "in_channels: 64": "in_channels: 320",
    "out_channels: 16": "out_channels: 80",
    "size: 32": "size: 512",
    "num_blocks: 2": "num_blocks: 6",
    "num_up_blocks: 2": "num_up_blocks: 4",
    "attention_heads: 4": "attention_heads: 8",
    "linear_units: 48": "linear_units: 2048",
    "depth: 2": "depth: 16",
    "num_heads: 2": "num_heads: 8",
    "head_dim: 8": "head_dim: 64",
}
BYTES = {"float32": 4, "float16": 2, "int64": 8}


def test_what_a_stream_remembers_in_the_published_size(folder):
    """Others take 80 MiB for fewer frames, and forget the voice's prompt."""
    path = folder / "token2wav" / "flow.yaml"
    for old, new in PUBLISHED.items():
        change_text(path, old, new)
    state = read_vocoder_config(folder / "token2wav").codec_spec().state
    n_bytes = {one.name: math.prod(one.shape) * BYTES[one.dtype] for one in state}
    assert n_bytes["flow_kept"] == 10 * 2 * 16 * 126 * 512 * 2
    assert 40 * 2**20 < sum(n_bytes.values()) < 45 * 2**20
