"""Real servers with the embedded models, each started once, and a reader of what they say."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.server_process import running_server
from tests.clients.keys import KEY
from tests.clients.scripted_llm import running_llm
from tests.clients.voice import RATE_HZ, say
from tests.e2e.conftest import read_back

__all__ = ["read_back"]

# It sends what agents do to its makers unless it is told not to; read when it is imported.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Of a server with the embedded models: Whisper, SmolLM2, pico."""
    with running_server("--model", "pico", "--talk") as url:
        yield url


@pytest.fixture(scope="session")
def calling_url() -> Iterator[str]:
    """Of a server whose text model calls functions, and which asks for a key."""
    keys = {"PARLEY_API_KEYS": KEY}
    with (
        running_llm() as llm,
        running_server("--model", "pico", "--llm-url", llm, env=keys) as url,
    ):
        yield url


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A WAV file in which somebody asks what colour the sky is."""
    path = tmp_path / "question.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        file.writeframes(say("What colour is the sky?"))
    return path
