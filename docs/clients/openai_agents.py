"""A spoken question, answered aloud, with the realtime agents of `openai-agents`.

    pip install openai-agents
    python docs/clients/openai_agents.py question.wav answer.wav

The question is 24 kHz, mono, 16 bit. PARLEY_URL names the server, PARLEY_API_KEY a key, if it
wants one.
"""

import asyncio
import os
import sys
import wave

from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession

URL = os.environ.get("PARLEY_URL", "http://127.0.0.1:8765").replace("http", "ws", 1)
KEY = os.environ.get("PARLEY_API_KEY", "none")
AGENT = RealtimeAgent(name="Parley", instructions="Answer in one short sentence.")


async def main(question: str, answer: str) -> None:
    """Ask once, print both sides' words, and write the answer."""
    heard, said = bytearray(), ""
    server = {"url": f"{URL}/v1/realtime?model=pico", "api_key": KEY}
    async with await RealtimeRunner(AGENT).run(model_config=server) as session:
        microphone = asyncio.create_task(speak(session, question))
        async for event in session:
            if event.type == "audio":
                heard += event.audio.data
            elif event.type == "error":
                sys.exit(str(event.error))
            elif event.type == "raw_model_event":
                if event.data.type == "input_audio_transcription_completed":
                    print("You:", event.data.transcript)
                elif event.data.type == "transcript_delta":
                    said += event.data.delta
                elif event.data.type == "turn_ended":
                    break
        microphone.cancel()
    print("Parley:", said)
    with wave.open(answer, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(heard)


async def speak(session: RealtimeSession, question: str) -> None:
    """Send the question as a microphone would, then silence: Parley hears when it is over."""
    with wave.open(question) as file:
        while True:
            await session.send_audio(file.readframes(2_400) or bytes(4_800))
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
