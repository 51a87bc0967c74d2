"""Chatterbox's LM on small random weights in its layout, against its own class, `T3`.

Rows of the prompt: 1e-5. Logits: 1e-4. Speech tokens: identical; a codec that spells them takes the
place of the real one, which `test_chatterbox_codec` has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from engine.config import EngineConfig
from models.base import PromptPlan
from models.chatterbox.config import ENGLISH_LM, SAMPLES_PER_FRAME, SPEECH, lm_config
from models.chatterbox.lm import SpeechLm
from models.chatterbox.model import ChatterboxModel
from models.chatterbox.text import TextReader
from models.spec import PlanRequest, SamplingParams
from models.weights import read_tensors
from tests.engine.harness import Engine, check_giving_way
from tests.models.chatterbox.tiny import SpellingCodec, make_tokenizer, make_voice
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "why?",
    "Numbers like 42 come as they are.",
    "Nothing else.",
    "So long...",
    "With another voice.",
)
FEELINGS = (0.5, 0.5, 0.5, 0.25, 1.0, 0.5, 0.5, 1.5)
N_FRAMES = (200, 200, 48, 48, 48, 48, 48, 48)
"""Of each text: a step of the reference takes as long as one of eight of ours."""
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=64, target_load=1.0)
GREEDY = SamplingParams(temperature=0.0, repetition_penalty=1.2, repetition_window=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chatterbox")
    make_tokenizer(folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def reader(folder) -> TextReader:
    return TextReader(Tokenizer.from_file(str(folder / "tokenizer.json")), source="tokenizer")


@pytest.fixture(scope="module")
def model(folder, reader, reference) -> ChatterboxModel:
    weights = read_tensors(folder / ENGLISH_LM)
    config = lm_config(weights, n_codes=6561, source=ENGLISH_LM)
    return ChatterboxModel(
        "chatterbox",
        lm=SpeechLm(config, weights, source=ENGLISH_LM),
        codec=SpellingCodec(),
        reader=reader,
        languages=("en",),
        listener=None,
        voice=make_voice(0),
    )


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    """A text each, of two voices; greedy, as penalised as the reference is."""
    made = []
    for idx, (text, feeling) in enumerate(zip(TEXTS, FEELINGS, strict=True)):
        model.voice = make_voice(idx % 2)
        plan = model.plan(PlanRequest(text=text, options={"exaggeration": feeling}))
        made.append(replace(plan, sampling={SPEECH: GREEDY}, max_frames=N_FRAMES[idx]))
    return made


@pytest.fixture(scope="module")
def reference(folder, reader) -> dict[str, torch.Tensor]:
    """It leaves its weights in the folder."""
    inputs = {"n_frames": torch.tensor(N_FRAMES)}
    for idx, (text, feeling) in enumerate(zip(TEXTS, FEELINGS, strict=True)):
        voice = make_voice(idx % 2)
        inputs |= {
            f"text{idx}": torch.tensor(reader.ids(text, "en")),
            f"tokens{idx}": voice.tokens,
            f"speaker{idx}": voice.speaker,
            f"feeling{idx}": torch.tensor([feeling]),
        }
    return ask("chatterbox_lm", folder, inputs, apart="audio")


def limited(plan: PromptPlan, n_frames: int) -> PromptPlan:
    return replace(plan, max_frames=n_frames)


def check(reference: dict[str, torch.Tensor], got: list[np.ndarray], n_frames=200) -> None:
    for idx, sound in enumerate(got):
        expected = reference[f"codes{idx % len(TEXTS)}"][:n_frames].tolist()
        assert sound[::SAMPLES_PER_FRAME].astype(int).tolist() == expected


def rows_of(model: ChatterboxModel, plan: PromptPlan) -> torch.Tensor:
    """What the decoder is given of a prompt."""
    x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
    return torch.where(plan.embed_mask.unsqueeze(1), plan.embeds, x)


def test_prompts_are_the_reference_s(model, plans, reference):
    """Its quirk too: the id that begins the speech stands twice, both times at place 0."""
    for idx, plan in enumerate(plans):
        for row, one in enumerate((plan, plan.companion)):
            expected = reference[f"prompt{idx}"][row]
            torch.testing.assert_close(rows_of(model, one), expected, atol=1e-5, rtol=0)
        assert not torch.equal(*reference[f"prompt{idx}"])


def test_logits_of_both_of_a_pair_are_the_reference_s(model, plans, reference):
    for idx, plan in enumerate(plans):
        for row, one in enumerate((plan, plan.companion)):
            x = rows_of(model, one)
            hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
            (logits,) = model.heads(hidden)
            expected = reference[f"logits{idx}"][row, : logits.shape[1]]
            assert expected.std() > 0.5
            torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_a_guided_stream_says_what_the_reference_says(model, plans, reference):
    check(reference, Engine(model, CONFIG).speak(plans[:1], seeds=[0]))


def test_eight_pairs_in_a_batch_say_what_the_reference_says(model, plans, reference):
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
    short = [limited(plan, 16) for plan in (*plans, plans[0])[:n_streams]]
    check(reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 16)
