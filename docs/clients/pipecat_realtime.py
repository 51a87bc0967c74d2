"""A spoken question, answered aloud, with pipecat's OpenAIRealtimeLLMService.

    pip install "pipecat-ai[openai]"
    python docs/clients/pipecat_realtime.py question.wav answer.wav

The question is 24 kHz, mono, 16 bit. PARLEY_URL names the server, PARLEY_API_KEY a key, if it
wants one. `speak` and `Loudspeaker` stand where a pipeline has its transport.
"""

import asyncio
import os
import sys
import wave

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

URL = os.environ.get("PARLEY_URL", "http://127.0.0.1:8765").replace("http", "ws", 1)
KEY = os.environ.get("PARLEY_API_KEY", "none")
TRANSCRIBED = SessionProperties(
    audio=AudioConfiguration(input=AudioInput(transcription=InputAudioTranscription()))
)


async def main(question: str, answer: str) -> None:
    """Ask once, print both sides' words, and write the answer."""
    llm = OpenAIRealtimeLLMService(
        api_key=KEY,
        base_url=f"{URL}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(model="pico", session_properties=TRANSCRIBED),
    )
    context = LLMContext()
    user, assistant = LLMContextAggregatorPair(context)
    loudspeaker = Loudspeaker()
    worker = PipelineWorker(Pipeline([user, llm, loudspeaker, assistant]))
    runner = WorkerRunner()
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    microphone = asyncio.create_task(speak(worker, question))
    await loudspeaker.is_done.wait()
    microphone.cancel()
    await worker.queue_frame(EndFrame())
    await running
    for message in context.get_messages():
        print("You:" if message["role"] == "user" else "Parley:", message["content"])
    with wave.open(answer, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(loudspeaker.heard)


class Loudspeaker(FrameProcessor):
    """Keeps what is spoken, until the first answer is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = bytearray()
        self.is_done = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Keep audio; pass everything on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.heard += frame.audio
        elif isinstance(frame, TTSStoppedFrame):
            self.is_done.set()
        await self.push_frame(frame, direction)


async def speak(worker: PipelineWorker, question: str) -> None:
    """Send the question as a microphone would, then silence: Parley hears when it is over."""
    with wave.open(question) as file:
        while True:
            sound = file.readframes(2_400) or bytes(4_800)
            await worker.queue_frame(InputAudioRawFrame(sound, 24_000, 1))
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
