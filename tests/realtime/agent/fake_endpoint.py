"""An HTTP endpoint on a loopback port: it answers as it is told, and remembers the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from realtime.agent.endpoint import Endpoint, EndpointConfig
from tests.realtime.harness import until

Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Request:
    """As the endpoint got it."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Scripted:
    """One answer. `pieces` are sent one by one; None in them waits until the client has left."""

    pieces: list[bytes | None] = field(default_factory=list)
    status: int = 200
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    breaks_off: bool = False


def events(*values: object, done: bool = True) -> Scripted:
    """Server-sent events of JSON values."""
    pieces: list[bytes | None] = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    return Scripted([*pieces, b"data: [DONE]\n\n"] if done else pieces)


def refusal(status: int, message: str = "no", **headers: str) -> Scripted:
    """An error as the API tells it."""
    body = json.dumps({"error": {"message": message, "type": "x"}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Scripted([body], status=status, kind="application/json", headers=named)


def text_events(*pieces: str, reason: str = "stop") -> Scripted:
    """A chat completion."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in pieces]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    return events(*deltas, end, usage)


class FakeEndpoint:
    """The app: the n-th request gets the n-th answer, the last one again and again."""

    def __init__(self, answers: list[Scripted]) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        self.n_left = 0
        self.has_left = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append(Request(scope["path"], headers, body))
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        await self._answer(answer, receive, send)

    async def _answer(self, answer: Scripted, receive: Any, send: Send) -> None:
        headers = {"content-type": answer.kind, **answer.headers}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
        for piece in answer.pieces:
            if piece is None:
                message = await receive()
                assert message["type"] == "http.disconnect"
                self.n_left += 1
                self.has_left.set()
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if answer.breaks_off:
            raise ConnectionAbortedError("the test wants it so")
        await send({"type": "http.response.body", "body": b""})


@dataclass
class Running:
    """A fake endpoint that listens, and a client of it that does not really sleep."""

    app: FakeEndpoint
    url: str
    endpoint: Endpoint
    slept_s: list[float]


@asynccontextmanager
async def fake_endpoint(*answers: Scripted, **config: Any) -> AsyncIterator[Running]:
    """Serve these answers."""
    app = FakeEndpoint(list(answers))
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, lifespan="off", log_config=None, access_log=False)
    )
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    endpoint = Endpoint(EndpointConfig(url=url, model="fake-1", **config), sleep=sleep)
    try:
        yield Running(app, url, endpoint, slept_s)
    finally:
        await endpoint.close()
        # uvicorn looks for open connections ten times a second only.
        await until(lambda: not server.server_state.connections)
        await server.shutdown()
