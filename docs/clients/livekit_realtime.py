"""A spoken question, answered aloud, with a LiveKit agent and its openai.realtime.RealtimeModel.

    pip install livekit-agents livekit-plugins-openai
    python docs/clients/livekit_realtime.py question.wav answer.wav

The question is 24 kHz, mono, 16 bit. PARLEY_URL names the server, PARLEY_API_KEY a key, if it
wants one. `Microphone` and `Loudspeaker` stand where a session has its room.
"""

import asyncio
import os
import sys
import wave

from livekit import rtc
from livekit.agents import Agent, AgentSession, ConversationItemAddedEvent
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins import openai

URL = os.environ.get("PARLEY_URL", "http://127.0.0.1:8765")
KEY = os.environ.get("PARLEY_API_KEY", "none")


async def main(question: str, answer: str) -> None:
    """Ask once, print both sides' words, and write the answer."""
    model = openai.realtime.RealtimeModel(base_url=f"{URL}/v1", model="pico", api_key=KEY)
    session = AgentSession(llm=model)
    session.input.audio = Microphone(question)
    session.output.audio = loudspeaker = Loudspeaker()
    is_answered = asyncio.Event()

    def on_item(event: ConversationItemAddedEvent) -> None:
        if event.item.type == "message":
            print("You:" if event.item.role == "user" else "Parley:", event.item.text_content)
            if event.item.role == "assistant":
                is_answered.set()

    session.on("conversation_item_added", on_item)
    await session.start(Agent(instructions="Answer in one short sentence."))
    await is_answered.wait()
    await session.aclose()
    await model.aclose()
    with wave.open(answer, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(loudspeaker.heard)


class Microphone(AudioInput):
    """The question in pieces of 100 ms, as fast as it is spoken, then silence."""

    def __init__(self, question: str) -> None:
        super().__init__(label=question)
        self._file = wave.open(question)  # noqa: SIM115 - for as long as the session lasts

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(0.1)
        sound = self._file.readframes(2_400) or bytes(4_800)
        return rtc.AudioFrame(sound, 24_000, 1, len(sound) // 2)


class Loudspeaker(AudioOutput):
    """Keeps what is spoken; plays it in no time."""

    def __init__(self) -> None:
        super().__init__(label="file", capabilities=AudioOutputCapabilities(pause=False))
        self.heard = bytearray()
        self._unfinished_s = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        """Audio comes."""
        await super().capture_frame(frame)
        self.heard += frame.data
        self._unfinished_s += frame.duration

    def flush(self) -> None:
        """An answer is complete."""
        super().flush()
        self._finish(interrupted=False)

    def clear_buffer(self) -> None:
        """The user spoke meanwhile."""
        self._finish(interrupted=True)

    def _finish(self, *, interrupted: bool) -> None:
        if self._unfinished_s:
            played_s, self._unfinished_s = self._unfinished_s, 0.0
            self.on_playback_finished(playback_position=played_s, interrupted=interrupted)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
