"""CSM on a small random checkpoint in the layout of `transformers`, against that library.

Logits: 1e-4, float32 with sums in another order. Codes: identical. PCM: 1e-5, as in `test_mimi`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from models.base import PromptPlan
from models.csm.model import CODE_TABLE, CsmModel, load
from models.csm.weights import _LAYER, _PARTS, _STEMS, _WHOLE
from models.spec import PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy, let_it_end
from tests.models.csm.tiny import make_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask
from tests.parity.test_mimi import stream

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "Why?",
    "Numbers like 42 come as they are.",
    "Ünïcödé is bytes here.",
    "So long.",
    "With somebody else's voice.",
)
REFERENCE = "And this is how I sound."
N_FRAMES = 200
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("csm"))


@pytest.fixture(scope="module")
def model(folder) -> CsmModel:
    return load(folder)


@pytest.fixture(scope="module")
def pcm() -> np.ndarray:
    """Reference audio: a second and a bit, of noise that swells."""
    draws = np.random.default_rng(4).standard_normal(29_000)
    return (0.2 * draws * np.linspace(0, 1, 29_000)).astype(np.float32)


@pytest.fixture(scope="module")
def plans(model, pcm) -> list[PromptPlan]:
    requests = [PlanRequest(text=text, voice=str(n % 4)) for n, text in enumerate(TEXTS)]
    requests[-1] = replace(
        requests[-1],
        audio=pcm,
        audio_rate_hz=24_000,
        options={"reference_text": REFERENCE},
    )
    return [replace(greedy(model, model.plan(r)), max_frames=N_FRAMES) for r in requests]


def as_ids(model: CsmModel, plan: PromptPlan) -> torch.Tensor:
    """A prompt as the reference takes it: marks in place of audio."""
    config = model.config
    mark, end = (model.tokenizer.token_to_id(name) for name in ("<|AUDIO|>", "<|audio_eos|>"))
    is_end = (plan.ids[:, 1:] == config.eos_code).all(dim=1)
    audio = torch.where(is_end, end, mark)
    return torch.where(plan.ids[:, 0] == config.no_text, audio, plan.ids[:, 0])


@pytest.fixture(scope="module")
def reference(folder, model, plans, pcm) -> dict[str, torch.Tensor]:
    prompts = {f"prompt{idx}": as_ids(model, plan) for idx, plan in enumerate(plans)}
    last = f"pcm{len(plans) - 1}"
    sound = torch.from_numpy(pcm)
    return ask("csm_lm", folder, {**prompts, last: sound, "n_frames": torch.tensor(N_FRAMES)})


def check(model, reference, got, n_frames=N_FRAMES) -> None:
    for idx, sound in enumerate(got):
        frames = reference[f"frames{idx % len(TEXTS)}"][:n_frames]
        expected = stream(model.mimi, frames.unsqueeze(0), [len(frames)])[0]
        np.testing.assert_allclose(sound, expected.numpy(), rtol=0, atol=1e-5)


def test_a_turn_is_its_text_between_two_marks(model, plans):
    config = model.config
    text = model.tokenizer.encode("[0]Hello there.", add_special_tokens=False).ids
    assert plans[0].ids[:, 0].tolist() == [config.bos_id, *text, config.eos_id]
    assert (plans[0].ids[:, 1:] == config.no_code).all()


def test_reference_audio_stands_before_the_text_with_an_empty_frame_behind_it(model, plans, pcm):
    config, ids = model.config, plans[-1].ids
    is_audio = ids[:, 0] == config.no_text
    n_frames = -(-len(pcm) // 1920)
    assert int(is_audio.sum()) == n_frames + 1
    rows = ids[is_audio]
    assert (rows[-1, 1:] == config.eos_code).all()
    assert torch.equal(rows[:-1, 1:], model.mimi.encode(torch.from_numpy(pcm)[None])[0])
    words = model.tokenizer.encode(f"[3]{REFERENCE}", add_special_tokens=False).ids
    assert ids[1 : 1 + len(words), 0].tolist() == words


def test_logits_are_those_of_transformers(model, plans, reference):
    for idx, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{idx}"]
        assert expected.std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)


def test_eight_streams_in_a_batch_say_what_transformers_says(model, plans, reference):
    assert len({tuple(map(tuple, reference[f"frames{n}"].tolist())) for n in range(8)}) == 8
    check(model, reference, Engine(model, CONFIG).speak(plans, seeds=range(len(plans))))


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    config = replace(CONFIG, prefill_rows_per_step=5)
    short = [replace(plan, max_frames=60) for plan in plans]
    check(model, reference, Engine(model, config).speak(short, seeds=range(8)), 60)


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[0])


@pytest.mark.parametrize("n_frames", [0, 1, 2, 5, 8, 31])
def test_an_end_of_the_model_s_own_leaves_all_frames(
    model, plans, reference, monkeypatch, n_frames
):
    end = torch.zeros(model.spec.n_columns, dtype=torch.int64)
    let_it_end(monkeypatch, model, end, n_frames)
    engine = Engine(model, CONFIG)
    got = engine.speak(plans[:1], seeds=[0])
    assert len(got[0]) == n_frames * model.spec.frame.samples_per_frame
    if n_frames:
        check(model, reference, got, n_frames)
    engine.check_is_empty()


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [replace(plan, max_frames=12) for plan in (*plans, plans[0])[:n_streams]]
    check(model, reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 12)


def as_torchtune(tensors: dict[str, torch.Tensor], model: CsmModel) -> dict[str, torch.Tensor]:
    """The original layout, made from the other one by going the way back."""
    parts = {ours: theirs for theirs, ours in _PARTS.items()}
    whole = {ours: theirs for theirs, ours in _WHOLE.items()}
    original = {}
    for key, tensor in tensors.items():
        if key.startswith("codec_model."):
            continue
        if key == "depth_decoder.model.embed_tokens.weight":
            original[whole[CODE_TABLE]] = tensor
            continue
        if key in whole:
            original[whole[key]] = tensor
            continue
        part = "backbone" if key.startswith(_STEMS["backbone"]) else "decoder"
        _, layer, name = key.removeprefix(_STEMS[part]).split(".", 2)
        if name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            shape = model.config.backbone if part == "backbone" else model.config.depth
            halves = tensor.view(-1, 2, shape.backbone.head_dim // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        original[f"{part}.layers.{layer}.{parts[name]}"] = tensor.contiguous()
    assert any(_LAYER.fullmatch(key) for key in original)
    return original


def test_the_original_layout_gives_the_same_model(folder, model, tmp_path):
    """There, neighbouring channels turn together: taken as they are, every layer would be wrong."""
    tensors = load_file(folder / "model.safetensors")
    save_file(as_torchtune(tensors, model), tmp_path / "model.safetensors")
    codec = {k.removeprefix("codec_model."): t for k, t in tensors.items() if "codec_model" in k}
    (tmp_path / "mimi").mkdir()
    save_file(codec, tmp_path / "mimi" / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    again = load(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
