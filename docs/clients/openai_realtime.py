"""A spoken question, answered aloud, with the `openai` package.

    pip install "openai[realtime]"
    python docs/clients/openai_realtime.py question.wav answer.wav

The question is 24 kHz, mono, 16 bit. PARLEY_URL names the server, PARLEY_API_KEY a key, if it
wants one.
"""

import base64
import os
import sys
import wave

from openai import OpenAI

URL = os.environ.get("PARLEY_URL", "http://127.0.0.1:8765")
KEY = os.environ.get("PARLEY_API_KEY", "none")
PUSH_TO_TALK = {
    "type": "realtime",
    "audio": {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}},
}


def main(question: str, answer: str) -> None:
    """Ask once, print both sides' words, and write the answer."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    with wave.open(question) as file:
        spoken = base64.b64encode(file.readframes(file.getnframes())).decode()
    heard = bytearray()
    with client.realtime.connect(model="pico") as connection:
        connection.session.update(session=PUSH_TO_TALK)
        connection.input_audio_buffer.append(audio=spoken)
        connection.input_audio_buffer.commit()
        connection.response.create()
        for event in connection:
            if event.type == "conversation.item.input_audio_transcription.completed":
                print("You:", event.transcript)
            elif event.type == "response.output_audio.delta":
                heard += base64.b64decode(event.delta)
            elif event.type == "response.output_audio_transcript.done":
                print("Parley:", event.transcript)
            elif event.type == "error":
                sys.exit(event.error.message)
            elif event.type == "response.done":
                if event.response.status == "failed":
                    sys.exit(str(event.response.status_details))
                break
    with wave.open(answer, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(heard)


if __name__ == "__main__":
    main(*sys.argv[1:])
