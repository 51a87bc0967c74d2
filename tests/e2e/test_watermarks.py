"""A published family with a mark of the hub, served: every sample there, each with the mark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from loadtest.server_process import running_server
from models.csm.model import load
from models.spec import PlanRequest
from models.watermark.choice import PUBLISHED
from models.watermark.silent_cipher import load_silent_cipher
from models.watermark.stage import Stage
from realtime.client.speech import SpeechClient
from realtime.events import OutputPatch, ResponsePatch, SessionPatch
from tests.engine.harness import Engine, greedy
from tests.models.csm.tiny import make_checkpoint
from tests.models.hub_server import Hub, running_hub
from tests.models.watermark.tiny import make_cipher_folder, whole

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
TEXT = "Hello there."
SECONDS = 1.5
MESSAGE = bytes([1, 2, 3, 4, 5])
TOLERANCE = 2 / 32_768
"""Samples are sent in 16 bits."""


def spoken(url: str) -> np.ndarray:
    """What a server says, without a codec of the wire between."""
    session = SessionPatch(output=OutputPatch(codec="pcm16", sample_rate_hz=24_000, pace="fast"))
    options = {"max_seconds": SECONDS, "seed": 1, "temperature": 0}

    async def speak() -> np.ndarray:
        async with SpeechClient(url, session=session) as client:
            speech = await client.speak(TEXT, overrides=ResponsePatch(options=options))
            pcm = np.concatenate([block async for block in speech])
            assert len(pcm) == 1920 * speech.result.response.usage.n_frames
            return pcm

    return asyncio.run(asyncio.wait_for(speak(), PATIENCE_S))


def expected(folder: Path, cipher: Path) -> torch.Tensor:
    """The bare model's speech, marked as a whole."""
    model = load(folder)
    plan = greedy(model, model.plan(PlanRequest(text=TEXT, max_seconds=SECONDS)))
    (pcm,) = Engine(model).speak([plan], seeds=[1])
    stage = Stage(load_silent_cipher(cipher, MESSAGE), model.spec.frame)
    marked = whole(stage, torch.from_numpy(pcm)[None])[0]
    assert np.abs(marked.numpy() - pcm).max() > 10 * TOLERANCE
    return marked


def test_a_mark_of_the_hub_is_in_what_a_server_speaks(tmp_path):
    (tmp_path / "csm").mkdir()
    folder, cipher = make_checkpoint(tmp_path / "csm"), make_cipher_folder(tmp_path / "cipher")
    files = {f"{PUBLISHED}/{path.name}": path.read_bytes() for path in cipher.iterdir()}
    more = {"config.json": b"{}", f"{PUBLISHED}/opt.ckpt": b"O", f"{PUBLISHED}/dec_m_0.ckpt": b"M"}
    hub = Hub(repositories={"tiny/cipher": {**files, **more}}, licences={"tiny/cipher": "mit"})
    with running_hub(hub):
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
            "PARLEY_WATERMARK_MESSAGE": MESSAGE.hex(),
        }
        arguments = ("--no-talk", "--model", str(folder), "--watermark", "tiny/cipher")
        with running_server(*arguments, env=environment) as url:
            pcm = spoken(url)
    wanted = expected(folder, cipher)
    np.testing.assert_allclose(pcm, wanted.numpy(), rtol=0, atol=TOLERANCE)
    read = ("config.json", *(f"{PUBLISHED}/{name}" for name in ("hparams.yaml",)))
    weights = (f"{PUBLISHED}/{name}" for name in ("enc_c.ckpt", "dec_c.ckpt"))
    assert set(hub.asked) == {f"tiny/cipher/{name}" for name in (*read, *weights)}
