"""One server with several families in it: each is spoken to in turn, and all of them at once.

And those that hear are talked with: speech goes in, text and speech come back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from websockets.asyncio.client import connect

from loadtest.server_process import running_server
from realtime.audio.containers import CONTAINERS, ContainerWriter
from realtime.audio.files import read_audio
from realtime.audio.resample import Resampler
from realtime.client.speech import SpeechClient
from realtime.events import OutputPatch, ResponsePatch, SessionPatch
from realtime.frames import AudioFrame
from realtime.protocol import REALTIME_PATH, SUBPROTOCOL
from tests.models.chatterbox import tiny as chatterbox
from tests.models.cosyvoice2 import tiny as cosyvoice2
from tests.models.glm4_voice import tiny as glm4_voice
from tests.models.step_audio2 import tiny as step_audio2
from tests.realtime.talk_harness import PUSH_TO_TALK, Talker

pytestmark = pytest.mark.slow

TEXT = "Hello there, how do you do?"
SECONDS = 1.21
"""No whole number of frames of any: models end before they are cut."""
START_TIMEOUT_S = 600.0
PATIENCE_S = 120.0
SOUND_RATE_HZ = 24_000
NOWHERE = "http://127.0.0.1:9/v1"
"""Nothing is to be transcribed here, and nobody else to write."""
RECORDINGS = Path(__file__).parents[2] / "loadtest" / "traffic" / "recordings"


def sound() -> str:
    """Two seconds of a hum, a file in base64."""
    at_s = np.arange(2 * SOUND_RATE_HZ) / SOUND_RATE_HZ
    hum = np.sign(np.sin(2 * np.pi * 110 * at_s)) * np.linspace(0.1, 0.4, len(at_s))
    writer = ContainerWriter(CONTAINERS["flac"], SOUND_RATE_HZ, SOUND_RATE_HZ)
    return base64.b64encode(writer.push(hum.astype(np.float32)) + writer.finish()).decode()


SOUND = sound()


@dataclass(frozen=True)
class Family:
    """A family, and how it is spoken to here."""

    make: Callable[[Path], Path]
    samples_per_frame: int
    rate_hz: int
    options: dict[str, str | float] = field(default_factory=dict)


FAMILIES = {
    "cosyvoice2": Family(cosyvoice2.make_checkpoint, 960, 24_000, {"reference_audio": SOUND}),
    "chatterbox": Family(chatterbox.make_checkpoint, 960, 24_000, {"reference_audio": SOUND}),
    "step-audio2": Family(step_audio2.make_checkpoint, 960, 24_000, {"input_audio": SOUND}),
    "glm4-voice": Family(glm4_voice.make_checkpoint, 1764, 22_050, {"input_audio": SOUND}),
}
SEEDS = (1, 2)


class Answer(NamedTuple):
    """What was heard of one request."""

    pcm: np.ndarray
    n_frames: int
    status: str


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    models = []
    for name, family in FAMILIES.items():
        models += ["--model", str(family.make(tmp_path_factory.mktemp(name)))]
    elsewhere = ("--stt-url", NOWHERE, "--llm-url", NOWHERE)
    # Each model warms up with every size of batch that it may have.
    few = ("--max-streams", str(len(SEEDS)))
    with running_server(*few, *elsewhere, *models, timeout_s=START_TIMEOUT_S) as served:
        yield served


async def speak(url: str, model: str, seed: int) -> Answer:
    options = {"seed": seed, "max_seconds": SECONDS, **FAMILIES[model].options}
    session = SessionPatch(model=model, output=OutputPatch(codec="pcm16", pace="fast"))
    async with SpeechClient(url, session=session) as client:
        speech = await client.speak(TEXT, overrides=ResponsePatch(options=options))
        blocks = [block async for block in speech]
        usage = speech.result.response.usage
        assert usage is not None
        return Answer(np.concatenate(blocks), usage.n_frames, speech.result.response.status)


async def one_by_one(url: str) -> dict[tuple[str, int], Answer]:
    return {(name, seed): await speak(url, name, seed) for name in FAMILIES for seed in SEEDS}


async def at_once(url: str) -> dict[tuple[str, int], Answer]:
    asked = [(name, seed) for name in FAMILIES for seed in SEEDS]
    answers = await asyncio.gather(*(speak(url, *one) for one in asked))
    return dict(zip(asked, answers, strict=True))


def answers_of(asking: Callable[[str], object], url: str):
    return asyncio.run(asyncio.wait_for(asking(url), PATIENCE_S))


def test_all_are_listed(url):
    base = url.replace("ws://", "http://").split("/v1/")[0]
    with urllib.request.urlopen(f"{base}/v1/models", timeout=PATIENCE_S) as answer:
        listed = [model["id"] for model in json.loads(answer.read())["data"]]
    assert set(FAMILIES) == set(listed)


def test_what_a_family_says_does_not_depend_on_who_else_is_spoken_to(url):
    alone, together = answers_of(one_by_one, url), answers_of(at_once, url)
    for (name, seed), one in alone.items():
        family, other = FAMILIES[name], together[name, seed]
        assert len(one.pcm) == one.n_frames * family.samples_per_frame
        assert 0 < len(one.pcm) / family.rate_hz <= SECONDS
        assert np.abs(one.pcm).max() > 0.01
        assert (other.n_frames, other.status) == (one.n_frames, one.status)
        # PCM of 16 bits, of sums in another order.
        assert np.abs(other.pcm - one.pcm).max() < 1e-3
    for name in FAMILIES:
        first, second = (alone[name, seed].pcm for seed in SEEDS)
        n = min(len(first), len(second))
        assert np.abs(first[:n] - second[:n]).max() > 0.01, "each request has draws of its own"


@asynccontextmanager
async def conversation(url: str, model: str) -> AsyncIterator[Talker]:
    address = f"{url.replace('http://', 'ws://')}{REALTIME_PATH}"
    async with connect(address, subprotocols=[SUBPROTOCOL], compression=None, proxy=None) as socket:
        talker = Talker(socket)
        options = {"seed": 1, "max_seconds": SECONDS}
        session = await talker.update(model=model, audio=PUSH_TO_TALK, options=options)
        assert session["model"] == model
        yield talker


def question(name: str) -> np.ndarray:
    """Speech at 16 kHz."""
    pcm, rate_hz = read_audio(RECORDINGS / f"{name}.opus")
    resampler = Resampler(rate_hz, 16_000)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


async def answered(talker: Talker, name: str) -> dict[str, Any]:
    await talker.send_pcm(question(name))
    await talker.send("input_audio_buffer.commit")
    await talker.send("response.create")
    return await talker.done()


@pytest.mark.parametrize("model", ["glm4-voice", "step-audio2"])
def test_what_is_said_is_answered_and_stays_known(url, model):
    async def two_turns(url: str) -> list[dict[str, Any]]:
        async with conversation(url, model) as talker:
            turns = [await answered(talker, name) for name in ("sky", "dog")]
            assert any(isinstance(message, AudioFrame) for message in talker.log)
            return turns

    turns = answers_of(two_turns, url)
    for done in turns:
        assert done["status"] in ("completed", "incomplete"), done["status_details"]
        (part,) = done["output"][0]["content"]
        assert part["transcript"], "it says its words as it speaks"
        assert 0 < done["usage"]["audio_ms"] <= 1000 * SECONDS
    n_first, n_second = (done["usage"]["input_tokens"] for done in turns)
    assert n_second > n_first > 0
