"""Steps by bucket on FlashInfer's double: batches padded, buffers fixed, plans made outside.

Replayed: what the double computes then follows from its buffers alone.
"""

from __future__ import annotations

import pytest

from engine import device
from engine.attention import kernels
from engine.graphs import Graphs
from models.layers import fused
from tests.engine import flashinfer_double, flashinfer_rules, stand_ins
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan


@pytest.mark.parametrize("name", ["toy-delayed", "toy-depth", "toy-mixed"])
def test_padded_steps_say_what_plain_steps_of_the_torch_backend_say(name, monkeypatch):
    model = load_toy(name)
    plans = [make_plan(model, text) for text in TEXTS[1:]]
    expected = [pcm.tobytes() for pcm in Engine(model, CONFIG).speak(plans, seeds=[1, 2, 3])]
    monkeypatch.setattr(device, "make_graphs", lambda choice, where: Graphs(stand_ins.recorder))
    kernels.stand_in(flashinfer_double)
    try:
        with flashinfer_rules.wide():
            engine = Engine(model, CONFIG)
            engine.loop.warm_up()
            got = [pcm.tobytes() for pcm in engine.speak(plans, seeds=[1, 2, 3])]
            engine.check_is_empty()
    finally:
        kernels.stand_in(None)
        fused.switch_on(None)
    assert got == expected
