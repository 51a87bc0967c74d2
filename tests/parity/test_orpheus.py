"""Orpheus on a small random checkpoint in the hub's layout, against `transformers` and `snac`.

Logits: 1e-4, float32 with sums in another order. Codes: identical. PCM: 1e-5, as in `test_snac`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.layers.conv import Span
from models.orpheus.config import N_SLOTS, SLOT_ORDER
from models.orpheus.model import OrpheusModel
from models.registry import load
from models.spec import PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy, let_it_end
from tests.models.orpheus.tiny import make_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "Why?",
    "Numbers like 42 come as they are.",
    "Ünïcödé is bytes here.",
    "So long.",
    "The last of eight.",
)
N_FRAMES = 200
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
SLOW_PREFILL = replace(CONFIG, prefill_rows_per_step=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("orpheus"))


@pytest.fixture(scope="module")
def model(folder) -> OrpheusModel:
    loaded = load(folder)
    assert isinstance(loaded, OrpheusModel)
    return loaded


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    voices = model.spec.voices
    requests = [PlanRequest(text=t, voice=voices[n]) for n, t in enumerate(TEXTS)]
    return [replace(greedy(model, model.plan(r)), max_frames=N_FRAMES) for r in requests]


@pytest.fixture(scope="module")
def reference(folder, plans) -> dict[str, torch.Tensor]:
    prompts = {f"prompt{idx}": plan.ids[:, 0] for idx, plan in enumerate(plans)}
    return ask("orpheus_lm", folder, {**prompts, "n_rows": torch.tensor(N_FRAMES * N_SLOTS)})


def pcm_of(model: OrpheusModel, rows: torch.Tensor) -> np.ndarray:
    """One-shot decoding of rows of ids."""
    n_codes = model.config.snac.n_codes
    codes = (rows - model.config.ids.first_code).view(-1, N_SLOTS) - n_codes * torch.arange(7)
    assert ((codes >= 0) & (codes < n_codes)).all()
    frames = codes[:, list(SLOT_ORDER)].unsqueeze(0)
    span = Span(start=torch.tensor([0]), end=torch.tensor([len(codes)]))
    return model.snac(frames, span)[0].numpy()


def check(model, plans, reference, pcm) -> None:
    for idx, got in zip(range(len(plans)), pcm, strict=True):
        expected = pcm_of(model, reference[f"rows{idx}"])
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_the_prompt_is_the_published_one(model, plans):
    ids = model.config.ids
    text = model.tokenizer.encode("tara: Hello there.", add_special_tokens=False).ids
    prompt = [ids.human_start, ids.text_start, *text, ids.text_end, ids.human_end, ids.ai_start]
    assert plans[0].ids[:, 0].tolist() == [*prompt, ids.speech_start]
    custom = model.tokenizer.token_to_id("<custom_token_0>")
    marks = (ids.speech_start, ids.speech_end, ids.human_start, ids.human_end, ids.ai_start)
    assert [mark - custom for mark in marks] == [1, 2, 3, 4, 5]
    assert ids.first_code - custom == 10


def test_logits_are_those_of_transformers(model, plans, reference):
    low, high = model.config.id_range
    for idx, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{idx}"][low:high]
        assert expected.std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)


def test_eight_streams_in_a_batch_say_what_transformers_says(model, plans, reference):
    got = Engine(model, CONFIG).speak(plans, seeds=range(len(plans)))
    check(model, plans, reference, got)


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    some = plans[1:4]
    got = Engine(model, SLOW_PREFILL).speak(some, seeds=range(len(some)))
    for idx, pcm in enumerate(got):
        np.testing.assert_allclose(
            pcm, pcm_of(model, reference[f"rows{idx + 1}"]), rtol=0, atol=1e-5
        )


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[0])


@pytest.mark.parametrize("n_rows", [0, 6, 7, 8, 28, 37, 63])
def test_an_end_of_the_model_s_own_leaves_all_whole_frames(
    model, plans, reference, monkeypatch, n_rows
):
    let_it_end(monkeypatch, model, torch.tensor([model.config.ids.speech_end]), n_rows)
    engine = Engine(model, CONFIG)
    (got,) = engine.speak(plans[:1], seeds=[0])
    n_frames = n_rows // N_SLOTS
    assert len(got) == n_frames * model.spec.frame.samples_per_frame
    if n_frames:
        expected = pcm_of(model, reference["rows0"][: n_frames * N_SLOTS])
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    engine.check_is_empty()


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [replace(plan, max_frames=12) for plan in (*plans, plans[0])[:n_streams]]
    got = Engine(model, CONFIG).speak(short, seeds=range(n_streams))
    for idx, pcm in enumerate(got):
        expected = pcm_of(model, reference[f"rows{idx % len(plans)}"][: 12 * N_SLOTS])
        np.testing.assert_allclose(pcm, expected, rtol=0, atol=1e-5)
