"""Qwen3-TTS on a small random checkpoint in its own layout, against `qwen-tts`.

Prompt rows and logits: 1e-4, float32 with sums in another order. Codes: identical. PCM: 2e-3, which
is what halves in the codec's memory cost (`test_qwen_codec`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.qwen3_tts.model import QwenTtsModel, load
from models.qwen3_tts.prompt import INSTRUCTED
from models.spec import PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy, let_it_end
from tests.models.qwen3_tts.tiny import make_checkpoint, make_design_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask
from tests.parity.test_mimi import stream

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that it still feeds text when all of the others have none left.",
    "Why?",
    "Numbers like 42 come as they are.",
    "Ünïcödé is bytes here.",
    "So long.",
    "In a whisper.",
)
VOICES = ("vivian", "dylan", "ryan")
LANGUAGES = ("auto", "chinese", "english")
INSTRUCTIONS = "Very slowly."
WHOLE = (5, 7)
"""Texts that stand before the speech, as the reference has them by default."""
TEMPLATE = "<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>assistant\n"
N_FRAMES = 200
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("qwen3_tts"))


@pytest.fixture(scope="module")
def model(folder) -> QwenTtsModel:
    return load(folder)


def request(n: int) -> PlanRequest:
    return PlanRequest(
        text=TEXTS[n],
        voice=VOICES[n % 3],
        language=LANGUAGES[n // 3],
        options={
            **({"instructions": INSTRUCTIONS} if n == 7 else {}),
            **({"whole_text": True} if n in WHOLE else {}),
        },
    )


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    made = [greedy(model, model.plan(request(n))) for n in range(8)]
    return [replace(plan, max_frames=N_FRAMES) for plan in made]


@pytest.fixture(scope="module")
def reference(folder, model) -> dict[str, torch.Tensor]:
    def ids(text: str) -> torch.Tensor:
        return torch.tensor(model.tokenizer.encode(text, add_special_tokens=False).ids)

    inputs = {"n_frames": torch.tensor(N_FRAMES)}
    for n, text in enumerate(TEXTS):
        inputs[f"prompt{n}"] = ids(TEMPLATE.format(text))
        inputs[f"voice{n}"] = torch.tensor(n % 3)
        inputs[f"language{n}"] = torch.tensor(n // 3)
    inputs["instructions7"] = ids(INSTRUCTED.format(INSTRUCTIONS))
    inputs |= {f"whole{n}": torch.tensor(1) for n in WHOLE}
    return ask("qwen_lm", folder, inputs, apart="qwen")


def check(model, reference, got, n_frames=N_FRAMES) -> None:
    for idx, sound in enumerate(got):
        frames = reference[f"frames{idx % len(TEXTS)}"][:n_frames]
        assert len(frames) == n_frames
        expected = stream(model.codec, frames.unsqueeze(0), [len(frames)])[0]
        np.testing.assert_allclose(sound, expected.numpy(), rtol=0, atol=TOLERANCE)


def check_logits(model, plans, reference) -> None:
    """The rows of each prompt, and what follows from them."""
    for n, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        torch.testing.assert_close(x, reference[f"rows{n}"], atol=1e-4, rtol=1e-4)
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{n}"]
        assert expected.std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)


def test_prompts_and_their_logits_are_the_reference_s(model, plans, reference):
    """With all voices and languages, a dialect among them, and with instructions."""
    check_logits(model, plans, reference)


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


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[0])


@pytest.mark.parametrize("n_frames", [2, 3, 5, 8, 31])
def test_an_end_of_the_model_s_own_leaves_all_frames(
    model, plans, reference, monkeypatch, n_frames
):
    end = torch.full((model.spec.n_columns,), model.config.marks.eos)
    let_it_end(monkeypatch, model, end, n_frames)
    engine = Engine(model, CONFIG)
    got = engine.speak(plans[:1], seeds=[0])
    assert len(got[0]) == n_frames * model.spec.frame.samples_per_frame
    check(model, reference, got, n_frames)
    engine.check_is_empty()


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [replace(plan, max_frames=12) for plan in (*plans, plans[0])[:n_streams]]
    check(model, reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 12)


def test_text_that_comes_while_it_speaks_changes_nothing(model, plans, reference):
    """Fed in pieces, with waits between them in which the stream starves."""
    text = TEXTS[2]
    first, *rest = (text[:5], text[5:20], text[20:21], text[21:])
    opening = replace(request(2), text=first, is_text_final=False)
    plan = replace(greedy(model, model.plan(opening)), max_frames=N_FRAMES)
    engine = Engine(model, CONFIG)
    stream_id = engine.open(plan)
    for idx, piece in enumerate(rest):
        for _ in range(40):
            engine.step()
        ids = model.extend(plan, piece, is_final=False).tolist()
        engine.extend(stream_id, ids, is_final=idx == len(rest) - 1)
    engine.run()
    check_frames = reference["frames2"]
    expected = stream(model.codec, check_frames.unsqueeze(0), [N_FRAMES])[0]
    np.testing.assert_allclose(engine.pcm(stream_id), expected.numpy(), rtol=0, atol=TOLERANCE)


DESIGNS = (("Hello there.", "A calm old man."), ("Why? 42!", None), (TEXTS[2], "Young, and fast."))
"""Texts, and voices in words."""


def test_voices_in_words_are_the_reference_s(tmp_path):
    """A VoiceDesign checkpoint has no speakers: prompt, logits and 60 frames, three in a batch."""
    folder = make_design_checkpoint(tmp_path)
    model = load(folder)
    assert model.spec.voices == ()

    def ids(text: str) -> torch.Tensor:
        return torch.tensor(model.tokenizer.encode(text, add_special_tokens=False).ids)

    plans, inputs = [], {"n_frames": torch.tensor(60)}
    for n, (text, voice) in enumerate(DESIGNS):
        options = {} if voice is None else {"instructions": voice}
        asked = PlanRequest(text=text, language=LANGUAGES[n], options=options)
        plans.append(replace(greedy(model, model.plan(asked)), max_frames=60))
        inputs[f"prompt{n}"] = ids(TEMPLATE.format(text))
        inputs[f"language{n}"] = torch.tensor(n)
        if voice is not None:
            inputs[f"instructions{n}"] = ids(INSTRUCTED.format(voice))
    reference = ask("qwen_design", folder, inputs, apart="qwen")
    check_logits(model, plans, reference)
    assert not torch.equal(reference["frames0"], reference["frames1"])
    check(model, reference, Engine(model, CONFIG).speak(plans, seeds=range(3)), 60)
