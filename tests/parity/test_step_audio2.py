"""Step-Audio 2 on a small random checkpoint in the published layout, against a composed reference.

Its remote code is in no release: the reference is Qwen2 and layers of Whisper's encoder, both of
`transformers`, with pooling, adapter and prompts written out (`oracles/step_lm.py`). Rows of heard
audio: 1e-4. Logits: 1e-4. Ids of 200 rows: identical. What is made of the codes: `test_step_flow`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from engine.config import EngineConfig
from models.base import Decoded, PromptPlan
from models.checkpoint import read_safetensors
from models.hugging_face import read_tokenizer
from models.spec import CodecSpec, Message, PlanRequest
from models.step_audio2.config import read_step_config
from models.step_audio2.facts import SAMPLES_PER_FRAME
from models.step_audio2.model import StepModel
from tests.engine.harness import Engine, check_giving_way, greedy
from tests.models.checkpoints import made
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask

RATE_HZ = 16_000
SECONDS = (0.0, 0.7, 0.0, 1.53, 0.0, 26.3, 0.04, 0.0)
"""Of what is heard; 0 where a text is read out, or a written message answered."""
SAID = Message(role="user", text="Hi!"), Message(role="assistant", text="Yes? <|EOT|>")
REQUESTS = (
    PlanRequest(text="Hello there."),
    PlanRequest(text=""),
    PlanRequest(text="", messages=(*SAID, Message(role="user", text="Why?"))),
    PlanRequest(text="", messages=(Message(role="system", text="Be brief."), *SAID)),
    PlanRequest(text="你好, is bytes here."),
    PlanRequest(text="Look at that:", messages=SAID),
    PlanRequest(text=""),
    PlanRequest(text="A longer text, so that its prompt takes more rows than most of the others."),
)
N_ROWS, N_SHORT = 200, 20
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
N_CODES = 6561


class Numbers(nn.Module):
    """A detokenizer whose samples are the codes, so that PCM tells them."""

    codec = CodecSpec(chunk_frames=(1, 4, 16))
    names = ()

    @property
    def token2wav(self) -> Numbers:
        return self

    def state(self, request, options, spec) -> dict[str, torch.Tensor]:
        return {}

    def decode(self, frames, n_valid, state, is_first, is_last) -> Decoded:
        pcm = (frames[:, :, 0].float() + 1) / (2 * N_CODES)
        return Decoded(
            pcm=pcm.repeat_interleave(SAMPLES_PER_FRAME, dim=1),
            n_samples=n_valid * SAMPLES_PER_FRAME,
            state=state,
        )


def codes_of(pcm: np.ndarray) -> list[int]:
    return (pcm[::SAMPLES_PER_FRAME] * 2 * N_CODES - 1).round().astype(int).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A copy to work in."""
    return Path(shutil.copytree(made("step-audio2"), tmp_path_factory.mktemp("step") / "copy"))


@pytest.fixture(scope="module")
def model(folder) -> StepModel:
    config = read_step_config(folder)
    return StepModel(config, read_tokenizer(folder), read_safetensors(folder), Numbers())


def heard(seconds: float) -> np.ndarray | None:
    """Noise: nothing at its ends is taken for silence."""
    n_samples = round(seconds * RATE_HZ)
    if not n_samples:
        return None
    return 0.1 * np.random.default_rng(n_samples).standard_normal(n_samples, dtype=np.float32)


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    planned = []
    for request, seconds in zip(REQUESTS, SECONDS, strict=True):
        audio = heard(seconds)
        rate_hz = None if audio is None else RATE_HZ
        plan = model.plan(replace(request, audio=audio, audio_rate_hz=rate_hz))
        planned.append(replace(greedy(model, plan), max_frames=N_ROWS, max_rows=N_ROWS))
    return planned


@pytest.fixture(scope="module")
def reference(folder, plans) -> dict[str, torch.Tensor]:
    asked = {f"prompt{n}": plan.ids[:, 0] for n, plan in enumerate(plans)}
    for n, seconds in enumerate(SECONDS):
        audio = heard(seconds)
        if audio is not None:
            asked[f"pcm{n}"] = torch.from_numpy(audio)
    return ask("step_lm", folder, {**asked, "n_rows": torch.tensor(N_ROWS)})


def said(model: StepModel, ids: list[int]) -> tuple[str, list[int]]:
    """Text and codes of a line of ids."""
    first = model.config.ids.first_code
    codes = [idx - first for idx in ids if first <= idx < first + N_CODES]
    return model.detokenize_text([idx for idx in ids if idx < first]), codes


def check(
    model: StepModel,
    reference: dict[str, torch.Tensor],
    plans: list[PromptPlan],
    config: EngineConfig = CONFIG,
) -> None:
    """Streams that run together give the reference's text and codes; `plans` are its first ones."""
    engine = Engine(model, config)
    streams = [engine.open(plan, seed=n) for n, plan in enumerate(plans)]
    engine.run()
    for n, stream_id in enumerate(streams):
        ids = reference[f"ids{n % len(REQUESTS)}"][: plans[n].max_rows].tolist()
        assert (engine.text(stream_id), codes_of(engine.pcm(stream_id))) == said(model, ids)
        assert engine.finished(stream_id).reason == "length"
    engine.check_is_empty()


def test_heard_audio_becomes_the_reference_s_rows(model, plans, reference):
    for n, seconds in enumerate(SECONDS):
        if seconds:
            rows = plans[n].embeds[plans[n].embed_mask]
            assert (plans[n].ids[plans[n].embed_mask, 0] == model.config.ids.patch).all()
            expected = reference[f"rows{n}"]
            assert len(rows) == (329 if seconds > 25 else len(expected))
            assert len(expected) > 0
            torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)
        else:
            assert plans[n].embed_mask is None


def test_pieces_of_several_requests_are_heard_as_if_alone(model):
    """However they meet: also what ends on an odd row, or is hardly there."""
    pieces = [heard(n_rows / 50 + 0.001) for n_rows in (150, 121, 122, 123, 76)]
    alone = [model.hearing.rows([piece])[0] for piece in pieces]
    for n, rows in enumerate(model.hearing.rows(pieces)):
        assert len(rows) > 0
        torch.testing.assert_close(rows, alone[n], atol=1e-5, rtol=1e-5)


def test_prompts_are_the_published_ones(model, plans):
    """As `apply_chat_template` writes them, with marks only where they are meant."""
    text = [model.tokenizer.decode(p.ids[:, 0].tolist(), skip_special_tokens=False) for p in plans]
    read_out = "<|BOT|>system\nRead this paragraph at a natural pace.\n<|EOT|>"
    opening = "<|BOT|>assistant\n<tts_start>"
    assert text[0] == f"{read_out}<|BOT|>human\nHello there.<|EOT|>{opening}"
    patches = "<audio_patch>" * 9
    heard = f"<|BOT|>human\n<audio_start>{patches}<audio_end><|EOT|>"
    assert text[1] == f"<|BOT|>system\nYou are a helpful assistant.<|EOT|>{heard}{opening}"
    before = "<|BOT|>human\nHi!<|EOT|><|BOT|>assistant\nYes?  <|EOT|>"
    system = "<|BOT|>system\nYou are a helpful assistant.<|EOT|>"
    assert text[2] == f"{system}{before}<|BOT|>human\nWhy?<|EOT|>{opening}"
    brief = f"<|BOT|>system\nBe brief.<|EOT|>{before}"
    assert text[3].startswith(f"{brief}<|BOT|>human\n<audio_start>")
    chinese = "<|BOT|>system\n以自然的语速读出下面的文字。\n"
    assert text[4].startswith(f"{chinese}<|EOT|><|BOT|>human\n你好")
    assert text[5].count("<audio_start>") == text[5].count("<audio_end>") == 2
    assert "<|BOT|>human\nLook at that:<audio_start>" in text[5]


def test_logits_are_those_of_transformers(model, plans, reference):
    for n, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        if plan.embeds is not None:
            x = torch.where(plan.embed_mask.unsqueeze(1), plan.embeds, x)
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{n}"]
        assert expected.std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)


def test_a_stream_alone_says_what_transformers_says(model, plans, reference):
    check(model, reference, plans[:1])


def test_eight_streams_in_a_batch_say_what_transformers_says(model, plans, reference):
    said_by_each = [said(model, reference[f"ids{n}"].tolist()) for n in range(len(plans))]
    assert len({text for text, _ in said_by_each}) == len(plans)
    # One of them soon says the same all the time.
    assert sum(len(text) > 20 and len(codes) > 20 for text, codes in said_by_each) >= 7
    check(model, reference, plans)


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    check(model, reference, plans[:2], replace(CONFIG, prefill_rows_per_step=5))


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[1])


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [replace(plan, max_rows=N_SHORT) for plan in (*plans, plans[0])[:n_streams]]
    check(model, reference, short)
