"""A gateway in front of a real engine that runs on no thread: one step at a time, on one clock.

What a step costs is made up and moves the clock, for engine and gateway alike. So the same
commands at the same steps give the same times, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.thread import EngineThread
from engine.types import AudioChunk, EngineEvent, StreamId
from models.base import SpeechModel
from realtime.app import make_app
from realtime.bridge import EventRelay
from realtime.config import GatewayConfig
from realtime.gateway import Gateway
from realtime.server import Server
from tests.engine.harness import FakeClock, FreeCosts, load_toy
from tests.realtime import harness
from tests.realtime.harness import FAST_CONFIG, until

ENGINE = EngineConfig(max_streams=8, lead_s=2.0)
LEAST_WAIT_S = 1e-3
REST_S = 1e-3
STEP_S, DECODE_ROW_S, PREFILL_ROW_S, CHUNK_S = 2e-3, 1e-3, 1e-4, 2e-3


class SteppedEngine:
    """The loop, its door, and when each stream was opened and first sounded.

    While `is_held` it only steps when the test says so.
    """

    def __init__(self, model: SpeechModel, config: EngineConfig) -> None:
        self.clock = FakeClock()
        self.relay = EventRelay()
        self.loop = EngineLoop(model, config, self._take, self.clock)
        self.loop.costs = FreeCosts()
        self.loop.stats = replace(self.loop.stats, is_ready=True)
        # The thread is never started: it lends its door.
        self.handle = EngineThread([self.loop]).handles[0]
        self.seen_s: dict[StreamId, float] = {}
        self.sounded_s: dict[StreamId, float] = {}
        self.is_held = False
        self._new: set[StreamId] = set()

    def _take(self, events: Sequence[EngineEvent]) -> None:
        chunks = [e for e in events if isinstance(e, AudioChunk) and len(e.pcm)]
        self._new |= {chunk.stream_id for chunk in chunks} - self.sounded_s.keys()
        self.relay(events)

    def step(self) -> bool:
        """One step, and the time that it takes; False if there is nothing to wait for."""
        metrics = self.loop.metrics
        work = (metrics.decode_rows, metrics.prefill_rows, metrics.chunk_streams)
        before, n_steps = [one.sum for one in work], metrics.step_s.n
        for command in list(self.loop.inbox._commands):
            self.seen_s.setdefault(command.stream_id, self.clock.now_s)
        wanted_in_s = self.loop.step()
        n_decode, n_prefill, n_chunks = (
            one.sum - was for one, was in zip(work, before, strict=True)
        )
        if metrics.step_s.n > n_steps:
            cost_s = n_decode * DECODE_ROW_S + n_prefill * PREFILL_ROW_S + n_chunks * CHUNK_S
            self.clock.advance(STEP_S + cost_s)
        elif wanted_in_s is not None:
            self.clock.advance(max(wanted_in_s, LEAST_WAIT_S))
        # Else time stands still: what workers and sockets do takes none.
        for stream_id in self._new:
            self.sounded_s[stream_id] = self.clock.now_s
        self._new.clear()
        return wanted_in_s is not None

    async def run(self) -> None:
        """Step for ever; the event loop has a turn after each."""
        while True:
            # An idle engine that spins would keep the interpreter from the workers.
            is_busy = not self.is_held and self.step()
            await asyncio.sleep(0 if is_busy else REST_S)

    def first_sounds_s(self) -> dict[StreamId, float]:
        """Of each stream that sounded: seconds from its arrival at the engine."""
        return {one: at_s - self.seen_s[one] for one, at_s in self.sounded_s.items()}


@dataclass
class SteppedHouse(harness.Gateway):
    """A running server in front of it."""

    engine: SteppedEngine

    @property
    def clock(self) -> FakeClock:
        return self.engine.clock


@asynccontextmanager
async def stepped_house(
    config: GatewayConfig = FAST_CONFIG,
    *,
    model: SpeechModel | None = None,
    engine_config: EngineConfig = ENGINE,
) -> AsyncIterator[SteppedHouse]:
    """A server whose engine steps whenever the event loop has nothing better to do.

    At the end every session, stream, slot, page, task and descriptor is back.
    """
    engine = SteppedEngine(model or load_toy("toy-tone"), engine_config)
    relays = {"toy": engine.relay}
    gateway = Gateway({"toy": engine.handle}, relays, config, clock=engine.clock, seed=1)
    server = Server(make_app(gateway))
    port = await server.startup()
    stepping = asyncio.create_task(engine.run(), name="stepping")
    house = SteppedHouse(server, engine, engine.relay, port)
    n_descriptors = count_descriptors()
    try:
        yield house
        await until(lambda: not engine.relay.n_streams)
        await until(lambda: not gateway.count.n_sessions)
        check_engine_is_empty(engine.loop)
        # Closed sockets give their descriptors back in a later turn of the event loop.
        await until(lambda: count_descriptors() <= n_descriptors)
    finally:
        stepping.cancel()
        await asyncio.wait([stepping])
        await server.shutdown()
    others = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert not {name for name in others if not name.startswith("Task-")}


def count_descriptors() -> int:
    """Open files and sockets of this process."""
    return len(os.listdir("/proc/self/fd"))


def check_engine_is_empty(loop: EngineLoop) -> None:
    """No stream holds anything; the prefix cache may keep pages."""
    loop.check()
    stats = loop.stats
    assert (stats.n_active, stats.n_queued, stats.n_slots_used) == (0, 0, 0)
    assert stats.n_pages_used == stats.n_pages_cached
