"""A conversation through pipecat, by a Python that has it. Prints what happened as JSON.

    pipecat_talk.py URL talk QUESTION.wav    a greeting, a spoken question, speech over an answer
    pipecat_talk.py URL call                 a question that takes a function

The example in docs/clients/ has the shortest form of this.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import wave
from collections.abc import Callable
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

TIMEOUT_S = 120
RATE_HZ = 24_000
WEATHER = FunctionSchema(
    name="weather",
    description="The weather in a city.",
    properties={"city": {"type": "string"}},
    required=["city"],
)
STORY = "Tell me a long story about a little dog that lives by the sea."


class Loudspeaker(BaseOutputTransport):
    """Plays as fast as a loudspeaker does, but to nobody."""

    def __init__(self) -> None:
        params = TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE_HZ)
        super().__init__(params)
        self.played_s = 0.0

    async def start(self, frame: Any) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: Any) -> bool:
        duration_s = len(frame.audio) / 2 / RATE_HZ
        await asyncio.sleep(duration_s)
        self.played_s += duration_s
        return True


class Watcher(FrameProcessor):
    """Counts what is heard from the loudspeaker."""

    def __init__(self) -> None:
        super().__init__()
        self.n_started = self.n_stopped = self.n_interruptions = 0
        self._news = asyncio.Event()

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        self.n_started += isinstance(frame, BotStartedSpeakingFrame)
        self.n_stopped += isinstance(frame, BotStoppedSpeakingFrame)
        self.n_interruptions += isinstance(frame, InterruptionFrame)
        self._news.set()
        await self.push_frame(frame, direction)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._news.clear()
            await self._news.wait()


class Talk:
    """A pipeline with Parley in it."""

    def __init__(self, url: str, messages: list[Any], tools: list[Any]) -> None:
        transcribed = AudioInput(transcription=InputAudioTranscription())
        properties = SessionProperties(audio=AudioConfiguration(input=transcribed))
        self.llm = OpenAIRealtimeLLMService(
            api_key=os.environ["PARLEY_API_KEY"],
            base_url=f"{url.replace('http', 'ws', 1)}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(
                model="pico",
                system_instruction="Answer in one short sentence.",
                session_properties=properties,
            ),
        )
        self.context = LLMContext(messages, tools=tools)
        self.loudspeaker, self.heard = Loudspeaker(), Watcher()
        self.errors: list[str] = []
        user, assistant = LLMContextAggregatorPair(self.context)
        stages = [user, self.llm, self.loudspeaker, self.heard, assistant]
        self.worker = PipelineWorker(Pipeline(stages))
        self.worker.event_handler("on_pipeline_error")(self._on_error)
        self._sound = bytearray()

    async def run(self, scenario: Callable[[Talk], Any]) -> dict[str, Any]:
        """Have a conversation; what came of it."""
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        running = asyncio.create_task(runner.run())
        microphone = asyncio.create_task(self._keep_microphone_open())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self.worker.queue_frame(LLMRunFrame())
                await scenario(self)
        finally:
            microphone.cancel()
            await self.worker.queue_frame(EndFrame())
            await running
        return {
            "played_s": self.loudspeaker.played_s,
            "n_interruptions": self.heard.n_interruptions,
            "messages": self.context.get_messages(),
            "errors": self.errors,
        }

    def say(self, path: str) -> None:
        """Somebody speaks."""
        with wave.open(path) as file:
            self._sound += file.readframes(file.getnframes())

    async def _keep_microphone_open(self) -> None:
        while True:
            piece = bytes(self._sound[:4_800]).ljust(4_800, b"\0")
            del self._sound[:4_800]
            await self.worker.queue_frame(InputAudioRawFrame(piece, RATE_HZ, 1))
            await asyncio.sleep(0.1)

    async def _on_error(self, _worker: Any, frame: ErrorFrame) -> None:
        self.errors.append(frame.error)


async def talk(url: str, question: str) -> dict[str, Any]:
    """A greeting, a question, and a story that is interrupted by the question."""

    async def scenario(talk: Talk) -> None:
        heard = talk.heard
        await heard.until(lambda: heard.n_stopped == 1)
        talk.say(question)
        await heard.until(lambda: heard.n_stopped == 2)
        story = {"role": "user", "content": STORY}
        # Past the aggregator of what the user says, which keeps to itself what is written to it.
        await talk.llm.queue_frame(LLMMessagesAppendFrame([story], run_llm=True))
        await heard.until(lambda: heard.n_started == 3)
        talk.say(question)
        await heard.until(lambda: heard.n_started == 4)
        await heard.until(lambda: heard.n_stopped == 4)

    return await Talk(url, [{"role": "user", "content": "Say hello."}], []).run(scenario)


async def call(url: str) -> dict[str, Any]:
    """A question that takes a function."""

    async def weather(params: Any) -> None:
        await params.result_callback({"weather": f"rain in {params.arguments['city']}"})

    async def scenario(talk: Talk) -> None:
        await talk.heard.until(lambda: talk.heard.n_stopped == 1)

    asked = {"role": "user", "content": "Will I need an umbrella?"}
    talk = Talk(url, [asked], [WEATHER])
    talk.llm.register_function("weather", weather)
    return await talk.run(scenario)


if __name__ == "__main__":
    warnings: list[str] = []
    logger.add(warnings.append, level="WARNING")
    url, what, *arguments = sys.argv[1:]
    result = asyncio.run({"talk": talk, "call": call}[what](url, *arguments))
    print(json.dumps(result | {"warnings": warnings}))  # noqa: T201
