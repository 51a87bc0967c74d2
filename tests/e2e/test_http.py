"""The HTTP API by the official client: a server process, the real voice, and words read back."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import jiwer
import numpy as np
import openai
import pytest

from tests.e2e.conftest import words_of
from tests.realtime.lanes.http_harness import decoded, likeness

pytestmark = [pytest.mark.weights, pytest.mark.slow]

FOX = "The quick brown fox jumps over the lazy dog."
RATE_HZ = 24_000
MAX_WER = 0.34  # of nine words: the smallest Whisper reads a small voice
TAKE = {"seed": 7, "options": {"temperature": 0, "timing_temperature": 0}}


@pytest.fixture(scope="module")
def client(pico_url) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{pico_url}/v1", api_key="none", max_retries=0, timeout=120
    ) as one:
        yield one


def spoken(client: openai.OpenAI, audio_format: str, text: str = FOX) -> bytes:
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="alloy",
        input=text,
        instructions="Speak calmly.",
        response_format=audio_format,
        extra_body=TAKE,
    ) as answer:
        return b"".join(answer.iter_bytes())


@pytest.fixture(scope="module")
def pcm(client) -> np.ndarray:
    return decoded(spoken(client, "pcm"), "pcm")


@pytest.mark.parametrize(
    ("audio_format", "most_longer"),
    [("wav", 0), ("flac", 0), ("opus", 0), ("mp3", 2400), ("aac", 2400)],
)
def test_every_form_is_the_same_sound(client, pcm, audio_format, most_longer):
    sound = decoded(spoken(client, audio_format), audio_format)
    assert 0 <= len(sound) - len(pcm) <= most_longer
    assert likeness(sound, pcm) > 0.9


def test_a_long_text_is_read_out_without_clicks(client):
    """Where two units meet there is no step that speech itself does not have."""
    text = " ".join([FOX, "She sells sea shells by the sea shore.", "How are you today?"] * 3)
    pcm = decoded(spoken(client, "pcm", text), "pcm")
    assert len(pcm) / RATE_HZ > 12
    steps = np.abs(np.diff(pcm))
    assert steps.max() < 0.5
    assert np.abs(pcm).max() <= 1.0


def test_the_client_reads_events(client, pcm):
    with client.audio.speech.with_streaming_response.create(
        model="pico",
        voice="joe",
        input=FOX,
        response_format="pcm",
        stream_format="sse",
        extra_body=TAKE,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines]
    sound = b"".join(base64.b64decode(one["audio"]) for one in deltas)
    assert len(sound) == 2 * len(pcm)
    usage = done["usage"]
    assert usage["input_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_the_clients_exceptions_say_what_was_wrong(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.audio.speech.create(model="tts-1", voice="nobody", input=FOX)
    assert (bad.value.code, bad.value.param) == ("unknown_voice", "voice")
    assert "joe" in bad.value.message
    with pytest.raises(openai.NotFoundError) as missing:
        client.audio.speech.create(model="dall-e-3", voice="joe", input=FOX)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as silent:
        client.audio.speech.create(model="tts-1", voice="joe", input="🙂")
    assert silent.value.code == "empty_text"


def test_models_are_listed_and_found(client):
    listed = [model.id for model in client.models.list()]
    assert "pico" in listed
    assert client.models.retrieve("pico").owned_by == "parley"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/nothing")


def word_errors(text: str) -> float:
    return jiwer.wer(words_of(FOX), words_of(text))


@pytest.mark.parametrize("audio_format", ["wav", "mp3", "opus", "flac"])
def test_what_is_spoken_is_transcribed(client, audio_format):
    content = spoken(client, audio_format)
    heard = client.audio.transcriptions.create(
        model="whisper-1", file=(f"fox.{audio_format}", content), language="en", prompt="An animal."
    )
    assert word_errors(heard.text) <= MAX_WER, heard.text
    assert heard.usage.type == "duration"


def test_transcripts_have_every_form(client):
    file = ("fox.wav", spoken(client, "wav", f'{FOX} <break time="3s"/> {FOX}'))
    create = client.audio.transcriptions.create
    verbose = create(model="whisper-1", file=file, response_format="verbose_json")
    first, second = verbose.segments
    assert word_errors(first.text) <= MAX_WER
    assert word_errors(second.text) <= MAX_WER
    assert second.start - first.end > 1.5
    assert verbose.duration == pytest.approx(second.end, abs=1.0)
    assert create(model="whisper-1", file=file, response_format="text").endswith("\n")
    assert " --> " in create(model="whisper-1", file=file, response_format="srt")
    assert create(model="whisper-1", file=file, response_format="vtt").startswith("WEBVTT\n")
    events = list(create(model="gpt-4o-transcribe", file=file, stream=True))
    deltas = [one.delta for one in events if one.type == "transcript.text.delta"]
    assert events[-1].type == "transcript.text.done"
    assert "".join(deltas) == events[-1].text == verbose.text


def test_a_file_that_is_no_sound_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.audio.transcriptions.create(model="whisper-1", file=("a.mp3", b"not sound at all"))
    assert (bad.value.code, bad.value.param) == ("invalid_audio", "file")


DOCUMENT = Path(__file__).parents[2] / "docs/http.md"
DOCUMENTED_URL = "http://127.0.0.1:8765"


def documented_commands() -> list[str]:
    """The curl commands of the document, without what they print."""
    blocks = re.findall(r"```\n(curl .*?)```", DOCUMENT.read_text(), re.DOTALL)
    return re.findall(r"^curl (?:'[^']*'|\\\n|[^\n'])*", "\n".join(blocks), re.MULTILINE)


def test_the_documented_commands_run(pico_url, tmp_path):
    commands = documented_commands()
    assert len(commands) == 4
    for command in commands:
        line = command.replace("curl ", "curl -sS --fail-with-body ", 1)
        answer = subprocess.run(
            ["bash", "-c", line.replace(DOCUMENTED_URL, pico_url)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert answer.returncode == 0, (line, answer.stdout, answer.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"fox.mp3", "two.wav"}
    assert len(decoded((tmp_path / "two.wav").read_bytes(), "wav")) > RATE_HZ


def test_the_documented_python_runs(pico_url, tmp_path):
    example = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    code = example.replace(DOCUMENTED_URL, pico_url)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    assert len(decoded((tmp_path / "hello.mp3").read_bytes(), "mp3")) > RATE_HZ // 4


def test_the_voices_are_listed(pico_url):
    listed = httpx.get(f"{pico_url}/v1/audio/voices", trust_env=False).json()
    assert {"id": "joe", "model": "pico"}.items() <= listed["data"][0].items()
