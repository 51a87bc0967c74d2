"""Steps by bucket on FlashInfer's double: batches padded, buffers fixed, plans made outside.

Replayed: what the double computes then follows from its buffers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from engine import device
from engine.attention import flashinfer
from engine.graphs import Graphs
from engine.runner import Runner
from models.base import SpeechModel
from models.layers import fused
from tests.engine import flashinfer_rules, stand_ins
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan


@pytest.fixture
def graphs(monkeypatch) -> Iterator[list[Graphs]]:
    """Those that engines make, on the doubles: first that of the rows, then that of the chunks."""
    made: list[Graphs] = []

    def make(choice: str, where: torch.device) -> Graphs | None:
        if choice == "off":
            return None
        made.append(Graphs(stand_ins.recorder))
        return made[-1]

    with stand_ins.used(), flashinfer_rules.wide():
        monkeypatch.setattr(device, "make_graphs", make)
        yield made


def shortened(name: str) -> SpeechModel:
    """Fewer positions: less that the double gathers in each replay."""
    model = load_toy(name)
    model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=1024))
    return model


def speak_both(name: str, graphs: list[Graphs]) -> tuple[list[bytes], list[bytes]]:
    """What streams say by bucket on the double, and plainly on the torch backend."""
    model = shortened(name)
    plans = [make_plan(model, text) for text in TEXTS[1:]]
    said = []
    engine = Engine(model, replace(CONFIG, attention="flashinfer", prefill_rows_per_step=24))
    engine.loop.warm_up()
    n_recorded = len(graphs[0].keys)
    said.append([pcm.tobytes() for pcm in engine.speak(plans, seeds=[1, 2, 3])])
    assert len(graphs[0].keys) == n_recorded, "nothing is recorded while serving"
    engine.check_is_empty()
    fused.switch_on(None)
    plain = Engine(
        model, replace(CONFIG, attention="torch", graphs="off", prefill_rows_per_step=24)
    )
    said.append([pcm.tobytes() for pcm in plain.speak(plans, seeds=[1, 2, 3])])
    return said[0], said[1]


@pytest.mark.parametrize("name", ["toy-delayed", "toy-depth", "toy-mixed", "toy-audio-in"])
def test_padded_steps_say_what_plain_steps_of_the_torch_backend_say(name, graphs):
    """Prompts too: in pieces, of rows with embeddings, of pairs."""
    got, expected = speak_both(name, graphs)
    assert got == expected
    assert {("prompt", 16), ("prompt", 32)} <= set(graphs[0].keys)


def test_prompts_of_more_pieces_than_are_recorded_say_the_same(graphs, monkeypatch):
    monkeypatch.setattr(flashinfer, "MOST_PIECES", 2)
    got, expected = speak_both("toy-mixed", graphs)
    assert got == expected


def test_prompts_are_replayed(graphs, monkeypatch):
    """Or the tests above would show nothing of their recordings."""
    monkeypatch.setattr(Runner, "_prefill", lambda self, batch: pytest.fail("run as it stands"))
    engine = Engine(shortened("toy-depth"), replace(CONFIG, max_streams=2, attention="flashinfer"))
    engine.loop.warm_up()
    engine.speak([make_plan(engine.model, "hello", frames=3)], seeds=[1])
    assert graphs
