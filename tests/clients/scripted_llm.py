"""A text model behind an OpenAI-compatible endpoint that calls the functions it is given.

Asked by the user while it has a function, it calls that with a fixed argument; told the result, it
says the result. Asked for a story, it does not come to an end for half a minute.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

ARGUMENTS = '{"city": "Rome"}'
NO_TOOL = "I have nothing to look it up with."
STORY = "The little dog ran along the beach and looked out over the sea. " * 12
STORY_S = 30
"""It lasts longer than that."""


@contextmanager
def running_llm() -> Iterator[str]:
    """Serve it on a free loopback port. Gives its base URL."""
    config = uvicorn.Config(_app(), port=0, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        socket.close()


def _app() -> Starlette:
    return Starlette(routes=[Route("/v1/chat/completions", _complete, methods=["POST"])])


async def _complete(request: Request) -> StreamingResponse:
    asked = await request.json()
    return StreamingResponse(_events(_deltas(asked)), media_type="text/event-stream")


def _deltas(asked: dict[str, Any]) -> list[dict[str, Any]]:
    last = asked["messages"][-1]
    if last["role"] == "tool":
        return [{"content": "The answer is: "}, {"content": f"{last['content']}."}]
    if "story" in str(last["content"]):
        return [{"content": STORY}]
    if not asked.get("tools"):
        return [{"content": NO_TOOL}]
    name = asked["tools"][0]["function"]["name"]
    return [
        _call({"index": 0, "id": "call_1", "type": "function", "function": {"name": name}}),
        *(_call({"index": 0, "function": {"arguments": one}}) for one in ARGUMENTS),
    ]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [call]}


async def _events(deltas: list[dict[str, Any]]) -> AsyncIterator[str]:
    reason = "tool_calls" if "tool_calls" in deltas[-1] else "stop"
    for delta in deltas:
        yield _event({"choices": [{"index": 0, "delta": delta}]})
    yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    yield _event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
