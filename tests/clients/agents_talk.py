"""A conversation through `openai-agents`. What it cannot read, or is refused, is a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agents import FunctionTool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession

from tests.clients.keys import KEY
from tests.clients.microphone import open_microphone

TIMEOUT_S = 90.0
"""Of one wait: an answer takes seconds, and the machine may be busy."""


class AgentsTalk:
    """What a session of the package tells, kept.

    Args:
        session: entered.
    """

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.heard = bytearray()
        self.said: dict[str, str] = {}
        self.user_said: list[str] = []
        self.tool_results: list[str] = []
        self.history: list[Any] = []
        self.n_turns = 0
        self.n_interruptions = 0
        self.errors: list[Any] = []
        self._news = asyncio.Event()

    async def listen(self) -> None:
        """Take events until the session ends."""
        async for event in self.session:
            self._take(event)
            self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something."""
        async with asyncio.timeout(TIMEOUT_S):
            while not is_so():
                assert not self.errors, self.errors
                self._news.clear()
                await self._news.wait()

    async def answered(self, n_turns: int) -> None:
        """Wait until so many answers are complete."""
        await self.until(lambda: self.n_turns >= n_turns)

    def microphone(self) -> Any:
        """An open microphone."""
        return open_microphone(self.session.send_audio)

    def _take(self, event: Any) -> None:
        match event.type:
            case "audio":
                self.heard += event.audio.data
            case "audio_interrupted":
                self.n_interruptions += 1
            case "error":
                self.errors.append(event.error)
            case "history_updated":
                self.history = list(event.history)
            case "tool_end":
                self.tool_results.append(event.output)
            case "raw_model_event":
                self._take_raw(event.data)

    def _take_raw(self, event: Any) -> None:
        match event.type:
            case "transcript_delta":
                self.said[event.item_id] = self.said.get(event.item_id, "") + event.delta
            case "input_audio_transcription_completed":
                self.user_said.append(event.transcript)
            case "turn_ended":
                self.n_turns += 1
            case "exception":
                self.errors.append(event.exception)


@asynccontextmanager
async def talking(url: str, tools: Sequence[FunctionTool] = ()) -> AsyncIterator[AgentsTalk]:
    """A session of the package with its own defaults: only the address is ours."""
    agent = RealtimeAgent(name="Parley", instructions="Answer briefly.", tools=list(tools))
    server = {"url": f"{url.replace('http', 'ws', 1)}/v1/realtime", "api_key": KEY}
    async with await RealtimeRunner(agent).run(model_config=server) as session:
        talk = AgentsTalk(session)
        listening = asyncio.create_task(talk.listen())
        try:
            yield talk
            assert not talk.errors, talk.errors
        finally:
            listening.cancel()
            await asyncio.wait([listening])


def converse(
    url: str, scenario: Callable[[AgentsTalk], Any], tools: Sequence[FunctionTool] = ()
) -> None:
    """Run a scenario in a session of its own."""

    async def run() -> None:
        async with talking(url, tools) as talk:
            await scenario(talk)

    asyncio.run(run())
