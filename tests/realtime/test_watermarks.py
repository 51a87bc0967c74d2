"""Marks that `parley serve --watermark` puts: on whom, what is said, what is refused; and none."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engine.config import EngineConfig
from models.base import SpeechModel
from models.errors import WatermarkError, WeightError
from models.registry import load, read_spec
from realtime import serving
from realtime.compose import Watermarks, running_engines
from realtime.config import GatewayConfig
from realtime.errors import ConfigError
from tests.engine.harness import Engine, make_plan
from tests.models.watermark.tiny import MESSAGE, make_cipher_folder, make_perth_folder

CONFIG = EngineConfig(max_streams=1, graphs="off")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of torch threads is set there for good."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "1")


def served(*names: str, asked: tuple[str, ...] = ()) -> dict[str, SpeechModel]:
    """What decodes on the engine, by the name of the model."""
    watermarks = Watermarks(asked=asked, message=MESSAGE)
    with running_engines(names, CONFIG, 1, watermarks=watermarks) as engines:
        models = [loop._device.codec._model for loop in engines.thread._loops]
    return {model.spec.name: model for model in models}


def test_without_marks_the_engine_runs_the_model_itself():
    """Nothing stands between: the same samples to the last bit."""
    (bare,) = served("toy-tone").values()
    assert bare.spec == read_spec("toy-tone")
    plain = load("toy-tone")
    assert type(bare) is type(plain)
    spoken, expected = (
        Engine(model).speak([make_plan(model, "hello")], seeds=[1])[0] for model in (bare, plain)
    )
    assert np.array_equal(spoken, expected)


def test_each_model_gets_its_own_mark(tmp_path):
    cipher, perth = make_cipher_folder(tmp_path / "a"), make_perth_folder(tmp_path / "b")
    asked = (f"toy-tone={perth}", str(cipher))
    marks = {
        name: model.spec.watermark
        for name, model in served("toy-tone", "toy-depth", asked=asked).items()
    }
    assert marks == {"toy-tone": "Perth", "toy-depth": "SilentCipher"}


@pytest.mark.parametrize(
    ("asked", "error", "shown"),
    [
        ("{}/nothing", WeightError, "there is no folder .*nothing"),
        ("{}", WeightError, "holds no watermark that is known"),
        ("pico={}", WatermarkError, "pico is not served, but toy-tone"),
    ],
)
def test_what_cannot_be_marked_is_found_before_weights_are_loaded(
    tmp_path, monkeypatch, asked, error, shown
):
    monkeypatch.setattr("engine.device.load_on", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(error, match=shown):
        served("toy-tone", asked=(asked.format(tmp_path),))


def test_a_started_server_says_who_is_marked(capsys):
    memory = SimpleNamespace(lines=lambda: ["memory"])
    specs = [
        SimpleNamespace(name=name, weights_licence="MIT", watermark=mark)
        for name, mark in (("one", "Perth"), ("other", ""))
    ]
    handles = [SimpleNamespace(spec=spec, memory=memory) for spec in specs]
    engines = SimpleNamespace(thread=SimpleNamespace(handles=handles), talk=None, no_talk="")
    serving._announce(engines, GatewayConfig(), 8765)
    shown = capsys.readouterr().out
    assert "one: marked by Perth" in shown
    assert "other: marked" not in shown


@pytest.mark.parametrize(
    ("text", "message"), [(None, MESSAGE), ("0001FEff2a", bytes([0, 1, 254, 255, 42]))]
)
def test_the_message_is_the_environments_or_that_of_csm(monkeypatch, text, message):
    monkeypatch.delenv("PARLEY_WATERMARK_MESSAGE", raising=False)
    if text is not None:
        monkeypatch.setenv("PARLEY_WATERMARK_MESSAGE", text)
    assert serving._message() == message


@pytest.mark.parametrize("text", ["", "0001fe", "no numbers", "0001feff2a00"])
def test_what_is_no_message_is_refused(monkeypatch, text):
    monkeypatch.setenv("PARLEY_WATERMARK_MESSAGE", text)
    with pytest.raises(ConfigError, match="PARLEY_WATERMARK_MESSAGE must be 10 hexadecimal digits"):
        serving._message()
