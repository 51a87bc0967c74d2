"""The trace: what is in the file, and on whose clock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from engine import device as device_module
from engine.loop import EngineLoop
from engine.spans import Span
from engine.trace import TraceFile
from engine.types import OpenStream, StreamId
from tests.engine.fake_device import FakeDevice
from tests.engine.harness import CONFIG, FakeClock, TickingClock, load_toy, make_plan


def traced(tmp_path, clock: FakeClock) -> list[dict]:
    """The events of one short stream of `toy-depth`."""
    path = tmp_path / "out.json"
    file = TraceFile(path, clock)
    model = load_toy("toy-depth")
    trace = file.loop(model.spec.name)
    config = replace(CONFIG, max_streams=2)
    loop = EngineLoop(model, config, lambda events: None, clock, trace=trace)
    loop.warm_up()
    plan = make_plan(model, "x", frames=6)
    loop.inbox.put(OpenStream(stream_id=StreamId(1), plan=plan, seed=0, asked_s=clock()))
    while loop.step() is not None:
        pass
    file.close()
    loop.step()
    events = json.loads(path.read_text())
    assert events.pop() == {}
    return events


def test_the_trace_shows_host_lm_and_detokenizer(tmp_path):
    events = traced(tmp_path, TickingClock())
    labels = {(e["name"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert labels["process_name", 0] == "toy-depth"
    assert labels["thread_name", 0] == "host"
    spans = [e for e in events if e["ph"] == "X"]
    assert all(span["dur"] > 0 and span["ts"] > 0 for span in spans)
    host = [span["name"] for span in spans if span["tid"] == 0]
    n_steps = len(host) // 5
    assert host == ["drain", "plan", "launch", "collect", "publish"] * n_steps
    device = {span["name"] for span in spans if span["tid"] > 0}
    assert device == {"prefill", "decode", "detokenize"}


def test_work_of_the_device_has_the_times_of_the_device(tmp_path, monkeypatch):
    """Lines of their own, and work that begins after its call."""
    fakes: list[FakeDevice] = []

    def make_streams(device, codec_device, clock):
        fakes.append(FakeDevice(clock))
        return fakes[0].all()

    monkeypatch.setattr(device_module, "make_streams", make_streams)
    events = traced(tmp_path, TickingClock())
    lines = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert list(lines) == ["host", "lm", "codec", "copy", "prompt"]
    by_line = {e["tid"]: e["name"] for e in events if e["ph"] == "X"}
    assert by_line[lines["codec"]] == "detokenize"
    assert by_line[lines["lm"]] in ("prefill", "decode")


def test_a_span_of_the_device_stands_where_it_was_worked_on(tmp_path):
    """Not where it was called, nor where its results were read."""
    clock, path = FakeClock(), tmp_path / "out.json"
    device = FakeDevice(clock)
    stream = device.streams["codec"]
    file = TraceFile(path, clock)
    trace = file.loop("a loop")
    trace.begin([stream])
    device.current = stream
    device.use("before", seconds=2.0)
    span = Span("detokenize", stream)
    device.use("detokenize", seconds=0.5)
    span.end()
    clock.advance(60.0)
    trace.device([span])
    file.close()
    (found,) = [event for event in json.loads(path.read_text()) if event.get("ph") == "X"]
    assert (found["ts"], found["dur"]) == (pytest.approx(2e6), pytest.approx(5e5))


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        TraceFile(tmp_path / "no such folder" / "out.json", FakeClock())
