"""The text model of an OpenAI-compatible endpoint: `POST chat/completions`, streamed.

Event loop only.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from realtime.agent.base import FunctionCall, TextDelta, Tool
from realtime.agent.endpoint import Endpoint, bad_response
from realtime.agent.errors import StageError
from realtime.agent.text_model import ChatMessage, TextDone, TextEvent, TextFacts, TextRequest
from realtime.errors import printable

MAX_CALLS: Final = 32
MAX_ARGUMENT_CHARACTERS: Final = 65_536
FIXED_CHOICES: Final = frozenset(("auto", "none", "required"))


class OpenAiTextModel:
    """Implements `realtime.agent.text_model.TextModel`.

    Args:
        endpoint: that is asked.
        facts: of the model.
    """

    def __init__(self, endpoint: Endpoint, facts: TextFacts | None = None) -> None:
        self._endpoint = endpoint
        self._facts = facts or TextFacts(name=endpoint.config.model, calls_tools=True)

    @property
    def facts(self) -> TextFacts:
        """See `TextModel.facts`."""
        return self._facts

    async def close(self) -> None:
        """Close idle connections."""
        await self._endpoint.close()

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextEvent]:
        """See `TextModel.stream`."""
        reader = _CompletionReader()
        body = request_body(request, self._endpoint.config.model)
        async with self._endpoint.post("chat/completions", body=body) as answer:
            if not answer.is_event_stream:
                raise bad_response("it is not streamed")
            while (event := await answer.next_event()) is not None:
                if text := reader.read(event):
                    yield TextDelta(text=text)
        done = reader.done()
        for call in reader.calls():
            yield call
        yield done


def request_body(request: TextRequest, model: str) -> dict[str, Any]:
    """The request as JSON."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(one) for one in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.tools:
        choice = request.tool_choice
        named = {"type": "function", "function": {"name": choice}}
        body["tools"] = [_tool(one) for one in request.tools]
        body["tool_choice"] = choice if choice in FIXED_CHOICES else named
    return body


def _message(message: ChatMessage) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        value["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
        value["content"] = message.text or None
    if message.role == "tool":
        value["tool_call_id"] = message.call_id
    return value


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": dict(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


@dataclass(slots=True)
class _GrowingCall:
    """A call whose arguments come piece by piece."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _CompletionReader:
    """What the events of one completion add up to."""

    def __init__(self) -> None:
        self._calls: dict[int, _GrowingCall] = {}
        self._reason: str | None = None
        self._n_input_tokens = 0
        self._n_output_tokens = 0

    def read(self, event: dict[str, Any]) -> str:
        """Take an event. Returns its text. Raises: `StageError`."""
        if (usage := event.get("usage")) is not None:
            self._n_input_tokens = _count(usage, "prompt_tokens")
            self._n_output_tokens = _count(usage, "completion_tokens")
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise bad_response("an event without choices")
        if not choices:
            return ""
        choice = _object(choices[0], "choice")
        delta = _object(choice.get("delta") or {}, "delta")
        for piece in _list(delta.get("tool_calls") or []):
            self._grow(_object(piece, "tool call"))
        reason = choice.get("finish_reason")
        self._reason = self._reason if reason is None else str(reason)
        return _string(delta, "content")

    def done(self) -> TextDone:
        """How it ended. Raises: `StageError` where it did not."""
        if self._reason is None:
            raise bad_response("it broke off")
        if self._reason == "content_filter":
            raise StageError("content_filter", "the endpoint's filter stopped the answer")
        return TextDone(
            reason="length" if self._reason == "length" else "stop",
            n_input_tokens=self._n_input_tokens,
            n_output_tokens=self._n_output_tokens,
        )

    def calls(self) -> list[FunctionCall]:
        """The calls, complete. Raises: `StageError`."""
        return [_whole_call(self._calls[idx]) for idx in sorted(self._calls)]

    def _grow(self, piece: dict[str, Any]) -> None:
        idx = piece.get("index", 0)
        if not isinstance(idx, int) or not 0 <= idx < MAX_CALLS:
            raise bad_response(f"tool call number {printable(idx)}")
        call = self._calls.setdefault(idx, _GrowingCall())
        function = _object(piece.get("function") or {}, "function")
        call.call_id = call.call_id or _string(piece, "id")
        call.name = call.name or _string(function, "name")
        call.arguments += _string(function, "arguments")
        if len(call.arguments) > MAX_ARGUMENT_CHARACTERS:
            raise bad_response(f"arguments of more than {MAX_ARGUMENT_CHARACTERS} characters")


def _whole_call(call: _GrowingCall) -> FunctionCall:
    if not call.name or not call.call_id:
        raise bad_response("a tool call without name or id")
    arguments = call.arguments or "{}"
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        raise bad_response(f"arguments that are not JSON: {printable(arguments)}") from None
    return FunctionCall(call_id=call.call_id, name=call.name, arguments=arguments)


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_response(f"a {what} that is no object: {printable(value)}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise bad_response(f"tool calls that are no list: {printable(value)}")
    return value


def _string(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise bad_response(f"{name} is {printable(text)}, not a string")
    return text


def _count(usage: object, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0
