"""Every published family, served by the real server from a small random checkpoint folder."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from loadtest.server_process import running_server
from realtime.client.speech import SpeechClient
from realtime.events import ResponsePatch
from tests.models.bagpiper import tiny as bagpiper
from tests.models.chatterbox import tiny as chatterbox
from tests.models.cosyvoice2 import tiny as cosyvoice2
from tests.models.csm import tiny as csm
from tests.models.glm4_voice import tiny as glm4_voice
from tests.models.opuslm import tiny as opuslm
from tests.models.orpheus import tiny as orpheus
from tests.models.qwen3_tts import tiny as qwen3_tts
from tests.models.step_audio2 import tiny as step_audio2
from tests.models.zonos import tiny as zonos

pytestmark = pytest.mark.slow

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "orpheus": orpheus.make_checkpoint,
    "csm": csm.make_checkpoint,
    "qwen3-tts": qwen3_tts.make_checkpoint,
    "zonos": zonos.make_checkpoint,
    "bagpiper": bagpiper.make_checkpoint,
    "opuslm": opuslm.make_checkpoint,
    "opuslm-dialogue": opuslm.make_dialogue_checkpoint,
    "glm4-voice": glm4_voice.make_checkpoint,
    "cosyvoice2": cosyvoice2.make_checkpoint_with_voices,
    "step-audio2": step_audio2.make_checkpoint,
    "chatterbox": chatterbox.make_checkpoint,
    "chatterbox-multilingual": chatterbox.make_multilingual_checkpoint,
    "chatterbox-turbo": chatterbox.make_turbo_checkpoint,
}
TASKS = {
    "opuslm-dialogue": ["converse"],
    "glm4-voice": ["converse"],
    "step-audio2": ["speak", "converse"],
}
"""Where it is not to speak: then what is heard is an answer."""
RATES_HZ = {
    "zonos": 44_100,
    "bagpiper": 16_000,
    "opuslm": 16_000,
    "opuslm-dialogue": 16_000,
    "glm4-voice": 22_050,
}
"""Where it is not 24 kHz."""
SAMPLES_PER_FRAME = {
    "orpheus": 2048,
    "csm": 1920,
    "qwen3-tts": 1920,
    "zonos": 512,
    "bagpiper": 320,
    "opuslm": 320,
    "opuslm-dialogue": 320,
    "glm4-voice": 1764,
    "cosyvoice2": 960,
    "step-audio2": 960,
    "chatterbox": 960,
    "chatterbox-multilingual": 960,
    "chatterbox-turbo": 960,
}
PATIENCE_S = 60.0
HEARING = ("glm4-voice", "step-audio2")
"""Those that answer what is said to them."""
SECONDS = 3.0
SEED = 1
"""A random model may draw the end of its speech at any row: with a seed, always or never."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(family, tmp_path_factory) -> Iterator[str]:
    if family == "zonos" and shutil.which("espeak-ng") is None:
        pytest.skip("zonos reads text by the program espeak-ng, which is not here")
    folder = FAMILIES[family](tmp_path_factory.mktemp(family))
    with running_server("--no-talk", "--model", str(folder)) as served:
        yield served


def http(url: str, path: str) -> bytes:
    base = url.replace("ws://", "http://").split("/v1/")[0]
    with urllib.request.urlopen(f"{base}{path}", timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
    return body


def post(url: str, path: str, values: dict[str, object]) -> bytes:
    base = url.replace("ws://", "http://").split("/v1/")[0]
    content = json.dumps(values).encode()
    asked = urllib.request.Request(
        f"{base}{path}", data=content, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
    return body


def said() -> str:
    """A second of sound, as a file in base64."""
    pcm = 0.2 * np.random.default_rng(5).standard_normal(16_000)
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((pcm.clip(-1, 1) * 32_767).astype("<i2").tobytes())
    return base64.b64encode(target.getvalue()).decode()


def gauge(url: str, name: str) -> float:
    lines = http(url, "/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_it_is_listed_under_its_name(url, family):
    (model,) = json.loads(http(url, "/v1/models"))["data"]
    assert model["id"] == family
    assert model["tasks"] == TASKS.get(family, ["speak"])


def test_spoken_text_comes_as_opus_with_every_sample(url, family):
    async def speak():
        async with SpeechClient(url) as client:
            speech = await client.speak(
                "Hello there, how do you do?",
                overrides=ResponsePatch(options={"max_seconds": SECONDS, "seed": SEED}),
            )
            pcm = np.concatenate([block async for block in speech])
            return pcm, speech.result

    pcm, result = asyncio.run(asyncio.wait_for(speak(), PATIENCE_S))
    usage = result.response.usage
    assert usage is not None
    n_samples = usage.n_frames * SAMPLES_PER_FRAME[family]
    rate_hz = RATES_HZ.get(family, 24_000)
    if result.response.status == "completed":
        # NOTE: the rounding of another CPU may lead a seed to an end that it has not here.
        assert 0 < n_samples / rate_hz < SECONDS
    else:
        assert result.response.status == "incomplete", "a random model speaks until its limit"
        assert SECONDS - 0.1 < n_samples / rate_hz <= SECONDS
    # A converted rate may round the last sample either way.
    assert abs(usage.n_samples - n_samples * result.sample_rate_hz / rate_hz) <= 1
    assert len(pcm) == usage.n_samples
    assert np.abs(pcm).max() > 0.01


def test_what_is_said_is_answered_by_those_that_hear(url, family):
    options = {"input_audio": said(), "max_seconds": SECONDS, "seed": SEED}
    if family not in HEARING:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(url, "/v1/audio/speech", {"input": "Well?", "options": options})
        assert json.loads(refused.value.read())["error"]["code"] == "unknown_option"
        return
    answer = {"model": family, "input": "", "response_format": "pcm", "options": options}
    pcm = np.frombuffer(post(url, "/v1/audio/speech", answer), dtype="<i2")
    assert 0 < len(pcm) <= SECONDS * 24_000
    assert np.abs(pcm).max() > 300


def test_a_cancel_frees_everything(url):
    async def cancel():
        async with SpeechClient(url) as client:
            speech = await client.speak(
                "Hello there, how do you do? " * 4,
                overrides=ResponsePatch(options={"seed": SEED}),
            )
            async for _ in speech:
                await speech.cancel()
            return speech.result

    result = asyncio.run(asyncio.wait_for(cancel(), PATIENCE_S))
    assert result.response.status == "cancelled"
    # The step under way ends first.
    deadline_s = time.monotonic() + PATIENCE_S
    while gauge(url, "parley_engine_n_slots_used") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for name in ("parley_engine_n_slots_used", "parley_engine_n_active", "parley_streams"):
        assert gauge(url, name) == 0, name
