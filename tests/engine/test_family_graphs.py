"""Steps of published families can be recorded: no host decision, nothing of the host in them.

Small random checkpoints on the double of CUDA graphs; `tests.engine.test_graphs` has the toys. One
family for each kind of LM and of detokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import device as device_module
from engine.device import load_on
from engine.graphs import Graphs
from models.spec import PlanRequest
from tests.engine.harness import CONFIG, Engine
from tests.engine.recorded_graphs import record
from tests.models.bagpiper import tiny as bagpiper
from tests.models.orpheus import tiny as orpheus
from tests.models.qwen3_tts import tiny as qwen3_tts
from tests.models.zonos import tiny as zonos

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "bagpiper": bagpiper.make_checkpoint,
    "orpheus": orpheus.make_checkpoint,
    "qwen3-tts": qwen3_tts.make_checkpoint,
    "zonos": zonos.make_checkpoint,
}
TOLERANCE = 1e-4
"""Of codecs that add thousands of products in another order; another code moves samples by 1e-1."""


@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_and_overlapped_steps_say_what_plain_steps_say(name, tmp_path, monkeypatch):
    monkeypatch.setattr(
        device_module,
        "make_graphs",
        lambda choice, device: None if choice == "off" else Graphs(record),
    )
    model = load_on(FAMILIES[name](tmp_path))
    plan = model.plan(PlanRequest(text="hello there", seed=1, max_seconds=0.2))
    config = replace(CONFIG, max_streams=1)
    (expected,) = Engine(model, replace(config, graphs="off")).speak([plan], seeds=[1])
    engine = Engine(model, replace(config, graphs="cuda", overlap="on"))
    engine.loop.warm_up()
    (got,) = engine.speak([plan], seeds=[1])
    assert len(got) > 0
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
    engine.check_is_empty()
