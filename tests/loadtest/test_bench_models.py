"""The bench of published families: what is timed, what the figures are, what is said of faults."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from loadtest.bench import decoding, models
from loadtest.bench.decoding import BATCHES, N_ROUNDS, Ours, detokenizer_ms, n_ticks
from loadtest.bench.published import LAYERS, MAKERS
from loadtest.bench.random_weights import draw
from loadtest.bench.references import REFERENCES, steps_ms
from models import registry

PUBLISHED = {info.name for info in registry.families() if info.needs}


def test_every_published_family_is_one_entry():
    assert set(LAYERS) == set(MAKERS)
    assert set(REFERENCES) <= set(MAKERS) <= PUBLISHED


@pytest.mark.parametrize("name", ["toy-interleaved", "toy-depth", "toy-delayed"])
def test_steps_of_all_streams_at_once_are_taken_and_all_end(name):
    ours = Ours(registry.load(name))
    for n_streams in (1, 3):
        assert len(ours.steps_ms(n_streams, 4)) == 4
        assert ours.loop.stats.n_active == 0


def test_a_detokenizer_is_timed_for_one_frame():
    assert detokenizer_ms(registry.load("toy-depth")) > 0


class FakeReference:
    """Takes 30 ms a step."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def steps_ms(self, n_steps: int) -> list[float]:
        self.asked.append(n_steps)
        return [30.0] * n_steps


class FakeOurs:
    """Takes 20 ms and 1 ms more for each stream."""

    def steps_ms(self, n_streams: int, n_steps: int) -> list[float]:
        return [19.0 + n_streams] * n_steps


def test_ratios_are_of_one_stream_after_another():
    ticks: list[None] = []
    reference = FakeReference()
    rounds = decoding._rounds(FakeOurs(), reference, lambda: ticks.append(None))
    figures = decoding._figures(rounds)
    assert (figures["reference_ms"], figures["step_8_ms"]) == (30.0, 27.0)
    assert figures["ratio_1"] == pytest.approx(30 / 20)
    assert figures["ratio_8"] == pytest.approx(8 * 30 / 27)
    assert len(ticks) == N_ROUNDS * (1 + len(BATCHES)) == n_ticks("csm") - 1
    assert reference.asked[1:] == [decoding.MAX_STEPS] * (N_ROUNDS - 1), "as many as there is time"


def test_without_a_reference_there_is_no_ratio():
    figures = decoding._figures(decoding._rounds(FakeOurs(), None, lambda: None))
    assert figures["ratio_8"] is None
    assert figures["step_8_ms"] == 27.0


def test_steps_of_a_reference_are_counted_by_its_backbone():
    layer = torch.nn.Linear(2, 2)
    taken = (layer, lambda n_steps: [layer(torch.zeros(1, 2)) for _ in range(n_steps)])
    assert len(steps_ms(taken, 5)) == 5
    assert not layer._forward_pre_hooks


def test_random_weights_are_finite_and_not_all_alike():
    weights = draw(3000, 2000).float()
    assert weights.isfinite().all()
    assert weights[0].std() > 0.01


@pytest.fixture
def children(monkeypatch) -> list[str]:
    """What the processes of a family are asked, in place of running them."""
    asked: list[str] = []
    row = {"step_1_ms": 1.0, "step_8_ms": 2.0, "step_16_ms": 3.0, "reference_ms": None}
    row |= {"ratio_1": None, "ratio_8": None, "ratio_16": None}
    row |= {"detokenizer_ms": 4.0, "frame_ms": 80.0, "chunk_frames": 16}

    def run(arguments, environment, take) -> None:
        asked.append(arguments[1])
        if arguments[2] == "zonos":
            raise models.BenchError("out of memory")
        if arguments[1].endswith("decoding"):
            take("null\n")
            take(json.dumps(row) + "\n")

    monkeypatch.setattr(models, "_run", run)
    return asked


def test_a_family_that_fails_is_named_and_the_others_are_measured(children, tmp_path, capsys):
    assert models.main(["--only", "csm", "--only", "zonos", "--out", str(tmp_path)]) == 1
    written = json.loads(next(tmp_path.iterdir()).read_text())
    assert written["faults"] == {"zonos": "out of memory"}
    assert [row["family"] for row in written["models"]] == ["csm"]
    assert written["on"]["n_cores"] >= 1
    assert "4 of 16" in capsys.readouterr().out


def test_a_process_that_fails_says_why(monkeypatch):
    with pytest.raises(models.BenchError, match="ValueError: no room"):
        models._run(["-c", "raise ValueError('no room')"], {}, lambda line: None)
    with pytest.raises(models.BenchError, match="not enough memory"):
        models._run(["-c", "import os; os.kill(os.getpid(), 9)"], {}, lambda line: None)
    monkeypatch.setattr(models, "LIMIT_S", 0.2)
    with pytest.raises(models.BenchError, match="not done in 0 s"):
        models._run(["-c", "import time; time.sleep(60)"], {}, lambda line: None)
    monkeypatch.setattr(models, "LIMIT_S", 60.0)
    lines: list[str] = []
    models._run(["-c", "print(1); print(2)"], {}, lines.append)
    assert lines == ["1\n", "2\n"]


def test_tables_fit_80_columns_and_a_missing_figure_is_a_dash():
    row = dict.fromkeys(models.STEPS, 1000.0) | {"family": "qwen3-tts", "layers": "28 of 28"}
    row["ratio_8"] = None
    shown = Console(file=io.StringIO(), width=80)
    shown.print(models._table("Steps", models.STEPS, [row]))
    cells = shown.file.getvalue().splitlines()[-1].split()
    assert cells == ["qwen3-tts", "28", "of", "28", *["1000"] * 4, "1000.00", "-", "1000.00"]
