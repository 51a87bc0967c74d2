"""OpusLM on small random checkpoints in ESPnet's layout, against a composed reference.

ESPnet has its class in no release: the reference is OLMo 2 or Llama of `transformers`, and columns,
delays and ends written out beside it (`oracles/opuslm_lm.py`). Logits: 1e-4. Text and codes:
identical. PCM: 1e-5, whole decoding by the same codec, which `test_espnet_dac` holds to ESPnet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.opuslm.facts import AUDIO, END, MOST, MOST_TEXT, ROW
from models.opuslm.model import OpusLmModel
from models.registry import load
from models.spec import PHASE_COLUMN, Message, PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy
from tests.models.opuslm.tiny import VOICE, make_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "Why?",
    "Numbers like 42 come as they are!",
    "Ünïcödé is bytes here.",
    "So long.",
    "The last of eight.",
)
SAID = Message(role="user", text="Hi!"), Message(role="assistant", text="Yes?")
N_FRAMES, N_SHORT = 200, 20
N_TEXT = (5, 40, 1, 17, 30, 9, 22, 13)
"""Rows of text, where there is any: so that streams of a batch are in all phases at once."""
ENDS = (3, 4, 8, 9, 50)
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["opuslm", "opuslm-dialogue"])
def folder(request, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(made, is_dialogue=request.param == "opuslm-dialogue")


@pytest.fixture(scope="module")
def model(folder) -> OpusLmModel:
    loaded = load(folder)
    assert isinstance(loaded, OpusLmModel)
    return loaded


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    requests = [
        PlanRequest(
            text=text,
            messages=SAID * (n % 3) if model.config.is_dialogue else (),
            voice=VOICE if n % 2 else None,
        )
        for n, text in enumerate(TEXTS)
    ]
    made = [greedy(model, model.plan(one)) for one in requests]
    return [ended(plan, N_FRAMES, n_text) for plan, n_text in zip(made, N_TEXT, strict=True)]


def ended(plan: PromptPlan, n_frames: int, n_text: int | None = None) -> PromptPlan:
    """The same, but ended after so many rows of text and of frames."""
    state = plan.state.clone()
    state[MOST] = n_frames
    if n_text is not None:
        state[MOST_TEXT] = n_text
    return replace(plan, state=state, max_frames=n_frames)


@pytest.fixture(scope="module")
def reference(folder, model, plans) -> dict[str, torch.Tensor]:
    wanted = [(f"{n}", n, N_FRAMES) for n in range(len(plans))]
    wanted += [(f"-short{n}", n, N_SHORT) for n in range(len(plans))]
    wanted += [(f"-end{end}", 0, end) for end in ENDS]
    asked = {}
    for name, n, end in wanted:
        asked |= {f"prompt{name}": plans[n].ids.clone(), f"end{name}": torch.tensor(end)}
        if model.config.is_dialogue:
            asked[f"text{name}"] = torch.tensor(N_TEXT[n])
    return ask("opuslm_lm", folder, asked)


def pcm_of(model: OpusLmModel, frames: torch.Tensor) -> np.ndarray:
    """Whole decoding of codes `(T, Q)`."""
    codec = model.spec.codec
    before = torch.full((codec.left_context_frames, frames.shape[1]), -1)
    state = {
        one.name: torch.zeros(1, *one.shape, dtype=getattr(torch, one.dtype)) for one in codec.state
    }
    window = torch.cat([before, frames]).unsqueeze(0)
    out = model.dac.decode(window, torch.tensor([len(frames)]), state, torch.tensor([True]))
    return out.pcm[0, : int(out.n_samples[0])].numpy()


def check(
    model: OpusLmModel,
    reference: dict[str, torch.Tensor],
    plans: Sequence[PromptPlan],
    config: EngineConfig = CONFIG,
    *,
    kind: str = "",
) -> None:
    """Streams that run together give the reference's text and sound; `plans` are its first ones."""
    engine = Engine(model, config)
    ids = [engine.open(plan, seed=n) for n, plan in enumerate(plans)]
    engine.run()
    for n, stream_id in enumerate(ids):
        name = f"{kind}{n % len(TEXTS)}"
        text = model.detokenize_text(reference[f"text{name}"].tolist())
        assert engine.text(stream_id) == text
        assert len(text) == len(reference[f"text{name}"])
        expected = pcm_of(model, reference[f"frames{name}"])
        np.testing.assert_allclose(engine.pcm(stream_id), expected, rtol=0, atol=TOLERANCE)
        assert engine.finished(stream_id).reason == "length"


def test_logits_of_every_column_are_those_of_transformers(model, plans, reference):
    for idx, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        logits = model.heads(hidden)
        assert len(logits) == 9
        for column, (spec, got) in enumerate(zip(model.spec.columns, logits, strict=True)):
            expected = reference[f"logits{idx}"][column, slice(*spec.ids)]
            assert expected.std() > 0.5
            torch.testing.assert_close(got[0], expected, atol=1e-4, rtol=1e-4)


def test_a_stream_alone_says_what_the_reference_says(model, plans, reference):
    check(model, reference, plans[:1])


def test_eight_streams_in_a_batch_say_what_the_reference_says(model, plans, reference):
    takes = {tuple(reference[f"frames{n}"].flatten().tolist()) for n in range(len(TEXTS))}
    assert len(takes) == len(TEXTS)
    check(model, reference, plans)


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    check(model, reference, plans[:2], replace(CONFIG, prefill_rows_per_step=5))


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, plans[0])


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [ended(plan, N_SHORT) for plan in (*plans, plans[0])[:n_streams]]
    check(model, reference, short, kind="-short")


@pytest.mark.parametrize("end", ENDS)
def test_an_end_of_the_model_s_own_completes_the_frames_under_way(
    model, plans, reference, monkeypatch, end
):
    """As if the end were the likeliest id of that row; it is no limit that ends the speech."""
    plain = model.constrain

    def constrain(state, logits, feed):
        first, *others = plain(state, logits, feed)
        is_now = (state[:, PHASE_COLUMN] == AUDIO) & (state[:, ROW] == end)
        first = torch.cat([first[:, :1] + is_now.unsqueeze(1) * 1e9, first[:, 1:]], dim=1)
        return [first, *others]

    monkeypatch.setattr(model, "constrain", constrain)
    engine = Engine(model, CONFIG)
    stream_id = engine.open(plans[0])
    engine.run()
    assert int(plans[0].state[END]) > N_FRAMES
    assert engine.finished(stream_id).reason == "stop"
    expected = pcm_of(model, reference[f"frames-end{end}"])
    np.testing.assert_allclose(engine.pcm(stream_id), expected, rtol=0, atol=TOLERANCE)
