"""A voice of a recording, from the client's file to its speech: over the socket and over HTTP.

Of families that speak with voices of recordings alone.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from loadtest.server_process import running_server
from realtime.audio.containers import CONTAINERS, ContainerWriter
from realtime.client.speech import RefusedError, SpeechClient, SpeechResult
from realtime.events import ResponsePatch, SessionPatch
from tests.models.cosyvoice2 import tiny as cosyvoice2
from tests.models.qwen3_tts import tiny as qwen3_tts

pytestmark = pytest.mark.slow

RATE_HZ = 24_000
FAMILIES = {
    "qwen3-tts": (qwen3_tts.make_base_checkpoint, 1920),
    "cosyvoice2": (cosyvoice2.make_checkpoint, 960),
}
"""Maker of a checkpoint, and samples of a frame."""
SECONDS = 1.9
"""No whole number of frames: the model ends before it is cut."""
SEED = 1
PATIENCE_S = 60.0
TEXT = "Hello there, how do you do?"


def recording(name: str, pitch_hz: float, n_times: int = 1) -> str:
    """A file in base64: a hum of two seconds, so many times."""
    at_s = np.arange(2 * RATE_HZ) / RATE_HZ
    hum = np.sign(np.sin(2 * np.pi * pitch_hz * at_s)) * np.linspace(0.1, 0.4, len(at_s))
    writer = ContainerWriter(CONTAINERS[name], RATE_HZ, RATE_HZ)
    pcm = np.tile(hum.astype(np.float32), n_times)
    return base64.b64encode(writer.push(pcm) + writer.finish()).decode()


LOW, HIGH = recording("flac", 90.0), recording("opus", 230.0)
NO_VOICES = (
    ("", "empty_file"),
    ("no base64!", "invalid_audio"),
    ("UklGRg==", "invalid_audio"),
    (recording("wav", 0.0), "empty_audio"),
    (recording("opus", 90.0, n_times=16), "audio_too_long"),
)


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(family, tmp_path_factory) -> Iterator[str]:
    make, _ = FAMILIES[family]
    folder = make(tmp_path_factory.mktemp(family))
    with running_server("--no-talk", "--model", str(folder)) as served:
        yield served


def speak(url: str, **options: str) -> tuple[np.ndarray, SpeechResult]:
    async def spoken() -> tuple[np.ndarray, SpeechResult]:
        async with SpeechClient(url) as client:
            given = {"max_seconds": SECONDS, "seed": SEED, "temperature": 0.0, **options}
            speech = await client.speak(TEXT, overrides=ResponsePatch(options=given))
            blocks = [block async for block in speech]
            return np.concatenate([np.zeros(0, dtype=np.float32), *blocks]), speech.result

    return asyncio.run(asyncio.wait_for(spoken(), PATIENCE_S))


def post(url: str, **options: str) -> httpx.Response:
    base = url.replace("ws://", "http://").split("/v1/")[0]
    given = {"max_seconds": SECONDS, "temperature": 0.0, **options}
    body = {"input": TEXT, "response_format": "pcm", "seed": SEED, "options": given}
    return httpx.post(f"{base}/v1/audio/speech", json=body, timeout=PATIENCE_S)


@pytest.mark.parametrize("words", [{}, {"reference_text": "so it hums"}], ids=["sound", "words"])
def test_each_recording_gives_its_own_voice(url, family, words):
    pcm, result = speak(url, reference_audio=LOW, **words)
    assert result.response.status == "incomplete", "a random model speaks until its limit"
    usage = result.response.usage
    assert usage is not None
    assert usage.n_samples == len(pcm) == usage.n_frames * FAMILIES[family][1]
    assert SECONDS - 0.1 < len(pcm) / RATE_HZ <= SECONDS
    again, _ = speak(url, reference_audio=LOW, **words)
    other, _ = speak(url, reference_audio=HIGH, **words)
    assert np.array_equal(pcm, again)
    assert np.abs(pcm - other).max() > 0.2 * np.abs(pcm).max()


def test_a_session_has_a_voice_and_tells_back_its_digest(url):
    async def told() -> dict[str, object]:
        patch = SessionPatch(options={"reference_audio": LOW, "max_seconds": 0.5})
        async with SpeechClient(url, session=patch) as client:
            speech = await client.speak(TEXT)
            assert [block async for block in speech]
            assert client.session is not None
            return dict(client.session.options)

    options = asyncio.run(asyncio.wait_for(told(), PATIENCE_S))
    digest = hashlib.sha256(LOW.encode()).hexdigest()
    assert options == {"reference_audio": f"sha256:{digest}", "max_seconds": 0.5}


def test_over_http_a_voice_is_an_option_too(url):
    answer = post(url, reference_audio=LOW)
    assert answer.status_code == 200
    assert len(answer.content) > RATE_HZ
    assert answer.content != post(url, reference_audio=HIGH).content


def test_what_is_no_voice_is_named(url):
    with pytest.raises(RefusedError) as caught:
        speak(url)
    assert caught.value.code == "missing_audio"
    for content, code in NO_VOICES:
        answer = post(url, reference_audio=content)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, "options.reference_audio")
        with pytest.raises(RefusedError) as caught:
            speak(url, reference_audio=content)
        assert caught.value.code == code
    assert speak(url, reference_audio=LOW)[1].response.status == "incomplete", "others are served"
