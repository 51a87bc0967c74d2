"""Bagpiper on a small random checkpoint in ESPnet's layout, against ESPnet's own class.

Prompt rows and ids: identical. Logits of each column: 1e-4. PCM: 1e-5, whole decoding by the same
codec, which `test_xcodec` holds to `transformers`. Warm-up and drain are left to the model here, as
the reference does; how they are forced is tested in `tests/models/bagpiper`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.types import StreamId
from models.bagpiper.config import EOT, MARKS, SYSTEM_TEXT
from models.bagpiper.model import BagpiperModel, load
from models.bagpiper.prompt import start_state
from models.base import PromptPlan
from models.spec import PlanRequest
from tests.engine.harness import ONE_SLOT, Engine, greedy
from tests.models.bagpiper.tiny import make_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask
from tests.parity.test_snac import whole

N_FRAMES, N_SHORT = 200, 20
CONFIG = EngineConfig(max_streams=18, max_batch_rows=64, prefill_rows_per_step=512, target_load=1.0)
"""Room for nine pairs at once."""
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request: the kinds of the answer's messages, its guidance, rows of speech."""

    text: str
    order: tuple[str, ...] = ("text", "audio")
    cfg: int = 3
    least: int = 207
    n_messages: int = 2


CASES = (
    Case(text="Hello there."),
    Case(text="One two three four five six seven.", order=("audio",), n_messages=1),
    Case(text="Why?", order=("text",), n_messages=1),
    Case(text="Numbers like 42 come as they are.", cfg=1),
    Case(text="!Ünïcödé is bytes here!", order=("audio",), cfg=1, n_messages=1),
    Case(text="A longer sentence, so that its prompt takes more rows than those of the others."),
    Case(text="As you like.", order=()),
    Case(text="The last of eight."),
)
ENDING = (
    Case(text="Rain.", least=9),
    Case(text="Stop.", order=("audio",), cfg=1, least=9, n_messages=1),
    Case(text="Snow.", order=("audio", "text"), least=9),
)
"""Speech that is not held to the limit, and text that comes behind it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("bagpiper"))


@pytest.fixture(scope="module")
def model(folder) -> BagpiperModel:
    return load(folder, forces_delays=False)


@pytest.fixture(scope="module")
def reference(folder) -> dict[str, Tensor]:
    inputs = {"system": torch.tensor(list(SYSTEM_TEXT.encode()))}
    for n, case in enumerate((*CASES, *ENDING)):
        inputs[f"text{n}"] = torch.tensor(list(case.text.encode()))
        inputs[f"order{n}"] = torch.tensor([MARKS[kind] for kind in case.order] or [0])
        inputs[f"cfg{n}"] = torch.tensor(case.cfg)
        inputs[f"least{n}"] = torch.tensor(case.least)
        inputs[f"most{n}"] = torch.tensor(N_FRAMES + 7)
        inputs[f"messages{n}"] = torch.tensor(case.n_messages)
    return ask("bagpiper_lm", folder, inputs, apart="espnet")


def plan_of(model: BagpiperModel, case: Case, n_frames: int = N_FRAMES) -> PromptPlan:
    options = {"scene": True, "guidance": float(case.cfg)}
    plan = greedy(model, model.plan(PlanRequest(text=case.text, options=options)))
    state = start_state(model.spec, case.order, n_most=case.n_messages)
    return replace(plan, state=state, max_frames=n_frames)


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    return [plan_of(model, case) for case in CASES]


def said(model: BagpiperModel, reference: dict[str, Tensor], n: int) -> tuple[str, Tensor]:
    """Text and frames `(T, 8)` of the reference's answer; end rows are left out."""
    case, text, frames = (*CASES, *ENDING)[n], "", torch.zeros(0, 8, dtype=torch.int64)
    low = model.config.text_ids[0]
    for idx in range(case.n_messages):
        if f"rows{n}_{idx}" not in reference:
            break
        rows = reference[f"rows{n}_{idx}"]
        rows = rows[:-1] if int(rows[-1, 0]) <= EOT else rows
        if int(rows[0, 1]) == 0:
            assert int(rows.min(dim=0).values[0]) >= low
            text += model.detokenize_text(rows[:, 0].tolist())
            continue
        n_frames = len(rows) - 7
        codes = torch.stack([rows[k : k + n_frames, k] for k in range(8)], dim=1)
        frames = torch.cat([frames, (codes - model.phases.blanks - 1).clamp(0, 63)])
    return text, frames


def check(
    model: BagpiperModel,
    reference: dict[str, Tensor],
    plans: Sequence[PromptPlan],
    config: EngineConfig = CONFIG,
    first: int = 0,
) -> None:
    engine = Engine(model, config)
    ids = [engine.open(plan) for plan in plans]
    engine.step()
    assert engine.loop.stats.n_queued == 0, "all are in the batch"
    engine.run()
    for n, (stream_id, plan) in enumerate(zip(ids, plans, strict=True), start=first):
        expected = said(model, reference, n if first else n % len(CASES))
        check_stream(engine, stream_id, plan, expected)
    engine.check_is_empty()


def check_stream(
    engine: Engine, stream_id: StreamId, plan: PromptPlan, expected: tuple[str, Tensor]
) -> None:
    text, frames = expected
    assert engine.text(stream_id) == text
    frames = frames[: plan.max_frames]
    assert engine.finished(stream_id).n_frames == len(frames)
    pcm = torch.zeros(0)
    if len(frames):
        assert isinstance(engine.model, BagpiperModel)
        pcm = whole(engine.model.codec, frames.unsqueeze(0))[0]
    np.testing.assert_allclose(engine.pcm(stream_id), pcm.numpy(), rtol=0, atol=TOLERANCE)


def test_a_prompt_has_the_reference_s_rows(model, plans, reference):
    for n, plan in enumerate(plans):
        assert torch.equal(plan.ids[:-1], reference[f"prompt{n}"])
        assert plan.ids[-1].tolist() == [6] + [0] * 7


def test_logits_of_each_column_are_the_reference_s(model, plans, reference):
    assert int((plans[4].ids[:, 0] == 0).sum()) == 2, "text id 0 is a blank in prompts"
    for n, plan in enumerate(plans):
        attention = FullAttention()
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        hidden = model.backbone(x, torch.arange(len(plan.ids)), attention)
        logits = model.heads(hidden[-1:])
        for k, column in enumerate(model.spec.columns):
            wanted = reference[f"logits{n}"][k, column.ids[0] : column.ids[1]]
            torch.testing.assert_close(logits[k][0], wanted, atol=1e-4, rtol=0)


def test_what_the_reference_says_differs_and_is_long(model, reference):
    """Otherwise the tests below would prove little."""
    answers = [said(model, reference, n) for n in range(len(CASES))]
    assert len({tuple(frames.flatten().tolist()) for _, frames in answers}) >= 7
    assert len({text for text, _ in answers}) >= 5
    assert [len(frames) for _, frames in answers].count(N_FRAMES) >= 6
    ends = [
        int(reference[f"rows{n}_0"][-1, 0]) for n in range(8) if CASES[n].order[:1] == ("text",)
    ]
    assert EOT in ends


def test_guided_speech_after_text_is_the_reference_s(model, plans, reference):
    check(model, reference, plans[:1])


def test_eight_mixed_requests_in_a_batch_say_what_the_reference_says(model, plans, reference):
    check(model, reference, plans)


@pytest.mark.parametrize("n", range(len(CASES), len(CASES) + len(ENDING)))
def test_speech_that_ends_by_itself_ends_where_the_reference_s_does(folder, reference, tmp_path, n):
    case = ENDING[n - len(CASES)]
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    path = copy / "inference_audio.yaml"
    path.write_text(path.read_text().replace("min_step: 600", f"min_step: {case.least}"))
    model = load(copy, forces_delays=False)
    _, frames = said(model, reference, n)
    assert len(frames) < N_FRAMES
    check(model, reference, [plan_of(model, case)], first=n)


def test_a_stream_that_gives_way_in_its_text_and_in_its_speech_says_the_same(
    model, plans, reference
):
    """Both sequences of the pair are run again, from what was fed."""
    plan, short = (replace(plans[n], max_frames=n_frames) for n, n_frames in ((0, 40), (1, 1)))
    engine = Engine(model, replace(ONE_SLOT, prefill_rows_per_step=512))
    stream_id = engine.open(plan, is_paced=False)
    engine.run_with_breaks((4, 30), short)
    assert engine.loop.metrics.n_gave_way == 2
    check_stream(engine, stream_id, plan, said(model, reference, 0))
    engine.check_is_empty()


@pytest.mark.parametrize("rows_per_step", [7, 64])
def test_prompts_in_pieces_change_nothing(model, plans, reference, rows_per_step):
    config = replace(CONFIG, prefill_rows_per_step=rows_per_step)
    short = [replace(plan, max_frames=N_SHORT) for plan in plans]
    check(model, reference, short, config)


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    few = (*plans, plans[0])[:n_streams]
    check(model, reference, [replace(plan, max_frames=4) for plan in few])
