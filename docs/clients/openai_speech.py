"""Text to a file of speech, and back to text, with the `openai` package.

    pip install openai
    python docs/clients/openai_speech.py "The kettle is on." kettle.mp3

PARLEY_URL names the server, PARLEY_API_KEY a key, if it wants one.
"""

import os
import sys
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("PARLEY_URL", "http://127.0.0.1:8765")
KEY = os.environ.get("PARLEY_API_KEY", "none")


def main(text: str, path: str) -> None:
    """Have the text spoken, then have the file read."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    with client.audio.speech.with_streaming_response.create(
        model="pico",
        voice="joe",
        input=text,
        response_format=Path(path).suffix.removeprefix("."),
    ) as response:
        response.stream_to_file(path)
    with Path(path).open("rb") as file:
        print(client.audio.transcriptions.create(model="whisper-1", file=file).text)


if __name__ == "__main__":
    main(*sys.argv[1:])
