"""`glm4-voice` without a reference: text, prompts, runs, and what its files must state."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import PlanError, WeightError
from models.glm4_voice.config import (
    DECODER_FOLDER,
    HEARING_FOLDER,
    N_FRAMES,
    REST,
    SPEECH,
    SPEECH_RUN,
    TEXT,
    TEXT_RUN,
)
from models.glm4_voice.model import GlmVoiceModel, is_in, load, read_spec
from models.glm4_voice.prompt import ANSWER, TASK
from models.glm4_voice.tokenizer import GlmTokenizer, read_tokenizer
from models.spec import Message, PlanRequest
from tests.models.glm4_voice.tiny import make_checkpoint

PIECES = [
    "he",
    "llo",
    " the",
    "re",
    "\n",
    "12",
    "345",
    "'s",
    "  ",
    "你好",
    "ü",
    "<|user|>",
    " x",
    "!",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("glm4_voice"))


@pytest.fixture(scope="module")
def model(folder) -> GlmVoiceModel:
    return load(folder)


def copy_of(folder: Path, tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "copy")


# Text.


def joined(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """By the rule: of all neighbours, those first whose whole has the lowest rank."""
    parts = [bytes([one]) for one in word]
    while True:
        found = [(ranks.get(a + b), n) for n, (a, b) in enumerate(itertools.pairwise(parts))]
        found = [(rank, n) for rank, n in found if rank is not None]
        if not found:
            return [ranks[part] for part in parts]
        _, n = min(found)
        parts[n : n + 2] = [parts[n] + parts[n + 1]]


def test_words_are_joined_by_rank():
    """A file's lines say which token there are, not which pairs make them."""
    draw = random.Random(5)
    ranks = {bytes([one]): one for one in range(256)}
    while len(ranks) < 400:
        token = b"".join(draw.choice([*ranks])[:3] for _ in range(2))
        ranks.setdefault(bytes(b"abc "[one % 4] for one in token), len(ranks))
    tokenizer = GlmTokenizer(ranks)
    for _ in range(200):
        word = "".join(draw.choice("abc") for _ in range(draw.randint(1, 9)))
        expected = (
            [ranks[word.encode()]] if word.encode() in ranks else joined(word.encode(), ranks)
        )
        assert tokenizer.encode(word) == expected


def test_text_comes_back_and_no_text_is_a_mark(model):
    draw = random.Random(6)
    for _ in range(60):
        text = "".join(draw.choice(PIECES) for _ in range(8))
        ids = model.tokenizer.encode(text)
        assert max(ids) < model.config.n_text
        assert model.tokenizer.decode(ids) == text
    assert model.tokenizer.encode("hello")[0] == 258, "a token of four letters"
    half = model.tokenizer.encode("ü")[:1]
    assert model.tokenizer.decode(half) == ""


# Prompts.


def words(model: GlmVoiceModel, text: str) -> list[int]:
    return model.tokenizer.encode(text)


def test_the_prompt_is_the_published_one(model):
    ids = model.config.ids
    task = words(model, "\n" + TASK.format(kind="text"))
    answer = [ids.assistant, *words(model, ANSWER)]
    opening = [*ids.opening, ids.system, *task]
    got = model.plan(PlanRequest(text="Hello.")).ids[:, 0].tolist()
    assert got == [*opening, ids.user, *words(model, "\nHello."), *answer]
    marks = [ids.opening[0], ids.opening[1], ids.system, ids.user, ids.assistant, *ids.ends]
    assert [mark - model.config.n_text for mark in marks] == [2, 4, 6, 7, 8, 0, 7, 9]


def test_what_is_said_comes_as_speech_tokens(model):
    ids = model.config.ids
    pcm = np.sin(np.arange(6000, dtype=np.float32) / 9)
    plan = model.plan(PlanRequest(text="", audio=pcm, audio_rate_hz=16_000))
    got = plan.ids[:, 0].tolist()
    start, end = got.index(ids.sound_start), got.index(ids.sound_end)
    codes = [one - ids.first_code for one in got[start + 1 : end]]
    assert codes == model.hearing.tokens(torch.from_numpy(pcm)).tolist()
    task = words(model, "\n" + TASK.format(kind="speech") + " ")
    assert got[:3] + task == got[: 3 + len(task)]
    assert got[start - 2 : start] == [ids.user, *words(model, "\n")]


def test_what_was_heard_is_kept_by_content(model, monkeypatch):
    calls = []
    tokens = model.hearing.tokens
    monkeypatch.setattr(model.hearing, "tokens", lambda pcm: calls.append(1) or tokens(pcm))
    pcm = np.sin(np.arange(7000, dtype=np.float32) / 7)
    for _ in range(3):
        model.plan(PlanRequest(text="", audio=pcm, audio_rate_hz=16_000))
    assert len(calls) == 1


def test_a_conversation_is_told_in_words_where_its_rows_are_not_known(model):
    said = (
        Message(role="system", text="Be brief."),
        Message(role="user", text="Hi."),
        Message(role="assistant", text="Yes?"),
    )
    plan = model.plan(PlanRequest(text="Go on.", messages=said))
    ids = model.config.ids
    answer = [ids.assistant, *words(model, ANSWER)]
    first = [ids.user, *words(model, "\nHi."), *answer, *words(model, "Yes?")]
    second = [ids.user, *words(model, "\nGo on."), *answer]
    got = plan.ids[:, 0].tolist()
    assert got[-len(first + second) :] == first + second
    task = words(model, "\nBe brief.\n" + TASK.format(kind="text"))
    assert got[: -len(first + second)] == [*ids.opening, ids.system, *task]


def test_rows_of_the_history_stay_as_they_were_drawn(model):
    first = model.plan(PlanRequest(text="Hi."))
    drawn = [*words(model, "Well "), *range(model.config.ids.first_code, model.config.n_ids)]
    history = np.array([*first.ids[:, 0].tolist(), *drawn]).reshape(-1, 1)
    barge_in = (Message(role="user", text="Wait."), Message(role="assistant", text="What"))
    plan = model.plan(PlanRequest(text="So?", history=history, messages=barge_in))
    got = plan.ids[:, 0].tolist()
    assert got[: len(history)] == history[:, 0].tolist()
    ids = model.config.ids
    assert got[len(history)] == ids.user
    assert got[len(history) :].count(ids.user) == 2
    assert (plan.prefix_key, plan.prefix_rows) == ("talk", len(got))


def test_old_rounds_are_left_out_half_a_budget_at_a_time(model):
    """So that the prompts of several turns begin alike."""
    history, starts = None, []
    for turn in range(40):
        plan = model.plan(PlanRequest(text=f"turn {turn}, " * 3, history=history))
        rows = plan.ids[:, 0].tolist()
        at = rows.index(model.config.ids.user)
        starts.append(bytes(rows[at + 2 : at + 8]))
        answer = [7] * 30
        history = np.array([*rows, *answer]).reshape(-1, 1)
        assert len(rows) <= model.spec.backbone.max_positions * 3 // 4
    assert rows[:at] == plan.ids[:at, 0].tolist(), "the opening stays"
    changes = sum(a != b for a, b in itertools.pairwise(starts))
    assert 1 <= changes <= 8


def test_instructions_that_change_are_followed(model):
    first = model.plan(PlanRequest(text="Hi."))
    new = (Message(role="system", text="In verse."),)
    plan = model.plan(PlanRequest(text="Go on.", history=first.ids.numpy(), messages=new))
    text = model.tokenizer.decode([one for one in plan.ids[:, 0].tolist() if one < 265])
    assert text.startswith("\nIn verse.\n")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PlanRequest(text=" "), "empty_text"),
        (PlanRequest(text="", audio=np.zeros(9000, np.float32)), "empty_audio"),
        (PlanRequest(text="", audio=np.full(9000, np.nan, np.float32)), "invalid_audio"),
        (PlanRequest(text="", audio=np.ones(16_000 * 301, np.float32)), "audio_too_long"),
        (PlanRequest(text="word " * 400), "prompt_too_long"),
        (PlanRequest(text="Hi.", options={"top_p": 0}), "invalid_value"),
        (PlanRequest(text="Hi.", options={"voice": "x"}), "unknown_option"),
        (PlanRequest(text="Hi.", language="fr"), "unsupported_language"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(model, request_, code):
    with pytest.raises(PlanError) as caught:
        model.plan(replace(request_, audio_rate_hz=16_000))
    assert caught.value.code == code


def test_limits_and_draws_follow_the_request(model):
    plan = model.plan(
        PlanRequest(text="Hi.", options={"temperature": 0.7, "top_p": 0.5}, max_seconds=2.0)
    )
    assert plan.max_frames == 25
    assert plan.max_rows == model.spec.backbone.max_positions - len(plan.ids) - 1
    assert (plan.sampling["ids"].temperature, plan.sampling["ids"].top_p) == (0.7, 0.5)
    column = read_spec_column(model)
    assert (column.temperature, column.top_p) == (0.2, 0.8)


def read_spec_column(model: GlmVoiceModel) -> Any:
    return model.spec.phases[0].columns[0].sampling


# Runs.


def advanced(model: GlmVoiceModel, ids: list[int]) -> list[tuple[int, bool, int, bool]]:
    """Phase, frame, text id and end of each row."""
    state, rows = torch.zeros(1, 3, dtype=torch.int64), []
    for one in ids:
        out = model.advance(state, torch.tensor([[one]]), None)
        state = out.state
        rows.append((int(state[0, 0]), bool(out.emits), int(out.text_ids), bool(out.is_finished)))
    return rows


def test_runs_of_text_and_speech_follow_one_another(model):
    code = model.config.ids.first_code + 5
    rows = advanced(model, [*[40] * TEXT_RUN, *[code] * SPEECH_RUN, *[41] * TEXT_RUN, code])
    phases = [phase for phase, *_ in rows]
    assert phases[: TEXT_RUN - 1] == [TEXT] * (TEXT_RUN - 1)
    assert phases[TEXT_RUN - 1 : TEXT_RUN + SPEECH_RUN - 1] == [SPEECH] * SPEECH_RUN
    assert phases[TEXT_RUN + SPEECH_RUN - 1] == TEXT
    assert [emits for _, emits, *_ in rows].count(True) == SPEECH_RUN + 1
    assert [text for _, _, text, _ in rows if text >= 0] == [40] * TEXT_RUN + [41] * TEXT_RUN


def test_text_that_ends_early_is_followed_by_speech_to_the_end(model):
    code, end = model.config.ids.first_code, model.config.ids.ends[1]
    rows = advanced(model, [40, 41, *[code] * 60, end])
    assert [phase for phase, *_ in rows[2:]] == [REST] * 61
    assert all(emits for _, emits, *_ in rows[2:-1])
    assert rows[-1][1:] == (False, -1, True)


@pytest.mark.parametrize(
    ("phase", "run", "n_frames", "may_end", "may_speak"),
    [
        (TEXT, 0, 0, False, False),
        (TEXT, 3, 0, False, True),
        (TEXT, 0, 26, True, True),
        (TEXT, 1, 26, False, True),
        (SPEECH, 0, 0, False, True),
        (SPEECH, 1, 1, True, True),
        (REST, 0, 1, True, True),
    ],
)
def test_an_answer_ends_only_where_nothing_is_unsaid(
    model, phase, run, n_frames, may_end, may_speak
):
    state = torch.zeros(1, 3, dtype=torch.int64)
    state[0, 0], state[0, 1], state[0, N_FRAMES] = phase, run, n_frames
    (logits,) = model.constrain(state, [torch.zeros(1, model.config.n_ids)], None)
    ends = logits[0, list(model.config.ids.ends)]
    assert ends.isfinite().tolist() == [may_end] * 3
    assert bool(logits[0, model.config.ids.first_code].isfinite()) == may_speak
    assert logits[0, : model.config.n_text].isfinite().all(), "the phase says which ids there are"


def test_the_free_form_draws_everything(folder):
    free = load(folder, forces_runs=False)
    assert [phase.name for phase in free.spec.phases] == ["any"]
    state = torch.zeros(1, 3, dtype=torch.int64)
    (logits,) = free.constrain(state, [torch.zeros(1, free.config.n_ids)], None)
    assert logits.isfinite().all()
    mark, code = free.config.ids.system, free.config.ids.first_code
    rows = advanced(free, [code, 40, mark, code])
    assert [(emits, text) for _, emits, text, _ in rows] == [
        (True, -1),
        (False, 40),
        (False, -1),
        (True, -1),
    ]


# Files.


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_the_folder_is_known_by_what_its_files_state(folder, tmp_path):
    assert is_in(folder)
    assert read_spec(folder) == load(folder).spec
    assert read_spec(folder).frame.sample_rate_hz == 22_050
    copy = copy_of(folder, tmp_path)
    edited(copy / "config.json", lambda values: values.update(model_type="glm"))
    assert not is_in(copy)
    assert not is_in(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        "num_layers",
        "num_attention_heads",
        "multi_query_group_num",
        "kv_channels",
        "hidden_size",
        "seq_length",
        "ffn_hidden_size",
        "padded_vocab_size",
        "layernorm_epsilon",
        "rope_ratio",
        "eos_token_id",
    ],
)
def test_a_config_that_lacks_a_number_is_refused_by_its_key(folder, tmp_path, key):
    copy = copy_of(folder, tmp_path)
    edited(copy / "config.json", lambda values: values.pop(key))
    with pytest.raises(WeightError, match=f"does not state {key}"):
        read_spec(copy)


@pytest.mark.parametrize(
    ("file", "change", "shown"),
    [
        ("config.json", {"rmsnorm": False}, "rmsnorm"),
        ("config.json", {"original_rope": False}, "original_rope"),
        ("config.json", {"padded_vocab_size": 300}, "padded_vocab_size 300"),
        ("tokenizer_config.json", {"added_tokens_decoder": {}}, "has no marks"),
        (f"{HEARING_FOLDER}/config.json", {"pooling_type": "max"}, "pooling_type"),
        (f"{HEARING_FOLDER}/config.json", {"pooling_position": 1}, "pooling_position 1"),
        (f"{HEARING_FOLDER}/config.json", {"quantize_vocab_size": 63}, "63 speech tokens"),
        (f"{HEARING_FOLDER}/config.json", {"d_model": None}, "does not state d_model"),
        ("config.json", {"num_layers": 0}, "num_layers = 0, must be 1 or more"),
        ("config.json", {"seq_length": -1}, "seq_length = -1, must be 1 or more"),
        ("config.json", {"rope_ratio": 0}, "rope_ratio = 0.0, must be above 0"),
        (f"{HEARING_FOLDER}/config.json", {"encoder_attention_heads": 5}, "must be a divisor"),
        (f"{HEARING_FOLDER}/config.json", {"quantize_causal_block_size": -1}, "must be 1 or more"),
    ],
)
def test_files_that_say_something_else_are_refused(folder, tmp_path, file, change, shown):
    copy = copy_of(folder, tmp_path)
    edited(copy / file, lambda values: values.update(change))
    with pytest.raises(WeightError, match=shown):
        read_spec(copy)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("attention_heads: 2", "attention_heads: 0", "attention_heads = 0, must be 1 or more"),
        ("attention_heads: 2", "attention_heads: 5", "attention_heads = 5, must be a divisor"),
        ("block_size: 10", "block_size: 0", "block_size = 0, must be 1 or more"),
        ("block_size: 10", "block_size: 15", "block_size = 15, must be a divisor of 20"),
        (
            "input_frame_rate: 12.5",
            "input_frame_rate: 0",
            "input_frame_rate = 0.0, must be above 0",
        ),
        ("spk_embed_dim: 12", "spk_embed_dim: -1", "spk_embed_dim = -1, must be 1 or more"),
    ],
)
def test_a_detokenizer_that_cannot_be_is_refused_by_its_key(folder, tmp_path, old, new, shown):
    copy = copy_of(folder, tmp_path)
    path = copy / DECODER_FOLDER / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(WeightError, match=shown):
        read_spec(copy)


@pytest.mark.parametrize("mark", ["[gMASK]", "<|user|>", "<|begin_of_audio|>", "<|audio_63|>"])
def test_a_tokenizer_without_a_mark_names_it(folder, tmp_path, mark):
    copy = copy_of(folder, tmp_path)

    def without(values: dict[str, Any]) -> None:
        for one in values["added_tokens_decoder"].values():
            if one["content"] == mark:
                one["content"] = "<|other|>"

    edited(copy / "tokenizer_config.json", without)
    with pytest.raises(WeightError) as caught:
        read_spec(copy)
    assert mark in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("AA== 0\nnonsense\n", "line 2"), ("AA== 0\n", "no byte"), ("!!! 0\n", "line 1")],
)
def test_a_damaged_vocabulary_says_where(tmp_path, text, shown):
    (tmp_path / "tokenizer.model").write_text(text)
    with pytest.raises(WeightError, match=shown):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("name", [HEARING_FOLDER, "glm-4-voice-decoder"])
def test_a_folder_that_is_missing_says_what_to_fetch(folder, tmp_path, name):
    copy = copy_of(folder, tmp_path)
    (copy / name).rename(tmp_path / "away")
    with pytest.raises(WeightError, match=f"put the checkpoint zai-org/{name}"):
        read_spec(copy)


LAYER = "transformer.encoder.layers.1."


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        (f"{LAYER}self_attention.query_key_value.bias", None, "missing"),
        (f"{LAYER}mlp.dense_h_to_4h.weight", torch.zeros(3), "is \\(3,\\)"),
        (f"{LAYER}self_attention.dense.bias", torch.zeros(64), "unexpected"),
        ("transformer.output_layer.weight", None, "is missing"),
        ("transformer.embedding.word_embeddings.weight", torch.zeros(2, 2), "is \\(2, 2\\)"),
    ],
)
def test_weights_that_do_not_fit_are_named_as_the_file_has_them(
    folder, tmp_path, key, tensor, shown
):
    copy = copy_of(folder, tmp_path)
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(copy.glob("model-*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (copy / "model.safetensors.index.json").unlink()
    tensors.pop(key, None)
    if tensor is not None:
        tensors[key] = tensor
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(WeightError, match=shown) as caught:
        load(copy)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("layers.1.fc1.bias", None, "missing: layers.1.fc1.bias"),
        ("codebook.weight", torch.zeros(3, 3), "codebook.weight is \\(3, 3\\)"),
        ("layers.0.more", torch.zeros(3), "unexpected: layers.0.more"),
    ],
)
def test_weights_of_what_hears_are_named_too(folder, tmp_path, key, tensor, shown):
    copy = copy_of(folder, tmp_path)
    path = copy / HEARING_FOLDER / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(key, None)
    if tensor is not None:
        tensors[key] = tensor
    save_file(tensors, path)
    with pytest.raises(WeightError, match=shown):
        load(copy)


def test_what_hears_may_lie_in_a_whole_whisper_model(folder, tmp_path, model):
    copy = copy_of(folder, tmp_path)
    path = copy / HEARING_FOLDER / "model.safetensors"
    tensors = {f"model.encoder.{key}": tensor for key, tensor in load_file(path).items()}
    tensors["model.encoder.layers.4.fc1.bias"] = torch.zeros(48)
    tensors["model.decoder.layers.0.fc1.bias"] = torch.zeros(48)
    save_file(tensors, path)
    pcm = torch.sin(torch.arange(9000) / 5)
    assert load(copy).hearing.tokens(pcm).tolist() == model.hearing.tokens(pcm).tolist()
