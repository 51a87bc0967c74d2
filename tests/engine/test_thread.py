"""The engine thread: start, sleep, stop, crash, and its door."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from engine.config import EngineConfig
from engine.errors import EngineStoppedError
from engine.handle import EngineHandle
from engine.loop import EngineLoop
from engine.thread import EngineThread
from engine.types import EngineEvent, StreamFailed, StreamFinished, StreamId
from models.base import SpeechModel
from models.spec import PlanRequest
from tests.engine.harness import load_toy

PATIENCE_S = 60.0
"""How long a test waits for what should come at once; the machine may be busy."""

CONFIG = EngineConfig(max_streams=4, max_batch_rows=16, target_load=1.0, lead_s=1000.0)


class Ear:
    """A sink that can be waited on."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self._changed = threading.Condition()
        self.threads: set[str] = set()

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        with self._changed:
            self.threads.add(threading.current_thread().name)
            self.events += events
            self._changed.notify_all()

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE_S), self.events[-5:]

    def end_of(self, stream_id: StreamId) -> EngineEvent:
        def ends() -> list[EngineEvent]:
            kinds = StreamFinished | StreamFailed
            return [e for e in self.events if isinstance(e, kinds) and e.stream_id == stream_id]

        self.wait_for(lambda: bool(ends()))
        assert len(ends()) == 1
        return ends()[0]


@pytest.fixture
def start():
    """Starts engine threads, and stops them after the test."""
    started: list[EngineThread] = []

    def start_thread(*models: SpeechModel) -> tuple[EngineThread, Ear]:
        ear = Ear()
        loops = [EngineLoop(model, CONFIG, ear, time.monotonic) for model in models]
        thread = EngineThread(loops)
        started.append(thread)
        thread.start()
        return thread, ear

    yield start_thread
    for thread in started:
        thread.stop(PATIENCE_S)


def open_one(handle: EngineHandle, text: str = "hello", seed: int = 0) -> StreamId:
    plan = handle.plan(PlanRequest(text=text))
    return handle.open_stream(plan, seed=seed, asked_s=time.monotonic())


def test_a_stream_through_the_door(start):
    thread, ear = start(load_toy("toy-tone"))
    assert thread.wait_ready(PATIENCE_S)
    handle = thread.handles[0]
    assert handle.stats().is_ready
    assert handle.spec.name == "toy-tone"
    end = ear.end_of(open_one(handle))
    assert isinstance(end, StreamFinished)
    assert ear.threads == {"engine"}


def test_one_thread_serves_several_models(start):
    thread, ear = start(load_toy("toy-tone"), load_toy("toy-mixed"), load_toy("toy-streamed"))
    ids = [open_one(handle, seed=n) for n, handle in enumerate(thread.handles)]
    assert len(set(ids)) == 3
    for stream_id in ids:
        assert isinstance(ear.end_of(stream_id), StreamFinished)
    assert [handle.stats().n_finished for handle in thread.handles] == [1, 1, 1]


def test_streams_opened_before_warm_up_are_served(start):
    thread, ear = start(load_toy("toy-tone"))
    stream_id = open_one(thread.handles[0])
    assert isinstance(ear.end_of(stream_id), StreamFinished)


def test_streamed_text_pause_and_abort_pass_the_door(start):
    thread, ear = start(load_toy("toy-streamed"))
    handle = thread.handles[0]
    plan = handle.plan(PlanRequest(text="", is_text_final=False))
    told = handle.open_stream(plan, seed=1, asked_s=time.monotonic())
    cut = handle.open_stream(plan, seed=1, asked_s=time.monotonic())
    handle.set_paused(told, is_paused=True)
    handle.extend_text(told, plan, "some text", is_final=True)
    handle.report_playout(told, 0.0, time.monotonic())
    handle.set_paused(told, is_paused=False)
    handle.abort(cut)
    end, gone = ear.end_of(told), ear.end_of(cut)
    assert isinstance(end, StreamFinished)
    assert (end.reason, end.n_frames) == ("stop", len("some text") + 3)
    assert isinstance(gone, StreamFinished)
    assert gone.reason == "aborted"
    handle.abort(cut)


def test_an_idle_engine_sleeps(start):
    """Part 1.8 of the faults: the idle loop took a whole core."""
    thread, _ = start(load_toy("toy-tone"))
    assert thread.wait_ready(PATIENCE_S)
    calls: list[float] = []
    loop = thread._loops[0]
    plain = loop.step

    def counted(*, stands_back: bool = False) -> float | None:
        calls.append(time.monotonic())
        return plain(stands_back=stands_back)

    loop.step = counted
    before_s = time.thread_time()
    time.sleep(0.2)
    assert time.thread_time() - before_s < 0.2
    # At most a heartbeat or two; a spinning loop makes thousands.
    assert len(calls) <= 3


def test_a_crash_of_the_loop_ends_all_streams_loudly(start, caplog):
    """Fault 13: with a dead engine, health stayed green and requests waited for ever."""
    model = load_toy("toy-streamed")
    thread, ear = start(model, load_toy("toy-tone"))
    assert thread.wait_ready(PATIENCE_S)
    handle = thread.handles[0]
    plan = handle.plan(PlanRequest(text="ab", is_text_final=False))
    ids = [handle.open_stream(plan, seed=n, asked_s=time.monotonic()) for n in range(6)]
    ear.wait_for(lambda: handle.stats().n_active == 4)

    def broken(*, stands_back: bool) -> None:
        raise RuntimeError("a broken invariant")

    with caplog.at_level(logging.CRITICAL):
        thread._loops[1].step = broken
        handle.report_playout(ids[0], 0.0, time.monotonic())
        ends = [ear.end_of(stream_id) for stream_id in ids]
    for end in ends:
        assert isinstance(end, StreamFailed)
        assert end.code == "engine_stopped"
        assert "a broken invariant" in end.message
    thread.stop(PATIENCE_S)
    for each in thread.handles:
        assert not each.stats().is_alive
        assert not each.stats().is_ready
        assert "a broken invariant" in each.stats().failure
    assert any("engine thread ended" in record.message for record in caplog.records)
    with pytest.raises(EngineStoppedError, match="broken invariant"):
        open_one(handle)
    handle.abort(ids[0])


def test_a_failing_warm_up_is_no_readiness(start, caplog):
    model = load_toy("toy-tone")

    def broken(*args: object) -> None:
        raise RuntimeError("no kernel")

    model.heads = broken
    with caplog.at_level(logging.CRITICAL):
        thread, ear = start(model)
        assert not thread.wait_ready(PATIENCE_S)
    assert not thread.handles[0].stats().is_ready
    assert "no kernel" in thread.handles[0].stats().failure
    assert ear.events == []


def test_stop_ends_streams_and_joins(start):
    thread, ear = start(load_toy("toy-streamed"))
    handle = thread.handles[0]
    plan = handle.plan(PlanRequest(text="ab", is_text_final=False))
    stream_id = handle.open_stream(plan, seed=0, asked_s=time.monotonic())
    thread.stop(PATIENCE_S)
    assert not thread.is_alive
    end = ear.end_of(stream_id)
    assert isinstance(end, StreamFailed)
    assert end.code == "engine_stopped"
    with pytest.raises(EngineStoppedError):
        open_one(handle)


def test_no_open_is_lost_in_the_moment_of_the_end(start):
    """Whoever gets past the door gets an end."""
    thread, ear = start(load_toy("toy-tone"))
    assert thread.wait_ready(PATIENCE_S)
    handle = thread.handles[0]
    opened: list[StreamId] = []

    def open_many() -> None:
        plan = handle.plan(PlanRequest(text="x"))
        try:
            while True:
                opened.append(handle.open_stream(plan, seed=0, asked_s=time.monotonic()))
                time.sleep(0.001)
        except EngineStoppedError:
            return

    writers = [threading.Thread(target=open_many) for _ in range(3)]
    for writer in writers:
        writer.start()
    ear.wait_for(lambda: len(opened) > 20)
    thread.stop(PATIENCE_S)
    for writer in writers:
        writer.join(PATIENCE_S)
    for stream_id in opened:
        ear.end_of(stream_id)
