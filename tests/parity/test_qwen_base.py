"""Qwen3-TTS Base against `qwen-tts`: voices of recordings, by their sound or with their words.

Vectors, prompt rows and logits: 1e-4, float32 with sums in another order. Codes: identical. PCM:
2e-3, which is what halves in the codec's memory cost (`test_qwen_codec`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.audio.reference import Reference
from models.base import PromptPlan
from models.qwen3_tts.model import QwenTtsModel, load
from models.spec import PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy
from tests.models.qwen3_tts.tiny import make_base_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask
from tests.parity.test_mimi import stream

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that it still feeds text when all of the others have none left.",
    "Why?",
    "Numbers like 42 come as they are.",
    "Ünïcödé is bytes here, and there are more of them than the recording has frames.",
    "So long.",
    "In another voice.",
)
WORDS = (None, "This is how I sound.", None, "And so do I.", None, "Me too.", "Hear me.", None)
"""Of the recordings; without them only their sound counts."""
LANGUAGES = ("auto", "chinese", "english")
RATE_HZ = 24_000
SECONDS = (1.2, 3.0)
"""Shorter and longer than most texts have rows."""
TEMPLATE = "<|im_start|>assistant\n{}<|im_end|>\n"
N_FRAMES = (200, 200, 200, 200, 60, 60, 60, 60)
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_base_checkpoint(tmp_path_factory.mktemp("qwen3_tts"))


@pytest.fixture(scope="module")
def model(folder) -> QwenTtsModel:
    return load(folder)


def recording(n: int) -> np.ndarray:
    """Noise that swells, of a colour of its own; it ends within a frame."""
    n_samples = round(SECONDS[n % 4 // 2] * RATE_HZ) + 77
    draws = np.random.default_rng(n % 2).standard_normal(n_samples)
    coloured = np.convolve(draws, np.ones(1 + 5 * (n % 2)), "same")
    return (0.1 * coloured * np.linspace(0.2, 1.0, n_samples)).astype(np.float32)


def request(n: int) -> PlanRequest:
    words = WORDS[n]
    return PlanRequest(
        text=TEXTS[n],
        language=LANGUAGES[n // 3],
        audio=recording(n),
        audio_rate_hz=RATE_HZ,
        options={} if words is None else {"reference_text": words},
    )


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    made = [greedy(model, model.plan(request(n))) for n in range(8)]
    return [replace(plan, max_frames=n) for plan, n in zip(made, N_FRAMES, strict=True)]


@pytest.fixture(scope="module")
def reference(folder, model) -> dict[str, torch.Tensor]:
    def ids(text: str) -> torch.Tensor:
        return torch.tensor(model.tokenizer.encode(text, add_special_tokens=False).ids)

    inputs = {}
    for n, text in enumerate(TEXTS):
        inputs[f"n_frames{n}"] = torch.tensor(N_FRAMES[n])
        inputs[f"prompt{n}"] = ids(TEMPLATE.format(text) + "<|im_start|>assistant\n")
        inputs[f"pcm{n}"] = torch.from_numpy(recording(n))
        inputs[f"language{n}"] = torch.tensor(n // 3)
        words = WORDS[n]
        if words is not None:
            inputs[f"words{n}"] = ids(TEMPLATE.format(words))
    return ask("qwen_base", folder, inputs, apart="qwen")


def check(model, reference, got, n_most=200) -> None:
    for idx, sound in enumerate(got):
        n = idx % len(TEXTS)
        frames = reference[f"frames{n}"][:n_most]
        assert len(frames) == min(n_most, N_FRAMES[n])
        before = reference[f"codes{n}"] if WORDS[n] is not None else frames[:0]
        whole = torch.cat([before, frames])
        expected = stream(model.codec, whole.unsqueeze(0), [len(whole)])[0][1920 * len(before) :]
        np.testing.assert_allclose(sound, expected.numpy(), rtol=0, atol=TOLERANCE)


def test_recordings_become_the_reference_s_vectors_and_codes(model, reference):
    for n in range(4):
        heard = Reference(pcm=recording(n), rate_hz=RATE_HZ, key=f"recording {n}")
        voice = model.voices.voice(heard, model.codec, has_words=True)
        torch.testing.assert_close(voice.vector, reference[f"vector{n}"], atol=1e-4, rtol=1e-4)
        assert torch.equal(voice.frames, reference[f"codes{n}"])
        assert len(voice.frames) == -(-len(recording(n)) // 1920)
    assert (reference["vector0"] - reference["vector1"]).abs().max() > 0.1


def test_prompts_and_their_logits_are_the_reference_s(model, plans, reference):
    n_left = set()
    for n, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        x = torch.where(plan.embed_mask.unsqueeze(1), plan.embeds, x)
        torch.testing.assert_close(x, reference[f"rows{n}"], atol=1e-4, rtol=1e-4)
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{n}"]
        assert expected.std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)
        n_left.add((WORDS[n] is not None, len(plan.text_ids) > 0))
    assert n_left == {(True, True), (True, False), (False, True)}


def test_a_stream_says_what_the_reference_says(model, plans, reference):
    check(model, reference, Engine(model, CONFIG).speak(plans[:1], seeds=[0]))


def test_eight_streams_in_a_batch_say_what_the_reference_says(model, plans, reference):
    takes = {tuple(map(tuple, reference[f"frames{n}"].tolist())) for n in range(8)}
    assert len(takes) == 8
    check(model, reference, Engine(model, CONFIG).speak(plans, seeds=range(8)))


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    config = replace(CONFIG, prefill_rows_per_step=5)
    short = [replace(plan, max_frames=60) for plan in plans]
    check(model, reference, Engine(model, config).speak(short, seeds=range(8)), 60)


@pytest.mark.parametrize("n", [0, WORDS.index(None)])
def test_giving_way_and_coming_back_changes_nothing(model, plans, n):
    """Rows that are no ids are in the prompt; with words the codec goes on from the recording."""
    check_giving_way(model, plans[n])


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [replace(plan, max_frames=12) for plan in (*plans, plans[0])[:n_streams]]
    check(model, reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 12)


def test_text_that_comes_while_it_speaks_changes_nothing(model, plans, reference):
    """With the voice's sound alone; with its words the text must be whole."""
    opening = replace(request(2), text=TEXTS[2][:5], is_text_final=False)
    plan = replace(greedy(model, model.plan(opening)), max_frames=60)
    engine = Engine(model, CONFIG)
    stream_id = engine.open(plan)
    for _ in range(20):
        engine.step()
    ids = model.extend(plan, TEXTS[2][5:], is_final=True).tolist()
    engine.extend(stream_id, ids, is_final=True)
    engine.run()
    expected = stream(model.codec, reference["frames2"][:60].unsqueeze(0), [60])[0]
    np.testing.assert_allclose(engine.pcm(stream_id), expected.numpy(), rtol=0, atol=TOLERANCE)
