"""A thread that is alive and gets nowhere is told by the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineStoppedError
from engine.loop import EngineLoop
from engine.thread import EngineThread
from engine.types import StreamFailed, StreamFinished
from engine.watchdog import STUCK_AFTER_S, Watchdog
from models.toy.faulty import FaultyModel
from tests.engine.harness import FakeClock, load_toy
from tests.engine.test_thread import PATIENCE_S, Ear, open_one


def test_a_turn_that_takes_too_long_is_stuck_until_it_ends():
    clock = FakeClock()
    dog = Watchdog(clock, patience_s=5.0)
    assert not dog.fault
    dog.begin()
    clock.advance(5.0)
    assert not dog.fault
    clock.advance(1.0)
    assert "6 s" in dog.fault
    dog.end()
    clock.advance(1000.0)
    assert not dog.fault, "sleep is not work"


class HangingModel(FaultyModel):
    """Once told to, hangs in the call that a step makes, as a lost device would."""

    def __init__(self) -> None:
        super().__init__(load_toy("toy-tone"))
        self.must_hang = threading.Event()
        self.hangs = threading.Event()
        self.is_freed = threading.Event()

    def heads(self, hidden: Tensor) -> list[Tensor]:
        if self.must_hang.is_set():
            self.hangs.set()
            assert self.is_freed.wait(PATIENCE_S)
        return super().heads(hidden)


class Hung:
    """A thread in a step that does not end, on a clock by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.model = HangingModel()
        self.ear = Ear()
        loop = EngineLoop(self.model, EngineConfig(max_streams=2), self.ear, time.monotonic)
        self.thread = EngineThread([loop], self.clock)
        self.thread.start()
        assert self.thread.wait_ready(PATIENCE_S)
        self.handle = self.thread.handles[0]
        self.model.must_hang.set()
        self.stream_id = open_one(self.handle)
        assert self.model.hangs.wait(PATIENCE_S)

    def free(self) -> None:
        self.model.must_hang.clear()
        self.model.is_freed.set()


@pytest.fixture
def hung() -> Iterator[Hung]:
    one = Hung()
    yield one
    one.free()
    one.thread.stop(PATIENCE_S)


def test_a_hung_model_turns_the_engine_red_and_takes_no_stream(hung):
    assert hung.handle.stats().is_ready
    hung.clock.advance(STUCK_AFTER_S + 1)
    stats = hung.handle.stats()
    assert not stats.is_ready
    assert not stats.is_alive
    assert "in one step for 11 s" in stats.failure
    with pytest.raises(EngineStoppedError, match="in one step"):
        open_one(hung.handle)
    hung.handle.abort(hung.stream_id)


def test_an_engine_that_comes_back_is_green_again(hung):
    hung.clock.advance(STUCK_AFTER_S + 1)
    hung.free()
    assert isinstance(hung.ear.end_of(hung.stream_id), StreamFinished)
    deadline_s = time.monotonic() + PATIENCE_S
    while not hung.handle.stats().is_ready and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert hung.handle.stats().is_ready
    assert isinstance(hung.ear.end_of(open_one(hung.handle)), StreamFinished)


@pytest.mark.parametrize("broken", ["make", "admit"])
def test_a_crash_while_a_stream_is_taken_in_tells_that_stream_and_all_others(broken, caplog):
    """Such a stream was in no list any more, and its client waited in vain."""
    ear = Ear()
    loop = EngineLoop(load_toy("toy-tone"), EngineConfig(max_streams=2), ear, time.monotonic)
    thread = EngineThread([loop])

    def crash(*_: object) -> None:
        raise RuntimeError("a broken invariant")

    setattr(loop._groups, broken, crash)
    ids = [open_one(thread.handles[0]) for _ in range(3)]
    thread.start()
    for stream_id in ids:
        end = ear.end_of(stream_id)
        assert isinstance(end, StreamFailed)
        assert end.code == "engine_stopped"
        assert "a broken invariant" in end.message
    thread.stop(PATIENCE_S)
    assert "engine thread ended" in caplog.text
