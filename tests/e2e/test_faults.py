"""Clients that misbehave, against a real server: afterwards everything is back where it was.

Each test is a crowd of one kind. What must come back: sessions, engine streams, slots, pages, the
tasks of the event loop, and the process's file descriptors; and a client that behaves is served
before, during and after.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from loadtest.server_process import running_server
from realtime.client.speech import SpeechClient
from realtime.client.spoken import RefusedError
from realtime.events import ResponsePatch

pytestmark = pytest.mark.slow

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it does so once more."
KEPT = (
    "parley_sessions",
    "parley_streams",
    "parley_tasks",
    "process_open_fds",
    "parley_engine_n_slots_used",
    "parley_engine_n_pages_used",
    "parley_engine_n_active",
    "parley_engine_n_queued",
)
PATIENCE_S = 30.0
HANDSHAKE = (
    "GET /v1/audio/speech/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: parley.v1\r\n\r\n"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server("--no-talk", "--model", "toy-tone", "--max-streams", "64") as served:
        # What is made once, at the first use, is there before anything is counted.
        asyncio.run(speak(served))
        yield served


async def speak(url: str) -> None:
    """One that behaves."""
    async with SpeechClient(url) as client:
        speech = await client.speak(SENTENCE)
        async for _ in speech:
            pass
        assert speech.result.response.status == "completed"


def state(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: sum(
            float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))
        )
        for name in KEPT
    }


class SameAsBefore:
    """Waits at its end until the server is as it was at its start."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        self._before = self._settled()

    def __exit__(self, *_: object) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while (now := state(self._url)) != self._before and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert now == self._before

    def _settled(self) -> dict[str, float]:
        """The state once a crowd before has gone."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            now = state(self._url)
            idle = not (now["parley_sessions"] or now["parley_streams"])
            if idle or time.monotonic() > deadline_s:
                assert idle, now
                return now
            time.sleep(0.1)


def reset(raw: socket.socket) -> None:
    """Break a connection as a lost network does: no close, a reset."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


async def vanish(url: str) -> None:
    """Ask for speech, hear a little of it, and break the connection."""
    client = SpeechClient(url)
    await client.connect()
    speech = await client.speak(SENTENCE, overrides=ResponsePatch(options={"frames": 200}))
    async for _ in speech:
        break
    client.inlet.drop()
    await client.close()


def test_a_tenth_of_the_clients_vanish_mid_utterance(url):
    async def crowd():
        behaving = [speak(url) for _ in range(36)]
        await asyncio.gather(*behaving, *(vanish(url) for _ in range(4)))

    with SameAsBefore(url):
        asyncio.run(asyncio.wait_for(crowd(), PATIENCE_S))


def test_two_hundred_reconnect_at_once(url):
    """As many as there is room for are served; the others are refused by name."""

    async def reconnect() -> str:
        async with SpeechClient(url):
            pass
        try:
            await speak(url)
        except RefusedError as refused:
            return refused.code
        return "served"

    async def storm() -> list[str]:
        return await asyncio.gather(*(reconnect() for _ in range(200)))

    with SameAsBefore(url):
        ends = asyncio.run(asyncio.wait_for(storm(), 2 * PATIENCE_S))
    assert set(ends) <= {"served", "overloaded"}
    assert ends.count("served") >= 100


def test_half_open_sockets_are_let_go(url):
    """Connections that never ask, that stop in their request, or after the handshake."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    starts = ("", "GET /v1/mod", HANDSHAKE.format(host=f"{host}:{port}"))
    with SameAsBefore(url):
        raw = []
        for number in range(30):
            one = socket.create_connection((host, port), timeout=PATIENCE_S)
            one.sendall(starts[number % 3].encode())
            raw.append(one)
        # The server ends them by itself; nobody closes on this side before.
        asyncio.run(speak(url))
        for one in raw:
            one.settimeout(PATIENCE_S)
            while one.recv(4096):
                pass
            one.close()


def test_those_that_stop_reading_hold_up_nobody(url):
    """The server closes them by itself; what waits for one is bounded (`test_flow`)."""

    async def stuck() -> SpeechClient:
        client = SpeechClient(url)
        await client.connect()
        client.inlet.pause()
        await client.speak(SENTENCE, overrides=ResponsePatch(options={"frames": 3000}))
        return client

    async def crowd():
        held = [await stuck() for _ in range(4)]
        await asyncio.gather(*(speak(url) for _ in range(20)))
        assert (await asyncio.to_thread(state, url))["parley_sessions"] == 4
        # What is waited for happens in another process.
        while (await asyncio.to_thread(state, url))["parley_sessions"]:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        for client in held:
            await client.close()

    with SameAsBefore(url):
        asyncio.run(asyncio.wait_for(crowd(), 2 * PATIENCE_S))


def test_resets_right_after_the_handshake(url):
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with SameAsBefore(url):
        for _ in range(50):
            one = socket.create_connection((host, port), timeout=PATIENCE_S)
            one.sendall(HANDSHAKE.format(host=f"{host}:{port}").encode())
            reset(one)
        asyncio.run(speak(url))
