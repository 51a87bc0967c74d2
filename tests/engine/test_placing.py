"""Where a model is put, and in which precision it computes there."""

from __future__ import annotations

import pytest
import torch

from engine.device import dtype_of, load_on
from engine.loop import EngineLoop
from models.layers.transformer import Decoder
from tests.engine.harness import CONFIG, FakeClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "device", "dtype"),
    [
        ("auto", CPU, torch.float32),
        ("auto", CUDA, torch.bfloat16),
        ("float16", CUDA, torch.float16),
        ("float32", CUDA, torch.float32),
        ("bfloat16", CPU, torch.bfloat16),
    ],
)
def test_the_precision_is_as_told_or_the_usual_one(choice, device, dtype):
    assert dtype_of(choice, device) == dtype


def test_decoders_are_cast_and_nothing_else():
    model = load_on("toy-depth", CPU, torch.bfloat16)
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    assert len(decoders) == 2
    cast = {id(part) for decoder in decoders for part in decoder.parameters()}
    for name, parameter in model.named_parameters():
        wanted = torch.bfloat16 if id(parameter) in cast else torch.float32
        assert parameter.dtype == wanted, name


@pytest.mark.parametrize("name", ["toy-depth", "toy-delayed"])
def test_an_engine_in_half_precision_warms_up(name):
    model = load_on(name, CPU, torch.bfloat16)
    loop = EngineLoop(model, CONFIG, lambda events: None, FakeClock(), CPU, torch.bfloat16)
    loop.warm_up()
    assert loop.stats.is_ready
