"""Device streams on one GPU and on two: which there are, who goes first, where prompts are made."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from engine import device as device_module
from engine.device_streams import made_current, make_streams
from models.spec import PlanRequest
from tests.engine.fake_device import FakeDevice
from tests.engine.harness import Engine, FakeClock, load_toy

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
ENCODING_S = 0.25


@dataclass(eq=False)
class FakeCudaStream:
    """A stream as torch makes one; a lower number goes first."""

    device: torch.device
    priority: int


@pytest.fixture(autouse=True)
def _cuda_streams(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", FakeCudaStream)


def test_one_gpu_has_a_stream_for_rows_for_chunks_for_copies_and_for_prompts():
    streams = make_streams(FIRST, FIRST, time.monotonic)
    assert [stream.name for stream in streams.all] == ["lm", "codec", "copy", "prompt"]
    assert streams.frames is streams.codec
    assert streams.codec_copy is streams.copy


def test_a_detokenizer_on_a_second_gpu_has_its_streams_there():
    streams = make_streams(FIRST, SECOND, time.monotonic)
    found = {stream.name: stream._stream.device for stream in streams.all}
    assert found == {
        "lm": FIRST,
        "frames": FIRST,
        "copy": FIRST,
        "prompt": FIRST,
        "codec": SECOND,
        "codec copy": SECOND,
    }


@pytest.mark.parametrize("codec_device", [FIRST, SECOND])
def test_what_is_played_goes_before_prompts(codec_device):
    streams = make_streams(FIRST, codec_device, time.monotonic)
    found = {stream.name: stream._stream.priority for stream in streams.all}
    prompt = found.pop("prompt")
    assert all(priority < prompt for priority in found.values())


def test_a_prompt_is_made_in_its_own_stream_and_waited_for(monkeypatch):
    """By the thread that plans: what an encoder gave may be read when the plan is handed over."""
    fakes: list[FakeDevice] = []

    def fake_streams(device, codec_device, clock):
        fakes.append(FakeDevice(clock))
        return fakes[0].all()

    monkeypatch.setattr(device_module, "make_streams", fake_streams)
    model, clock = load_toy("toy-tone"), FakeClock()
    engine = Engine(model, clock=clock)
    plan = model.plan

    def encoding(request: PlanRequest) -> object:
        fakes[0].use("encode", seconds=ENCODING_S)
        return plan(request)

    monkeypatch.setattr(model, "plan", encoding)
    before_s = clock.now_s
    engine.loop.plan(PlanRequest(text="hello"))
    ((stream, name, _, end_s),) = fakes[0].work
    assert (stream, name) == ("prompt", "encode")
    assert clock.now_s == end_s == before_s + ENCODING_S


def test_the_current_device_is_that_of_the_model_while_it_lasts(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or _Nothing())
    with made_current(SECOND), made_current(torch.device("cpu")):
        pass
    assert asked == [SECOND], "a CPU has no current device"


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass
