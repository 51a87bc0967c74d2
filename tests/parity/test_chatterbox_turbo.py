"""Chatterbox Turbo on small random weights in its layout, against its own classes.

Logits: 1e-4. Speech tokens: identical, by a codec that spells them. Mel frames of its flow, which
is told where a step ends, made at once: 2e-4.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.chatterbox.config import SAMPLES_PER_FRAME, SPEECH
from models.chatterbox.files import read_codec
from models.chatterbox.turbo import TurboModel
from models.chatterbox.turbo_lm import TurboLm, turbo_config
from models.chatterbox.turbo_prompt import CODEC, read_gpt2_tokenizer, text_ids
from models.codecs.flow import flow_noise
from models.codecs.hift_source import first_phases, noise_table
from models.spec import PlanRequest, SamplingParams
from models.weights import read_tensors
from tests.engine.harness import Engine, check_giving_way
from tests.models.chatterbox.tiny import SpellingCodec, make_byte_tokenizer, make_voice
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask
from tests.parity.test_chatterbox_codec import at_once

TEXTS = (
    "Hello there.",
    "One two three <laugh> four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "why?",
    "Numbers like 42 come as they are.",
    "Nothing else.",
    "So long...",
    "With another voice.",
)
N_FRAMES = (200, 40, 40, 40, 40, 40, 40, 40)
LM = "t3_turbo_v1.safetensors"
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=64, target_load=1.0)
GREEDY = SamplingParams(temperature=0.0, repetition_penalty=1.2, repetition_window=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("turbo")
    make_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder, reference) -> TurboModel:
    weights = read_tensors(folder / LM)
    config = turbo_config(weights, n_codes=6561, source=LM)
    return TurboModel(
        lm=TurboLm(config, weights, source=LM),
        codec=SpellingCodec(),
        tokenizer=read_gpt2_tokenizer(folder, config.n_text_ids),
        listener=None,
        voice=make_voice(0),
    )


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    """A text each, of two voices; greedy, as penalised as the reference is."""
    made = []
    for idx, text in enumerate(TEXTS):
        model.voice = make_voice(idx % 2)
        plan = model.plan(PlanRequest(text=text))
        made.append(replace(plan, sampling={SPEECH: GREEDY}, max_frames=N_FRAMES[idx]))
    return made


@pytest.fixture(scope="module")
def reference(folder) -> dict[str, torch.Tensor]:
    """It leaves its weights in the folder."""
    tokenizer = read_gpt2_tokenizer(folder, 400)
    inputs = {"n_frames": torch.tensor(N_FRAMES)}
    for idx, text in enumerate(TEXTS):
        voice = make_voice(idx % 2)
        inputs |= {
            f"text{idx}": torch.tensor(text_ids(text, tokenizer)),
            f"tokens{idx}": voice.tokens,
            f"speaker{idx}": voice.speaker,
        }
    return ask("chatterbox_turbo", folder, inputs, apart="audio")


def limited(plan: PromptPlan, n_frames: int) -> PromptPlan:
    return replace(plan, max_frames=n_frames)


def check(reference: dict[str, torch.Tensor], got: list[np.ndarray], n_frames=200) -> None:
    for idx, sound in enumerate(got):
        expected = reference[f"codes{idx % len(TEXTS)}"][:n_frames].tolist()
        assert sound[::SAMPLES_PER_FRAME].astype(int).tolist() == expected


def test_logits_of_the_prompt_are_the_reference_s(model, plans, reference):
    for idx, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        x = torch.where(plan.embed_mask.unsqueeze(1), plan.embeds, x)
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        (logits,) = model.heads(hidden)
        expected = reference[f"logits{idx}"]
        assert expected.std() > 0.5
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_a_stream_says_what_the_reference_says(model, plans, reference):
    check(reference, Engine(model, CONFIG).speak(plans[:1], seeds=[0]))


def test_eight_in_a_batch_say_what_the_reference_says(model, plans, reference):
    assert len({tuple(reference[f"codes{n}"].tolist()) for n in range(8)}) == 8
    check(reference, Engine(model, CONFIG).speak(plans, seeds=range(8)))


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    config = replace(CONFIG, prefill_rows_per_step=7)
    short = [limited(plan, 40) for plan in plans]
    check(reference, Engine(model, config).speak(short, seeds=range(8)), 40)


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[0])


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [limited(plan, 20) for plan in (*plans, plans[0])[:n_streams]]
    check(reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 20)


def test_mel_frames_in_two_steps_are_the_reference_s(tmp_path):
    generator = torch.Generator().manual_seed(12)
    inputs = {
        "is_mean": torch.ones(1),
        "recording": 0.2 * torch.randn(14_400, generator=generator),
        "recording_16k": 0.2 * torch.randn(9_600, generator=generator),
        "tokens": torch.randint(0, 6561, (1, 20), generator=generator),
        "flow_noise": flow_noise(80),
        "noise": noise_table(9),
        "phases": first_phases(9),
    }
    reference = ask("chatterbox_codec", tmp_path, inputs, apart="audio")
    codec = read_codec(tmp_path, CODEC)
    voice = replace(
        make_voice(0),
        prompt_tokens=reference["prompt_token"][0],
        prompt_mel=reference["prompt_feat"][0],
        embedding=reference["embedding"][0],
    )
    assert reference["mel"].std() > 0.5
    mel = at_once(codec, voice, inputs["tokens"][0])
    torch.testing.assert_close(mel, reference["mel"][0], atol=2e-4, rtol=0)
