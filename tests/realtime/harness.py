"""A whole gateway on a loopback port with a fake engine, and a plain client that hides nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from realtime.audio.coder import pcm16_bytes
from realtime.audio.opus import OpusDecoder
from realtime.bridge import EventRelay
from realtime.config import GatewayConfig
from realtime.frames import AudioFrame, parse_audio_frame
from realtime.protocol import SPEECH_PATH, SUBPROTOCOL
from realtime.server import Server, build_app
from tests.fakes import FakeEngine, tone

PATIENCE_S = 60.0
"""Nothing here takes a second; this only turns a hang into a failure on a loaded machine."""


def run(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario on the loop that the server uses, with an end in sight."""

    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await scenario()

    return uvloop.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Wait until something holds; a hang ends with the scenario's own time."""
    while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
        await asyncio.sleep(0.005)


@dataclass
class Spoken:
    """A response as the client got it."""

    created: dict[str, Any]
    started: dict[str, Any] | None
    frames: list[AudioFrame]
    audio_done: dict[str, Any] | None
    done: dict[str, Any]
    errors: list[dict[str, Any]]

    @property
    def status(self) -> str:
        return self.done["status"]

    @property
    def n_samples(self) -> int:
        return self.done["usage"]["n_samples"]

    def pcm(self) -> np.ndarray:
        """Decoded and cut as the protocol says."""
        if self.started is None:
            return np.zeros(0, np.float32)
        if self.started["codec"] == "pcm16":
            data = b"".join(frame.payload for frame in self.frames)
            return np.frombuffer(data, "<i2").astype(np.float32) / 32767
        decoder = OpusDecoder(sample_rate_hz=self.started["sample_rate_hz"])
        pcm = np.concatenate([decoder.decode(frame.payload) for frame in self.frames])
        return pcm[self.started["pre_skip_samples"] :][: self.audio_done["n_samples"]]


class Client:
    """One socket, message by message."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session: dict[str, Any] = {}

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def receive(self) -> dict[str, Any] | AudioFrame:
        message = await self.socket.recv()
        return parse_audio_frame(message) if isinstance(message, bytes) else json.loads(message)

    async def event(self, kind: str) -> dict[str, Any]:
        """The next event, which must be of this type."""
        event = await self.receive()
        assert isinstance(event, dict), f"a frame came where {kind} was due"
        assert event["type"] == kind, event
        return event

    async def error(self) -> dict[str, Any]:
        return (await self.event("error"))["error"]

    async def text(self, *pieces: str) -> None:
        """A whole response's text."""
        for piece in pieces:
            await self.send("input_text.append", text=piece)
        await self.send("input_text.end")

    async def spoken(self) -> Spoken:
        """Everything up to the next `response.done`, checked for order."""
        created = started = audio_done = None
        frames: list[AudioFrame] = []
        errors: list[dict[str, Any]] = []
        while True:
            event = await self.receive()
            if isinstance(event, AudioFrame):
                assert started is not None, "a frame before response.output_audio.started"
                assert audio_done is None, "a frame after response.output_audio.done"
                assert event.response_number == started["response_number"] & 0xFFFF
                frames.append(event)
            elif event["type"] == "response.output_audio.started":
                assert started is None
                started = event
            elif event["type"] == "response.output_audio.done":
                audio_done = event
            elif event["type"] == "response.created":
                created = created or event["response"]
            elif event["type"] == "error":
                errors.append(event["error"])
            else:
                assert event["type"] == "response.done", event
                assert (started is None) == (audio_done is None)
                return Spoken(created, started, frames, audio_done, event["response"], errors)

    async def say(self, *pieces: str) -> Spoken:
        await self.text(*pieces)
        return await self.spoken()


@dataclass
class Gateway:
    """A running server and what is behind it."""

    server: Server
    engine: FakeEngine
    relay: EventRelay
    port: int

    @asynccontextmanager
    async def client(self, *, expect_open: bool = True, **options: Any) -> AsyncIterator[Client]:
        options.setdefault("subprotocols", [SUBPROTOCOL])
        url = f"ws://127.0.0.1:{self.port}{SPEECH_PATH}"
        async with connect(url, compression=None, proxy=None, **options) as socket:
            client = Client(socket)
            if expect_open:
                client.session = (await client.event("session.created"))["session"]
            yield client

    async def http(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return await http_get(self.port, path)

    def sample(self, name: str, **labels: str) -> float:
        """A number of `/metrics`; 0 where nothing was counted yet."""
        registry = self.server.gateway.metrics.registry
        return registry.get_sample_value(name, labels) or 0.0


async def http_get(
    port: int, path: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """A plain GET, refusals of an upgrade included."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", "Host: test", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    status, *rest = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in rest)
    return int(status.split()[1]), {name.lower(): value for name, value in pairs}, body


FAST_CONFIG = GatewayConfig(port=0, worker_threads=1, drain_timeout_s=2.0)


@asynccontextmanager
async def gateway(
    config: GatewayConfig = FAST_CONFIG, *, by_hand: bool = False, **engine_options: Any
) -> AsyncIterator[Gateway]:
    """A server on a free port. At the end nothing of it may be left.

    Args:
        config: of the gateway.
        by_hand: the test steps the engine; otherwise a thread does.
        engine_options: of `FakeEngine`.
    """
    relay = EventRelay()
    engine = FakeEngine(relay, **engine_options)
    server = Server(build_app({"fake": engine}, replace(config, port=0), {"fake": relay}))
    port = await server.startup()
    if not by_hand:
        engine.start()
    try:
        yield Gateway(server, engine, relay, port)
        if by_hand:
            # Aborted streams end at the engine's next step.
            await until(lambda: not engine.step())
        await until(lambda: not engine.n_open and not relay.n_streams)
    finally:
        await server.shutdown()
        engine.stop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not {task.get_name() for task in others if not task.get_name().startswith("Task-")}
    assert server.gateway.count.n_sessions == 0
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("gateway", "fake engine"))]


def web_page(folder: Path) -> Path:
    """A stand-in for the page."""
    (folder / "index.html").write_text("<title>talk</title>")
    (folder / "app.js").write_text("export {};")
    return folder


async def as_pcm(client: Client) -> dict[str, Any]:
    """Ask for PCM16 from now on, whose samples can be compared exactly."""
    await client.send("session.update", session={"output": {"codec": "pcm16"}})
    return (await client.event("session.updated"))["session"]


def pcm16_of(*units: str) -> bytes:
    """What the fake says for these units, as PCM16."""
    return b"".join(pcm16_bytes(tone(unit)) for unit in units)


def payload(spoken: Spoken) -> bytes:
    """All audio of a response, headers cut."""
    return b"".join(frame.payload for frame in spoken.frames)


async def done_of(client: Client) -> dict[str, Any]:
    """The response of the next `response.done`, whatever comes before."""
    while True:
        event = await client.receive()
        if isinstance(event, dict) and event["type"] == "response.done":
            return event["response"]
