"""What all sessions share: engines, worker threads, limits, metrics, and the clean stop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final, Protocol

from engine.handle import EngineHandle
from models.spec import ModelSpec
from realtime.bridge import EngineBridge, EventRelay
from realtime.config import GatewayConfig
from realtime.limits import SessionCount
from realtime.metrics import GatewayMetrics
from realtime.workers import Workers

LAG_TICK_S: Final = 0.25


class StoppableSession(Protocol):
    """What a stop needs of a session."""

    @property
    def queue_s(self) -> float:
        """Seconds of audio that wait for the socket."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether something is being spoken."""
        ...

    def request_stop(self) -> None:
        """End once nothing is being spoken, and begin nothing."""
        ...

    def stop_now(self) -> None:
        """End at once."""
        ...


class Gateway:
    """Shared by all sessions of one app. Event loop only, but for the engines' sinks.

    Args:
        engines: doors by model name; the first is the default.
        relays: the sink that each engine was started with, by the same names.
        config: of the gateway.
        clock: monotonic seconds.
        seed: of the seeds that responses draw; None takes the system's randomness.
    """

    def __init__(
        self,
        engines: Mapping[str, EngineHandle],
        relays: Mapping[str, EventRelay],
        config: GatewayConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        assert engines, "a gateway without an engine cannot speak"
        assert engines.keys() == relays.keys(), "every engine has its relay"
        self.config = config
        self.clock = clock
        self.engines = dict(engines)
        self.metrics = GatewayMetrics()
        freed_s = self.metrics.cancel_to_freed_s
        self.bridges = {
            name: EngineBridge(engines[name], relays[name], clock, freed_s.labels(name).observe)
            for name in engines
        }
        self.specs: dict[str, ModelSpec] = {name: one.spec for name, one in self.bridges.items()}
        # A model that only writes is there for the agents; nobody can ask it to speak.
        self.speaking = {n: s for n, s in self.specs.items() if s.tasks != ("text",)} or self.specs
        self.workers = Workers(config.worker_threads)
        self.count = SessionCount(config.max_sessions)
        self.random = random.Random(seed)
        self.is_stopping = False
        self._sessions: set[StoppableSession] = set()
        self._stack = AsyncExitStack()
        self._left = asyncio.Event()
        self.metrics.watch(self.engines, n_streams=self._n_streams, queues_s=self._queues_s)

    @property
    def is_alive(self) -> bool:
        """Whether every engine still runs."""
        return all(handle.stats().is_alive for handle in self.engines.values())

    @property
    def is_ready(self) -> bool:
        """Whether every engine is warm and new sessions are taken."""
        stats = [handle.stats() for handle in self.engines.values()]
        return not self.is_stopping and all(one.is_ready and one.is_alive for one in stats)

    @property
    def has_work(self) -> bool:
        """Whether something is being spoken."""
        return any(session.has_work for session in self._sessions)

    async def start(self) -> None:
        """Let the engines' events reach this event loop."""
        loop = asyncio.get_running_loop()
        for bridge in self.bridges.values():
            bridge.relay.attach(loop)
        lag = asyncio.create_task(self._watch_lag(), name="loop lag")
        self._stack.push_async_callback(_stop_task, lag)

    async def close(self) -> None:
        """Stop the shared parts. Sessions have ended before."""
        await self._stack.aclose()
        for bridge in self.bridges.values():
            bridge.relay.detach()
        await asyncio.to_thread(self.workers.close)

    def enter(self, session: StoppableSession) -> None:
        """A session has begun."""
        self._sessions.add(session)
        self.metrics.sessions.set(len(self._sessions))
        self.metrics.sessions_opened.inc()
        if self.is_stopping:
            session.request_stop()

    def leave(self, session: StoppableSession) -> None:
        """A session has ended."""
        self._sessions.discard(session)
        self.metrics.sessions.set(len(self._sessions))
        self._left.set()

    async def drain(self) -> None:
        """Take nobody in; let what is being spoken end, for a while; then end all sessions."""
        self.is_stopping = True
        for session in list(self._sessions):
            session.request_stop()
        if not await self._all_left(self.config.drain_timeout_s):
            self.cut_short()
            await self._all_left(self.config.drain_timeout_s)

    def cut_short(self) -> None:
        """End all sessions at once: a `drain` under way need not wait longer."""
        for session in list(self._sessions):
            session.stop_now()

    async def _all_left(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._sessions:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return True

    async def _watch_lag(self) -> None:
        while True:
            due_s = self.clock() + LAG_TICK_S
            await asyncio.sleep(LAG_TICK_S)
            self.metrics.loop_lag_s.observe(max(0.0, self.clock() - due_s))

    def _n_streams(self) -> int:
        # Models of one engine thread may share a relay.
        return sum(relay.n_streams for relay in {b.relay for b in self.bridges.values()})

    def _queues_s(self) -> list[float]:
        return [session.queue_s for session in list(self._sessions)]


async def _stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
