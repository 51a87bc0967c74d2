"""Makes the recordings anew, through a server that speaks with pico.

parley serve --no-talk
python -m loadtest.traffic.make_recordings ws://127.0.0.1:8765
"""

from __future__ import annotations

import asyncio
import sys

from loadtest.traffic.recordings import FOLDER, INTERRUPTIONS, QUESTIONS
from realtime.audio.files import write_audio
from realtime.client.speech import SpeechClient
from realtime.events import OutputPatch, ResponsePatch, SessionPatch


async def make(url: str) -> None:
    """Have each phrase spoken with its seed, and write its file."""
    output = OutputPatch(codec="pcm16", pace="fast")
    async with SpeechClient(url, session=SessionPatch(model="pico", output=output)) as client:
        for phrase in (*QUESTIONS, *INTERRUPTIONS):
            overrides = ResponsePatch(options={"seed": phrase.seed})
            speech = await client.speak(phrase.text, overrides=overrides)
            pcm = await speech.pcm()
            path = FOLDER / f"{phrase.name}.opus"
            await asyncio.to_thread(write_audio, path, pcm, speech.sample_rate_hz)
            print(f"{path.name}  {len(pcm) / speech.sample_rate_hz:.1f} s  {phrase.text}")


if __name__ == "__main__":
    asyncio.run(make(sys.argv[1]))
