"""Qwen3-TTS: what a checkpoint must hold, how prompts open, and where the text goes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from models.base import TextFeed
from models.errors import PlanError, WeightError
from models.hugging_face import read_tokenizer
from models.qwen3_tts.config import N_MARKS
from models.qwen3_tts.model import QwenTtsModel, load
from models.registry import read_spec
from models.spec import PlanRequest
from tests.engine.harness import CONFIG, Engine
from tests.models.qwen3_tts.tiny import make_checkpoint

NOISE = np.random.default_rng(3).uniform(-0.5, 0.5, 40_000).astype(np.float32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("qwen3_tts"))


@pytest.fixture(scope="module")
def model(checkpoint) -> QwenTtsModel:
    return load(checkpoint)


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_config(path: Path, change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_the_facts_come_from_the_files(checkpoint, model):
    spec = read_spec(checkpoint)
    assert spec == model.spec
    assert spec.voices == ("vivian", "dylan", "ryan")
    assert spec.languages == ("auto", "chinese", "english")
    assert spec.text_capacity > 0
    assert spec.frame.samples_per_frame == 1920
    assert spec.depth is not None
    assert (spec.backbone.head_dim, spec.depth.head_dim) == (16, 12)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda c: c["talker_config"].pop("codec_bos_id"), r"talker_config\.codec_bos_id"),
        (lambda c: c.pop("tts_pad_token_id"), "tts_pad_token_id"),
        (
            lambda c: c["talker_config"].update(num_code_groups=16),
            "num_code_groups = 16, must be 8",
        ),
        (
            lambda c: c["talker_config"]["code_predictor_config"].pop("head_dim"),
            r"talker_config\.code_predictor_config\.head_dim",
        ),
    ],
)
def test_what_is_absent_or_contradicts_is_named(folder, change, shown):
    change_config(folder / "config.json", change)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: t.pop("talker.codec_head.weight"), r"talker\.codec_head\.weight is missing"),
        (
            lambda t: t.pop("talker.code_predictor.lm_head.3.weight"),
            r"code_predictor\.lm_head\.3\.weight is missing",
        ),
        (
            lambda t: t.pop("talker.model.layers.0.self_attn.q_norm.weight"),
            r"lacks talker\.model\.layers\.0\.self_attn\.q_norm",
        ),
        (lambda t: t.update({"stray": torch.ones(1)}), "stray"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, shown):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightError, match=shown):
        load(folder)


LAYER = "decoder.pre_transformer.layers.1"
BOOK = "decoder.quantizer.rvq_rest.vq.layers.2._codebook"


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("decoder.pre_conv.conv.weight", None, r"missing: decoder\.pre_conv\.conv\.weight"),
        (f"{LAYER}.mlp.down_proj.weight", None, rf"missing: {LAYER}\.mlp\.down_proj\.weight"),
        (f"{LAYER}.mlp.up_proj.weight", None, rf"lacks {LAYER}\.mlp\.up_proj\.weight"),
        (f"{LAYER}.mlp.up_proj.bias", torch.ones(1), rf"unexpected: {LAYER}\.mlp\.up_proj\.bias"),
        (f"{LAYER}.mlp.gate_proj.weight", torch.ones(1, 2), rf"{LAYER}\.mlp\.gate_proj\.weight is"),
        (f"{LAYER}.input_layernorm.weight", torch.ones(3), rf"{LAYER}\.input_layernorm\.weight is"),
        (f"{BOOK}.cluster_usage", None, rf"{BOOK} lacks embedding_sum or cluster_usage"),
        ("decoder.stray", torch.ones(1), r"unexpected: decoder\.stray"),
    ],
)
def test_codec_weights_that_do_not_fit_are_named_as_the_file_has_them(folder, key, tensor, shown):
    path = folder / "speech_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    if tensor is None:
        tensors.pop(key)
    else:
        tensors[key] = tensor
    save_file(tensors, path)
    with pytest.raises(WeightError, match=shown):
        load(folder)


def test_gate_and_up_of_two_sizes_are_refused(folder):
    """Together they had as many rows as there must be."""
    path = folder / "speech_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    gate, up = (f"{LAYER}.mlp.{one}_proj.weight" for one in ("gate", "up"))
    both = torch.cat([tensors[gate], tensors[up]])
    cut = len(tensors[gate]) - 2
    tensors[gate], tensors[up] = both[:cut].clone(), both[cut:].clone()
    save_file(tensors, path)
    with pytest.raises(WeightError, match=rf"{gate} is .*{up} is"):
        load(folder)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="hi", voice="tara"), "unknown_voice"),
        (PlanRequest(text="hi", language="klingon"), "unsupported_language"),
        (PlanRequest(text="x" * 2100), "prompt_too_long"),
        (PlanRequest(text="hi", audio=NOISE, audio_rate_hz=24_000), "invalid_reference"),
        (PlanRequest(text="hi", options={"reference_text": "so"}), "unknown_option"),
        (PlanRequest(text="hi", options={"instructions": "x" * 4100}), "prompt_too_long"),
    ],
)
def test_requests_that_cannot_be_served(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(request_)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("voice", "language", "said"),
    [
        ("vivian", "auto", [171, 172, 173, 264, 164]),
        ("vivian", "english", [170, 172, 75, 173, 264, 164]),
        ("dylan", "english", [170, 172, 75, 173, 265, 164]),
        ("dylan", "auto", [170, 172, 76, 173, 265, 164]),
        ("dylan", "chinese", [170, 172, 76, 173, 265, 164]),
    ],
)
def test_language_and_speaker_stand_before_the_text(model, voice, language, said):
    """A speaker of a dialect speaks it where Chinese is asked for, or nothing."""
    config = model.config
    ids = model.plan(PlanRequest(text="hi", voice=voice, language=language)).ids
    n_role = 3
    assert ids[n_role:, 1].tolist() == [*said, config.marks.bos]
    padding = [config.tts_pad] * (len(said) - 1)
    first = model.tokenizer.encode("h").ids
    assert ids[n_role:, 0].tolist() == [*padding, config.tts_bos, *first]
    assert (ids[:n_role, 1] == config.no_code(0)).all()


def test_each_row_takes_an_id_of_text_then_the_end_then_padding(model):
    config = model.config
    row = torch.full((5, model.spec.n_columns), 3)
    state = torch.tensor([[0, step, 0] for step in (0, 1, 2, 3, 2)])
    feed = TextFeed(
        ids=torch.tensor([[11, 12, 0, 0]]).repeat(5, 1),
        n_ids=torch.full((5,), 2),
        is_final=torch.tensor([True, True, True, True, False]),
    )
    step = model.advance(state, row, feed)
    assert step.rows[:4, 0].tolist() == [11, 12, config.tts_eos, config.tts_pad]
    assert step.is_starved.tolist() == [False, False, False, False, True]
    assert step.emits.all()


def test_a_whole_text_stands_before_the_speech_and_nothing_is_fed(model):
    fed = model.plan(PlanRequest(text="hello"))
    whole = model.plan(PlanRequest(text="hello", options={"whole_text": True}))
    n_text = len(fed.text_ids) + 1
    assert len(whole.ids) == len(fed.ids) + n_text + 1
    assert len(whole.text_ids) == 0
    opening = whole.ids[-(n_text + 2) :]
    assert opening[:, 1].tolist() == [model.config.marks.pad] * (n_text + 1) + [
        model.config.marks.bos
    ]
    assert opening[-2:, 0].tolist() == [model.config.tts_eos, model.config.tts_pad]
    assert not model.spec.streams_text({"whole_text": True})
    with pytest.raises(PlanError, match="with whole_text the text is taken whole") as caught:
        model.plan(PlanRequest(text="hi", options={"whole_text": True}, is_text_final=False))
    assert caught.value.code == "text_not_streamed"


def test_the_end_is_not_drawn_in_the_first_two_rows(model):
    eos = model.config.marks.eos
    logits = [torch.zeros(3, model.config.talker.n_ids)]
    feed = TextFeed(
        ids=torch.zeros(3, 1).long(), n_ids=torch.zeros(3).long(), is_final=torch.ones(3).bool()
    )
    (constrained,) = model.constrain(torch.tensor([[0, 0, 0], [0, 1, 0], [0, 2, 0]]), logits, feed)
    assert constrained[:, eos].isfinite().tolist() == [False, False, True]
    row = torch.full((1, model.spec.n_columns), 3)
    row[0, 1] = eos
    one = TextFeed(ids=feed.ids[:1], n_ids=feed.n_ids[:1], is_final=feed.is_final[:1])
    end = model.advance(torch.tensor([[0, 5, 0]]), row, one)
    assert end.is_finished.all()
    assert not end.emits.any()


def test_of_the_marks_among_the_codes_only_the_end_is_ever_drawn(model, monkeypatch):
    """Not even where another is the likeliest."""
    n_codes = model.config.talker.n_ids - N_MARKS
    heads, advance, drawn = model.heads, model.advance, []

    def favoured(hidden: torch.Tensor) -> list[torch.Tensor]:
        (logits,) = heads(hidden)
        marks = logits[:, n_codes:] + 1e6
        marks[:, model.config.marks.eos - n_codes] = -1e6
        return [torch.cat([logits[:, :n_codes], marks], dim=1)]

    monkeypatch.setattr(model, "heads", favoured)
    monkeypatch.setattr(
        model, "advance", lambda state, ids, feed: drawn.append(ids) or advance(state, ids, feed)
    )
    plan = replace(model.plan(PlanRequest(text="hi")), max_frames=4)
    Engine(model, CONFIG).speak([plan], seeds=[1])
    assert len(drawn) >= 4
    assert int(torch.cat(drawn)[:, 1].max()) < n_codes


def test_the_older_tokenizer_files_part_text_as_transformers_does(tmp_path):
    """The published folders have no tokenizer.json."""
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    from models.hugging_face import QWEN_WORDS

    assert QWEN_WORDS.replace("\\", "") == PRETOKENIZE_REGEX.replace("\\", "")
    letters = {chr(code): n for n, code in enumerate([*range(33, 127), 0x120, 0x10A])}
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello")]
    vocab = {**letters, **{"".join(pair): len(letters) + n for n, pair in enumerate(pairs)}}
    vocab["<|endoftext|>"] = len(vocab)
    merges = [" ".join(pair) for pair in pairs]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    marks = {str(len(vocab)): "<|im_start|>", str(len(vocab) + 1): "<|im_end|>"}
    added = {n: {"content": content, "special": True} for n, content in marks.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    ours = read_tokenizer(tmp_path)
    theirs = Qwen2Tokenizer(vocab=vocab, merges=pairs, unk_token=None)
    theirs.add_special_tokens({"additional_special_tokens": list(marks.values())})
    for text in ("hello hello", "<|im_start|>hello\n12 it's, hello!<|im_end|>"):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text)


def test_damaged_tokenizer_files_are_named(tmp_path):
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(WeightError, match=r"vocab\.json or merges\.txt"):
        read_tokenizer(tmp_path)
    Tokenizer(BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path).token_to_id("a") == 0
