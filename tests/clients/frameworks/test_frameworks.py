"""Conversations through pipecat and LiveKit agents, run by a Python that has them.

`make check-clients` makes that Python and names it in PARLEY_CLIENTS_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
import wave
from pathlib import Path
from typing import Any

import pytest

from tests.clients.examples import run_example
from tests.clients.keys import KEY

PYTHON = os.environ.get("PARLEY_CLIENTS_PYTHON", "")
pytestmark = [
    pytest.mark.weights,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="pipecat and LiveKit: make check-clients"),
]

FRAMEWORKS = ("pipecat", "livekit")
TIMEOUT_S = 180


def run_talk(framework: str, *arguments: str | Path) -> dict[str, Any]:
    """What came of a conversation; there must have been no error and no warning in it."""
    run = subprocess.run(
        [PYTHON, Path(__file__).parent / f"{framework}_talk.py", *arguments],
        env={**os.environ, "PARLEY_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert (result["errors"], result["warnings"]) == ([], [])
    return result


def said_by(role: str, result: dict[str, Any]) -> list[str]:
    messages = (one for one in result["messages"] if one["role"] == role)
    return [one["content"] for one in messages if one.get("content")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_conversation_with_a_barge_in(framework: str, url: str, question: Path):
    result = run_talk(framework, url, "talk", question)
    greeting, asked, story, asked_again = said_by("user", result)
    assert "hello" in greeting
    assert "sky" in asked.lower()
    assert "dog" in story
    assert "sky" in asked_again.lower()
    assert len(said_by("assistant", result)) == 4
    if framework == "pipecat":
        assert result["n_interruptions"] == 2
        assert result["played_s"] > 4
    else:
        assert all(one["s"] > 0.2 for one in result["played"])
        assert result["messages"][5]["cut"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_function_is_called_and_its_result_is_spoken(framework: str, calling_url: str):
    result = run_talk(framework, calling_url, "call")
    assert "rain in Rome" in said_by("assistant", result)[-1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_example_asks_and_writes_the_answer(
    framework: str, url: str, question: Path, tmp_path: Path
):
    answer = tmp_path / "answer.wav"
    printed = run_example(f"{framework}_realtime.py", url, question, answer, python=PYTHON)
    you, parley = printed.splitlines()
    assert "sky" in you
    assert len(parley) > len("Parley: ")
    with wave.open(str(answer)) as file:
        assert file.getnframes() / file.getframerate() > 0.5
