"""Speech and transcriptions through the `openai` package, as its users ask for them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import av
import jiwer
import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.clients.examples import run_example
from tests.clients.voice import RATE_HZ
from tests.e2e.conftest import Reader, words_of

pytestmark = [pytest.mark.weights, pytest.mark.slow]

FOX = "The quick brown fox jumps over the lazy dog."
FOX_S = (1.5, 5.0)
"""Between hasty and sleepy."""
MAX_WER = 0.23  # two words of nine: Whisper base itself errs on good recordings
ASKED = {"model": "pico", "voice": "joe", "input": FOX}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def decoded(sound: bytes) -> tuple[np.ndarray, int]:
    """A file of any kind: samples of one channel, and their rate."""
    with av.open(io.BytesIO(sound)) as file:
        rate_hz = file.streams.audio[0].rate
        to_float = av.AudioResampler(format="flt", layout="mono", rate=rate_hz)
        frames = [out for frame in file.decode(audio=0) for out in to_float.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate_hz


def check_fox(read_back: Reader, pcm: np.ndarray, rate_hz: int) -> None:
    assert FOX_S[0] < len(pcm) / rate_hz < FOX_S[1]
    assert jiwer.wer(words_of(FOX), read_back(pcm, rate_hz)) <= MAX_WER


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
def test_a_text_becomes_a_file_of_speech(client: OpenAI, read_back: Reader, form: str):
    sound = client.audio.speech.create(**ASKED, response_format=form).content
    check_fox(read_back, *decoded(sound))


def test_a_text_becomes_bare_samples(client: OpenAI, read_back: Reader):
    sound = client.audio.speech.create(**ASKED, response_format="pcm").content
    check_fox(read_back, np.frombuffer(sound, "<i2").astype(np.float32) / 32768, RATE_HZ)


def test_speech_comes_in_pieces_while_it_is_made(client: OpenAI):
    streaming = client.audio.speech.with_streaming_response
    with streaming.create(**ASKED | {"input": f"{FOX} " * 8}, response_format="pcm") as response:
        pieces = list(response.iter_bytes())
    assert len(pieces) > 3
    assert sum(map(len, pieces)) / 2 / RATE_HZ > 8 * FOX_S[0]


def test_speech_is_spoken_faster(client: OpenAI):
    usual, fast = (
        client.audio.speech.create(**ASKED, response_format="pcm", speed=speed).content
        for speed in (1.0, 1.5)
    )
    assert len(fast) < 0.8 * len(usual)


def test_names_of_other_models_and_voices_are_understood(client: OpenAI):
    asked = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": FOX}
    assert client.audio.speech.create(**asked, instructions="Speak up.").content


def test_what_cannot_be_done_is_said(client: OpenAI):
    with pytest.raises(BadRequestError) as refusal:
        client.audio.speech.create(**ASKED | {"voice": "nobody"})
    assert refusal.value.param == "voice"
    assert "nobody" in refusal.value.message


@pytest.mark.parametrize("form", ["json", "text", "verbose_json"])
def test_a_recording_becomes_a_text(client: OpenAI, question: Path, form: str):
    with question.open("rb") as file:
        heard = client.audio.transcriptions.create(
            model="whisper-1", file=file, response_format=form
        )
    text = heard if isinstance(heard, str) else heard.text
    assert "sky" in text.lower()
    if form == "verbose_json":
        assert 1 < heard.duration < 3
        assert heard.segments[0].end <= heard.duration + 0.5


def test_the_models_are_listed(client: OpenAI):
    assert "pico" in {model.id for model in client.models.list()}
    assert client.models.retrieve("pico").id == "pico"


@pytest.mark.parametrize("suffix", [".mp3", ".wav"])
def test_the_example_speaks_and_reads(client: OpenAI, url: str, tmp_path: Path, suffix: str):
    path = tmp_path / f"fox{suffix}"
    heard = run_example("openai_speech.py", url, FOX, path)
    assert jiwer.wer(words_of(FOX), words_of(heard)) <= MAX_WER
    pcm, rate_hz = decoded(path.read_bytes())
    assert FOX_S[0] < len(pcm) / rate_hz < FOX_S[1]
