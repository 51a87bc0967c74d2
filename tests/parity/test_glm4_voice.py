"""GLM-4-Voice on a small random checkpoint in the hub's layout, against `transformers`.

Logits: 1e-4, float32 with sums in another order; GlmForCausalLM under ChatGLM's keys. Ids:
identical, in the free form of the reference and in runs (composed: `oracles/glm_lm.py`). PCM: 1e-4,
whole streams by the same codec, which `test_glm_flow` holds to its classes. Speech tokens:
identical to a composed reference (`oracles/glm_hearing.py`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.glm4_voice.config import HEARING_FOLDER, SPEECH_RUN, TEXT_RUN
from models.glm4_voice.hearing import PIECE_SAMPLES
from models.glm4_voice.model import GlmVoiceModel, load
from models.registry import load as load_any
from models.spec import Message, PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy, let_it_end
from tests.models.glm4_voice.tiny import make_checkpoint, stream
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask

TEXTS = (
    "Hello there.",
    "",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "Why?",
    "",
    "Ünïcödé is bytes here: 你好.",
    "So long.",
    "The last of eight.",
)
SAID = (Message(role="user", text="Hi!"), Message(role="assistant", text="Yes?"))
N_ROWS, N_SHORT = 200, 20
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=64, target_load=1.0)
LENGTHS = (1, 300, 1280, 1281, 20_000, 95_000, PIECE_SAMPLES + 40_000)
"""Samples of what is heard: less than a token, whole ones, several blocks, more than a piece."""


def sound(n_samples: int, seed: int) -> np.ndarray:
    """Tones and noise, now loud and now soft, now high and now low."""
    draw = np.random.default_rng(seed)
    pitch, loudness = draw.uniform(size=(2, n_samples // 900 + 1)).repeat(900, axis=1)[
        :, :n_samples
    ]
    wave = np.sin(0.4 * np.pi * np.cumsum(pitch)) + 0.1 * draw.standard_normal(n_samples)
    return (0.5 * wave * 10 ** (-2 * loudness)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("glm4_voice"))


@pytest.fixture(scope="module")
def model(folder) -> GlmVoiceModel:
    loaded = load_any(folder)
    assert isinstance(loaded, GlmVoiceModel)
    return loaded


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    requests = [
        PlanRequest(
            text=text,
            messages=SAID * (n % 3),
            audio=None if text else sound(9000 * n, n),
            audio_rate_hz=None if text else 16_000,
        )
        for n, text in enumerate(TEXTS)
    ]
    return [capped(greedy(model, model.plan(one)), N_ROWS) for one in requests]


def capped(plan: PromptPlan, n_rows: int) -> PromptPlan:
    return replace(plan, max_rows=n_rows)


@pytest.fixture(scope="module")
def reference(folder, plans) -> dict[str, torch.Tensor]:
    prompts = {f"prompt{n}": plan.ids[:, 0].clone() for n, plan in enumerate(plans)}
    return ask("glm_lm", folder, {**prompts, "n_rows": torch.tensor(N_ROWS)})


def codes_of(model: GlmVoiceModel, rows: torch.Tensor) -> torch.Tensor:
    return rows[rows >= model.config.ids.first_code] - model.config.ids.first_code


def check(model, plans, rows: list[torch.Tensor], config: EngineConfig = CONFIG) -> None:
    """Streams that run together draw these ids; text and sound of them come out."""
    engine = Engine(model, config)
    ids = [engine.open(plan, seed=n) for n, plan in enumerate(plans)]
    engine.run()
    for stream_id, plan, expected in zip(ids, plans, rows, strict=True):
        end = engine.finished(stream_id)
        assert end.rows is not None
        # The last one drawn was not fed.
        assert end.rows[len(plan.ids) :, 0].tolist() == expected[:-1].tolist()
        text = expected[expected < model.config.n_text].tolist()
        assert engine.text(stream_id) == model.tokenizer.decode(text)
        assert end.n_frames == len(codes_of(model, expected))
        assert end.n_samples == end.n_frames * 1764
        assert len(engine.pcm(stream_id)) == end.n_samples
    engine.check_is_empty()


def test_logits_are_those_of_transformers(model, plans, reference):
    for n, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{n}"][: model.config.n_ids]
        assert expected.std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)


def test_eight_streams_in_a_batch_say_what_the_reference_says(model, plans, reference):
    rows = [reference[f"rows{n}"] for n in range(len(plans))]
    first = model.config.ids.first_code
    ends = [int((one[:TEXT_RUN] >= first).sum()) for one in rows]
    assert 0 in ends, "some text goes on"
    assert len({tuple(one.tolist()) for one in rows}) == len(rows)
    check(model, plans, rows)


@pytest.mark.parametrize("n_rows", [70, TEXT_RUN + 20])
def test_a_stream_sounds_as_its_speech_tokens_do(model, plans, reference, n_rows):
    """Alone, in a batch, and whether its end is known with the last whole chunk or after it."""
    codes = codes_of(model, reference["rows0"][:n_rows])
    expected = np.concatenate(stream(model.codec, codes))
    some = [capped(plan, n_rows) for plan in plans[:3]]
    (alone,) = Engine(model, CONFIG).speak(some[:1], seeds=[0])
    together = Engine(model, CONFIG).speak(some, seeds=range(len(some)))[0]
    assert np.abs(expected).max() > 0.02
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(together, expected, rtol=0, atol=1e-4)


def test_the_free_form_is_the_reference_s(folder, plans, reference):
    free = load(folder, forces_runs=False)
    some = (0, 3, 5)
    rows = [reference[f"free{n}"] for n in some]
    assert all(len(codes_of(free, one)) for one in rows)
    check(free, [plans[n] for n in some], rows)


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    rows = [reference[f"rows{n}"][:N_SHORT] for n in range(2)]
    short = [capped(plan, N_SHORT) for plan in plans[:2]]
    check(model, short, rows, replace(CONFIG, prefill_rows_per_step=7))


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [capped(plan, N_SHORT) for plan in (*plans, plans[0])[:n_streams]]
    rows = [reference[f"rows{n % len(plans)}"][:N_SHORT] for n in range(n_streams)]
    check(model, short, rows)


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, replace(plans[3], max_rows=60), n_frames=24)


@pytest.mark.parametrize("n_rows", [TEXT_RUN + 1, TEXT_RUN + 12, TEXT_RUN + SPEECH_RUN])
def test_an_end_of_the_model_s_own_leaves_all_that_was_spoken(
    model, plans, reference, monkeypatch, n_rows
):
    let_it_end(monkeypatch, model, torch.tensor(model.config.ids.ends[1:2]), n_rows)
    engine = Engine(model, CONFIG)
    stream_id = engine.open(plans[0])
    engine.run()
    end = engine.finished(stream_id)
    n_frames = len(codes_of(model, reference["rows0"][:n_rows]))
    assert (end.reason, end.n_frames) == ("stop", n_frames)
    assert len(engine.pcm(stream_id)) == n_frames * 1764
    engine.check_is_empty()


def test_a_second_turn_goes_on_from_the_rows_of_the_first(model, plans):
    """It prefills what is new alone, and draws what a full prefill would have it draw."""
    engine = Engine(model, CONFIG)
    first = engine.open(capped(plans[1], 60))
    engine.run()
    history = engine.finished(first).rows
    asked = PlanRequest(text="And then?", history=history)
    second = capped(greedy(model, model.plan(asked)), 60)
    assert second.ids[: len(history)].tolist() == history.tolist()
    ids = second.ids[len(history) :, 0].tolist()
    assert ids[0] == model.config.ids.user
    n_prefilled = []
    runner = engine.loop._device.runner
    prefill = runner.prefill
    runner.prefill = lambda batch: n_prefilled.append(len(batch.ids)) or prefill(batch)
    stream_id = engine.open(second)
    engine.run()
    assert sum(n_prefilled) == len(second.ids) - len(history) // CONFIG.page_size * CONFIG.page_size
    fresh = Engine(model, CONFIG)
    again = fresh.open(second)
    fresh.run()
    assert engine.finished(stream_id).rows.tolist() == fresh.finished(again).rows.tolist()
    np.testing.assert_allclose(engine.pcm(stream_id), fresh.pcm(again), rtol=0, atol=1e-4)


def test_speech_tokens_are_the_reference_s(folder, model):
    heard = {f"pcm{n}": torch.from_numpy(sound(n, n)) for n in LENGTHS}
    expected = ask("glm_hearing", folder / HEARING_FOLDER, heard)
    for n in LENGTHS:
        got = model.hearing.tokens(heard[f"pcm{n}"])
        assert len(got) == -(-n // 1280)
        assert got.tolist() == expected[f"tokens{n}"].tolist()
    assert len(set(expected[f"tokens{LENGTHS[-1]}"].tolist())) > 8


def test_what_is_heard_does_not_depend_on_what_is_heard_with_it(model):
    pieces = [torch.from_numpy(sound(n, n)) for n in (20_000, 31_000, 25_001)]
    alone = [model.hearing.tokens(one).tolist() for one in pieces]
    together = model.hearing._run(pieces)
    assert [one.tolist() for one in together] == alone
