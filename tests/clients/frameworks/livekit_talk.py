"""A conversation through a LiveKit agent, by a Python that has it. Prints what happened as JSON.

    livekit_talk.py URL talk QUESTION.wav    a greeting, a spoken question, speech over an answer
    livekit_talk.py URL call                 a question that takes a function

The example in docs/clients/ has the shortest form of this.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import wave
from collections.abc import Callable
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins import openai

TIMEOUT_S = 120
RATE_HZ = 24_000
STORY = "Tell me a long story about a little dog that lives by the sea."


class Microphone(AudioInput):
    """Always open."""

    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._sound = bytearray()

    def say(self, path: str) -> None:
        with wave.open(path) as file:
            self._sound += file.readframes(file.getnframes())

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(0.1)
        piece = bytes(self._sound[:4_800]).ljust(4_800, b"\0")
        del self._sound[:4_800]
        return rtc.AudioFrame(piece, RATE_HZ, 1, 2_400)


class Loudspeaker(AudioOutput):
    """Plays as fast as a loudspeaker does, but to nobody."""

    def __init__(self) -> None:
        super().__init__(label="loudspeaker", capabilities=AudioOutputCapabilities(pause=False))
        self._begun_s = 0.0
        self._captured_s = 0.0
        self._end: asyncio.Task[None] | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._captured_s:
            self._begun_s = asyncio.get_running_loop().time()
            self.on_playback_started(created_at=time.time())  # noqa: TID251 - as it is asked for
        self._captured_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._captured_s and self._end is None:
            self._end = asyncio.create_task(self._play_to_the_end())

    def clear_buffer(self) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._captured_s:
            self._finish(interrupted=True)

    async def _play_to_the_end(self) -> None:
        await asyncio.sleep(self._captured_s - self._played_s())
        self._finish(interrupted=False)

    def _played_s(self) -> float:
        return min(self._captured_s, asyncio.get_running_loop().time() - self._begun_s)

    def _finish(self, *, interrupted: bool) -> None:
        played_s = self._played_s() if interrupted else self._captured_s
        self._captured_s, self._end = 0.0, None
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)


class Warnings(logging.Handler):
    """Keeps what the framework complains about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Talk:
    """An agent with Parley in it."""

    def __init__(self, url: str, agent: Agent) -> None:
        key = os.environ["PARLEY_API_KEY"]
        self.model = openai.realtime.RealtimeModel(base_url=f"{url}/v1", api_key=key)
        # This loudspeaker cannot pause, which resuming would take.
        turns: Any = {"interruption": {"resume_false_interruption": False}}
        self.session = AgentSession(llm=self.model, turn_handling=turns)
        self.agent = agent
        self.microphone = Microphone()
        self.messages: list[dict[str, Any]] = []
        self.played: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._news = asyncio.Event()

    async def run(self, scenario: Callable[[Talk], Any]) -> dict[str, Any]:
        """Have a conversation; what came of it."""
        loudspeaker = Loudspeaker()
        self.session.input.audio, self.session.output.audio = self.microphone, loudspeaker
        self.session.on("conversation_item_added", self._on_item)
        self.session.on("error", lambda event: self.errors.append(str(event.error)))
        loudspeaker.on("playback_finished", self._on_played)
        await self.session.start(self.agent)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await scenario(self)
        finally:
            await self.session.aclose()
            await self.model.aclose()
        return {"messages": self.messages, "played": self.played, "errors": self.errors}

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._news.clear()
            await self._news.wait()

    def _on_item(self, event: Any) -> None:
        item = event.item
        if item.type == "message":
            text = item.text_content
            self.messages.append({"role": item.role, "content": text, "cut": item.interrupted})
        self._news.set()

    def _on_played(self, event: Any) -> None:
        self.played.append({"s": event.playback_position, "cut": event.interrupted})
        self._news.set()


async def talk(url: str, question: str) -> dict[str, Any]:
    """A greeting, a question, and a story that is interrupted by the question."""

    async def scenario(talk: Talk) -> None:
        await talk.session.generate_reply(user_input="Say hello.")
        await talk.until(lambda: len(talk.played) == 1)
        talk.microphone.say(question)
        await talk.until(lambda: len(talk.played) == 2)
        talk.session.generate_reply(user_input=STORY)
        is_speaking = asyncio.Event()
        talk.session.on(
            "agent_state_changed",
            lambda event: is_speaking.set() if event.new_state == "speaking" else None,
        )
        await is_speaking.wait()
        await asyncio.sleep(0.5)
        talk.microphone.say(question)
        await talk.until(lambda: len(talk.played) == 4)

    return await Talk(url, Agent(instructions="Answer in one short sentence.")).run(scenario)


async def call(url: str) -> dict[str, Any]:
    """A question that takes a function."""

    @function_tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    async def scenario(talk: Talk) -> None:
        await talk.session.generate_reply(user_input="Will I need an umbrella?")
        await talk.until(lambda: bool(talk.played))

    return await Talk(url, Agent(instructions="Answer briefly.", tools=[weather])).run(scenario)


if __name__ == "__main__":
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    url, what, *arguments = sys.argv[1:]
    result = asyncio.run({"talk": talk, "call": call}[what](url, *arguments))
    print(json.dumps(result | {"warnings": warnings.lines}))  # noqa: T201
