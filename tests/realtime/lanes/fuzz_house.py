"""A server of toys for all lanes, and a check that nothing of a hostile session stays behind it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.thread import EngineThread
from engine.types import Pcm
from realtime.agent.base import FunctionCall, TextDelta
from realtime.agent.native import NativeAgent
from realtime.agent.pipeline import PipelineAgent, Stages
from realtime.agent.text_model import TextDone, TextEvent, TextFacts, TextRequest
from realtime.agent.transcriber import LocalTranscriber
from realtime.app import make_app
from realtime.bridge import EventRelay
from realtime.conversation.conversing import Conversing
from realtime.gateway import Gateway
from realtime.server import Server
from tests.engine.harness import load_toy
from tests.realtime.harness import FAST_CONFIG, until
from tests.realtime.talk_harness import LoudnessDetector, ScriptedJudge

SPEAKER, HEARER = "toy-tone", "toy-audio-in"
ENGINE = EngineConfig(max_streams=8, lead_s=60.0)
QUIET = replace(
    FAST_CONFIG, max_messages_per_s=1e9, message_burst=10**9, idle_timeout_s=1e6, max_session_s=1e6
)
"""No rate, and nobody is sent away while others are fuzzed."""
MAX_ECHO = 40
PATIENCE_S = 10.0


class EchoTextModel:
    """Says what it is asked, shortly, and calls the first tool that there is."""

    facts = TextFacts(name="echo", calls_tools=True)

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextEvent]:
        said = next((one.text for one in reversed(request.messages) if one.role == "user"), "")
        yield TextDelta(text=f"Yes, {said[:MAX_ECHO]}")
        await asyncio.sleep(0)
        if request.tools and request.tool_choice != "none":
            yield FunctionCall(call_id="call_1", name=request.tools[0].name, arguments="{}")
        yield TextDelta(text=".")
        yield TextDone(reason="stop", n_input_tokens=3, n_output_tokens=2)

    async def close(self) -> None:
        """Nothing is held."""


class QuickEar:
    """Hears the same in everything that is not silent."""

    name = "quick"
    licence = "none"
    languages = ("en", "de")

    def windows(self, pcm: Pcm) -> list[Pcm]:
        return [pcm] if pcm.any() else []

    def hear(self, pcm: Pcm, language: str | None) -> str:
        return "Well, well."


class Faults(logging.Handler):
    """Everything that was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(logging.Formatter().format(record))


@dataclass
class FuzzHouse:
    """The running server, and what it held before any example."""

    gateway: Gateway
    port: int
    faults: Faults
    n_sessions: int = 0
    n_tasks: int = 0

    def remember(self) -> None:
        """What is there now is what there must be after each example."""
        self.n_sessions = self.gateway.count.n_sessions
        self.n_tasks = len(asyncio.all_tasks())

    async def nothing_left(self) -> None:
        """Wait until it holds what it held before; a leak ends with the example's own time."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: not self._left())
        except TimeoutError:
            raise AssertionError(f"left behind: {self._left()}") from None
        assert self.sample("parley_sessions") == self.n_sessions
        assert not self.faults.told, self.faults.told[0]

    def _left(self) -> list[str]:
        """What is there beyond what was remembered."""
        left = []
        if self.gateway.count.n_sessions != self.n_sessions:
            left.append(f"{self.gateway.count.n_sessions - self.n_sessions} sessions")
        if self.sample("parley_streams"):
            left.append("streams of the gateway")
        for name, handle in self.gateway.engines.items():
            if not _is_idle(stats := handle.stats()):
                left.append(f"{name}: {stats}")
        tasks = asyncio.all_tasks()
        if len(tasks) > self.n_tasks:
            left += [str(task) for task in tasks]
        return left

    def sample(self, name: str) -> float:
        return self.gateway.metrics.registry.get_sample_value(name) or 0.0


@asynccontextmanager
async def fuzz_house() -> AsyncIterator[FuzzHouse]:
    """All lanes, a toy that speaks behind an echo and one that hears, on one engine thread."""
    relays = {name: EventRelay() for name in (SPEAKER, HEARER)}
    loops = [
        EngineLoop(load_toy(name), ENGINE, relay, time.monotonic) for name, relay in relays.items()
    ]
    thread = EngineThread(loops)
    thread.start()
    assert thread.wait_ready(), thread.failure
    faults = Faults()
    logging.getLogger().addHandler(faults)
    async with AsyncExitStack() as stack:
        stack.callback(thread.stop)
        stack.callback(logging.getLogger().removeHandler, faults)
        engines = dict(zip(relays, thread.handles, strict=True))
        gateway = Gateway(engines, relays, QUIET, seed=1)
        server = Server(make_app(gateway, _conversing(gateway)))
        port = await server.startup()
        stack.push_async_callback(server.shutdown)
        yield FuzzHouse(gateway, port, faults)


def _conversing(gateway: Gateway) -> Conversing:
    stages = Stages(
        transcriber=LocalTranscriber(QuickEar()),
        text_model=EchoTextModel(),
        bridge=gateway.bridges[SPEAKER],
        workers=gateway.workers,
        config=gateway.config,
        clock=gateway.clock,
    )
    hearer = NativeAgent(HEARER, gateway.bridges[HEARER], gateway.workers, 30.0)
    agents = {SPEAKER: PipelineAgent(SPEAKER, stages), HEARER: hearer}
    return Conversing(agents=agents, detector=LoudnessDetector(), judge=ScriptedJudge())


def _is_idle(stats) -> bool:
    return not (stats.n_active or stats.n_queued or stats.n_pages_used or stats.n_slots_used)
