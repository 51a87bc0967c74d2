"""Zonos on a small random checkpoint in the hub's layout, against a composed reference.

No package has this model: the reference is Glm of `transformers` with layer norms, and settings,
guidance, delays and end written out beside it (`oracles/zonos_lm.py`), and so is the encoder of
voices (`oracles/zonos_speaker.py`). Vectors of voices and logits: 1e-4. Prefix rows: 1e-5. Codes:
identical. PCM: 2e-5, as in `test_dac`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.spec import PlanRequest
from models.zonos.model import ZonosModel, load
from models.zonos.phonemes import phoneme_ids
from tests.engine.harness import Engine, check_giving_way, greedy
from tests.models.toy.reference import FullAttention
from tests.models.zonos.tiny import add_speaker_encoder, make_checkpoint, spell
from tests.parity.oracle import ask
from tests.parity.test_snac import whole

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "Why?",
    "Numbers like 42 come as they are.",
    "Nothing else.",
    "So long.",
    "With another voice.",
)
VOICED = 7
"""The text that is spoken with the voice of a recording."""
RATE_HZ = 16_000
N_FRAMES = 200
CONFIG = EngineConfig(max_streams=18, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
"""Nine pairs at once: each takes two places."""
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return add_speaker_encoder(make_checkpoint(tmp_path_factory.mktemp("zonos")))


@pytest.fixture(scope="module")
def model(folder) -> ZonosModel:
    loaded = load(folder)
    loaded.phonemize = spell
    return loaded


@pytest.fixture(scope="module")
def pcm() -> np.ndarray:
    """A second and a bit, of noise that swells."""
    draws = np.random.default_rng(4).standard_normal(19_000)
    return (0.2 * draws * np.linspace(0.2, 1, 19_000)).astype(np.float32)


@pytest.fixture(scope="module")
def plans(model, pcm) -> list[PromptPlan]:
    requests = [PlanRequest(text=text) for text in TEXTS]
    requests[VOICED] = replace(requests[VOICED], audio=pcm, audio_rate_hz=RATE_HZ)
    return [limited(greedy(model, model.plan(one)), N_FRAMES) for one in requests]


def limited(plan: PromptPlan, n_frames: int) -> PromptPlan:
    return replace(plan, max_frames=n_frames)


@pytest.fixture(scope="module")
def vector(folder, pcm) -> torch.Tensor:
    return ask("zonos_speaker", folder, {"pcm": torch.from_numpy(pcm)})["vector"]


@pytest.fixture(scope="module")
def reference(folder, vector) -> dict[str, torch.Tensor]:
    inputs = {f"phonemes{n}": torch.tensor(phoneme_ids(t, "-", spell)) for n, t in enumerate(TEXTS)}
    inputs[f"speaker{VOICED}"] = vector
    return ask("zonos_lm", folder, {**inputs, "n_frames": torch.tensor(N_FRAMES)})


def check(model, reference, got, n_frames=N_FRAMES) -> None:
    for idx, sound in enumerate(got):
        frames = reference[f"frames{idx % len(TEXTS)}"][:n_frames].clamp(max=63).unsqueeze(0)
        expected = whole(model.dac, frames)[0]
        np.testing.assert_allclose(sound, expected.numpy(), rtol=0, atol=TOLERANCE)


def test_a_recording_becomes_the_reference_s_vector(model, pcm, vector):
    got = model.speaker(torch.from_numpy(pcm))
    assert vector.std() > 0.1
    torch.testing.assert_close(got, vector, atol=1e-4, rtol=1e-4)
    other = model.speaker(torch.from_numpy(pcm[::-1].copy()))
    assert (got - other).abs().max() > 0.01


def test_settings_become_the_reference_s_rows(model, plans, reference):
    for idx, plan in enumerate(plans):
        told, blind = reference[f"prefix{idx}"]
        assert plan.companion is not None
        torch.testing.assert_close(plan.embeds[:-1], told, atol=1e-5, rtol=0)
        torch.testing.assert_close(plan.companion.embeds[:-1], blind, atol=1e-5, rtol=0)
        assert not torch.equal(told, blind)


def test_logits_of_both_rows_and_each_codebook_are_the_reference_s(model, plans, reference):
    for idx, plan in enumerate(plans):
        assert plan.companion is not None
        for row, one in enumerate((plan, plan.companion)):
            x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
            x = torch.where(one.embed_mask.unsqueeze(1), one.embeds, x)
            hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
            logits = model.heads(hidden)
            assert len(logits) == 9
            for codebook, got in enumerate(logits):
                expected = reference[f"logits{idx}"][row, codebook, : got.shape[1]]
                assert expected.std() > 0.5
                torch.testing.assert_close(got[0], expected, atol=1e-4, rtol=1e-4)


def test_a_guided_stream_says_what_the_reference_says(model, plans, reference):
    check(model, reference, Engine(model, CONFIG).speak(plans[:1], seeds=[0]))


def test_eight_pairs_in_a_batch_say_what_the_reference_says(model, plans, reference):
    takes = {tuple(map(tuple, reference[f"frames{n}"].tolist())) for n in range(8)}
    assert len(takes) == 8
    engine = Engine(model, CONFIG)
    ids = [engine.open(plan, seed=n) for n, plan in enumerate(plans)]
    engine.run(until=lambda: engine.loop.stats.n_slots_used == 16)
    engine.run()
    check(model, reference, [engine.pcm(stream_id) for stream_id in ids])


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    config = replace(CONFIG, prefill_rows_per_step=5)
    short = [limited(plan, 60) for plan in plans]
    check(model, reference, Engine(model, config).speak(short, seeds=range(8)), 60)


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[0])


@pytest.mark.parametrize("n_frames", [1, 2, 8, 9, 31])
def test_an_end_of_the_model_s_own_completes_the_frames_under_way(
    model, plans, monkeypatch, n_frames
):
    draw, rows = model.constrain, itertools.count()

    def constrain(state, logits, feed):
        first, *others = draw(state, logits, feed)
        if next(rows) == n_frames:
            first = first.index_fill(1, torch.tensor([model.config.eos]), 1e9)
        return [first, *others]

    monkeypatch.setattr(model, "constrain", constrain)
    engine = Engine(model, CONFIG)
    got = engine.speak(plans[:1], seeds=[0])
    assert len(got[0]) == n_frames * model.spec.frame.samples_per_frame
    assert np.abs(got[0]).max() > 0.01
    engine.check_is_empty()


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [limited(plan, 30) for plan in (*plans, plans[0])[:n_streams]]
    check(model, reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 30)
