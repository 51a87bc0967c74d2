"""Conversations through the realtime agents of `openai-agents`, as its users have them."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest
from agents import function_tool

from tests.clients.agents_talk import AgentsTalk, converse
from tests.clients.examples import run_example
from tests.clients.scripted_llm import NO_TOOL, STORY_S

pytestmark = [pytest.mark.weights, pytest.mark.slow]

SKY = "What colour is the sky?"
STORY = "Tell me a long story about a little dog that lives by the sea."
A_SECOND = 48_000
HALF_A_SECOND = 24_000


def test_a_written_question_is_answered_aloud(url: str):
    async def scenario(talk: AgentsTalk) -> None:
        await talk.session.send_message(SKY)
        await talk.answered(1)
        assert len(talk.heard) > HALF_A_SECOND
        (said,) = talk.said.values()
        assert said.strip()

    converse(url, scenario)


def test_a_spoken_question_is_answered_aloud(url: str):
    async def scenario(talk: AgentsTalk) -> None:
        async with talk.microphone() as microphone:
            microphone.put(SKY)
            await talk.answered(1)
            await talk.until(lambda: bool(talk.user_said))
        assert "sky" in talk.user_said[0].lower()
        assert len(talk.heard) > HALF_A_SECOND
        roles = [item.role for item in talk.history if item.type == "message"]
        assert roles == ["user", "assistant"]

    converse(url, scenario)


def test_speech_over_an_answer_silences_it_and_is_answered(calling_url: str):
    async def scenario(talk: AgentsTalk) -> None:
        async with talk.microphone() as microphone:
            await talk.session.send_message(STORY)
            await talk.until(lambda: bool(talk.heard))
            microphone.put(SKY)
            await talk.until(lambda: talk.n_interruptions > 0)
            n_bytes = len(talk.heard)
            await talk.answered(2)
        assert n_bytes + HALF_A_SECOND < len(talk.heard) < STORY_S * A_SECOND
        _, answer = talk.said.values()
        assert answer.strip() == NO_TOOL

    converse(calling_url, scenario)


def test_an_answer_is_interrupted_by_the_program_and_the_next_one_comes(calling_url: str):
    async def scenario(talk: AgentsTalk) -> None:
        await talk.session.send_message(STORY)
        await talk.until(lambda: bool(talk.heard))
        await talk.session.interrupt()
        await talk.until(lambda: talk.n_interruptions > 0)
        await talk.answered(1)
        n_bytes = len(talk.heard)
        await talk.session.send_message(SKY)
        await talk.answered(2)
        assert n_bytes + HALF_A_SECOND < len(talk.heard) < STORY_S * A_SECOND

    converse(calling_url, scenario)


def test_a_function_is_called_and_its_result_is_spoken(calling_url: str):
    asked = []

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain in the afternoon"

    async def scenario(talk: AgentsTalk) -> None:
        await talk.session.send_message("Will I need an umbrella?")
        await talk.until(lambda: bool(talk.heard))
        await talk.answered(2)
        assert talk.tool_results == ["rain in the afternoon"]
        assert "rain in the afternoon" in " ".join(talk.said.values())

    converse(calling_url, scenario, [weather])
    assert asked == ["Rome"]


def test_a_function_is_called_for_a_spoken_question(calling_url: str):
    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunshine in {city}"

    async def scenario(talk: AgentsTalk) -> None:
        async with talk.microphone() as microphone:
            microphone.put("Is it sunny today?")
            await talk.until(lambda: bool(talk.heard))
            await talk.answered(2)
        assert "sunshine in Rome" in " ".join(talk.said.values())

    converse(calling_url, scenario, [weather])


def test_the_example_asks_and_writes_the_answer(url: str, question: Path, tmp_path: Path):
    answer = tmp_path / "answer.wav"
    you, parley = run_example("openai_agents.py", url, question, answer).splitlines()
    assert "sky" in you
    assert len(parley) > len("Parley: ")
    with wave.open(str(answer)) as file:
        assert file.getnframes() / file.getframerate() > 0.5
