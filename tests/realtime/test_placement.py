"""Where `parley serve` puts the models, and the trace that it writes."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from models import registry
from realtime.compose import HERE, Placement, _for, running_engines
from realtime.errors import ConfigError

CONFIG = EngineConfig(max_streams=1, graphs="off")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of torch threads is set there for good."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "1")


def test_a_trace_names_the_models(tmp_path):
    path = tmp_path / "out.json"
    with running_engines(["toy-tone"], CONFIG, 1, placement=Placement(trace=path)):
        pass
    events = json.loads(path.read_text())
    assert events[0]["args"] == {"name": "toy-tone"}


def test_a_trace_that_cannot_be_written_is_found_at_start(tmp_path):
    placement = Placement(trace=tmp_path / "no such folder" / "out.json")
    with (
        pytest.raises(ConfigError, match=r"--trace: .*out.json cannot be written"),
        running_engines(["toy-tone"], CONFIG, 1, placement=placement),
    ):
        pass


@pytest.mark.parametrize("name", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_named(name):
    with (
        pytest.raises(EngineConfigError, match=f"device '{name}' cannot be used"),
        running_engines(["toy-tone"], CONFIG, 1, placement=Placement(device=name)),
    ):
        pass


def test_a_detokenizer_elsewhere_is_a_copy_of_the_model():
    """`meta` stands for a second GPU: it takes tensors and gives none back."""
    placement = Placement(detokenizer_device="meta")
    with running_engines(["toy-tone"], CONFIG, 1, placement=placement) as engines:
        device = engines.thread._loops[0]._device
        assert device.codec._model.pitches_hz.device == torch.device("meta")
        assert device.runner._model.pitches_hz.device == torch.device("cpu")


def test_a_model_of_cpus_stays_there_when_the_others_go_to_a_gpu():
    placement = Placement(device="cuda", detokenizer_device="cuda:1", dtype="float16")
    assert _for("smollm2-135m", placement) == HERE
    assert _for("pico", placement) == placement


def test_shapes_of_pico_follow_from_shapes_where_steps_are_recorded():
    detokenizer = registry.load("pico").detokenizer
    assert not detokenizer.is_static
    # Any device that is not the CPU stands for a GPU.
    assert copy.deepcopy(detokenizer).to("meta").is_static
