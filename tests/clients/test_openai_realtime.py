"""Conversations through the `openai` package, as its users have them."""

from __future__ import annotations

import wave
from pathlib import Path

import jiwer
import numpy as np
import pytest
from openai.types.realtime import ResponseAudioDeltaEvent

from tests.clients.examples import run_example
from tests.clients.openai_talk import OpenAiTalk, converse, seconds, words
from tests.clients.scripted_llm import NO_TOOL
from tests.clients.voice import RATE_HZ
from tests.e2e.conftest import Reader, words_of

pytestmark = [pytest.mark.weights, pytest.mark.slow]

SKY = "What colour is the sky?"
STORY = "Tell me a long story about a little dog that lives by the sea."
MAX_WER = 0.25  # two words of eight


def check_answered(talk: OpenAiTalk, done) -> None:
    """A whole answer came, in sound and in words."""
    response = done.response
    # A small model may lose the thread: it is cut after some dozens of tokens.
    assert response.status in ("completed", "incomplete")
    assert words(response)
    # Nobody speaks faster than thirty characters in a second.
    assert seconds(talk.audio(response.id)) > len(words(response)) / 30
    assert response.usage.output_tokens > 0


def test_a_written_question_is_answered_aloud(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.write(SKY)
        check_answered(talk, await talk.answer())

    converse(url, scenario)


def test_the_words_of_an_answer_are_heard_in_its_sound(calling_url: str, read_back: Reader):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.write(SKY)
        response = (await talk.answer()).response
        assert words(response) == NO_TOOL
        pcm = np.frombuffer(talk.audio(response.id), "<i2").astype(np.float32) / 32768
        assert jiwer.wer(words_of(NO_TOOL), read_back(pcm, RATE_HZ)) <= MAX_WER

    converse(calling_url, scenario)


def test_a_written_question_is_answered_in_writing(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.configure(output_modalities=["text"])
        await talk.write(SKY)
        done = await talk.answer()
        assert done.response.status in ("completed", "incomplete")
        assert words(done.response)
        assert not talk.audio(done.response.id)

    converse(url, scenario)


def test_a_spoken_question_is_answered_when_the_user_is_silent(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.configure(
            audio={
                "input": {
                    "transcription": {"model": "whisper-1"},
                    "turn_detection": {"type": "server_vad"},
                }
            }
        )
        async with talk.microphone() as microphone:
            microphone.put(SKY)
            started = await talk.until("input_audio_buffer.speech_started")
            stopped = await talk.until("input_audio_buffer.speech_stopped")
            assert started.item_id == stopped.item_id
            assert 500 < stopped.audio_end_ms - started.audio_start_ms < 4000
            done = await talk.until("response.done")
        check_answered(talk, done)
        (heard,) = (one.transcript for one in talk.events if one.type.endswith("n.completed"))
        assert "sky" in heard.lower()

    converse(url, scenario)


def test_a_spoken_question_is_answered_when_the_button_is_released(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.push_to_talk()
        await talk.say(SKY)
        item = (await talk.until("conversation.item.done")).item
        assert item.role == "user"
        check_answered(talk, await talk.answer())

    converse(url, scenario)


def test_an_answer_is_cancelled_and_the_next_one_comes(calling_url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.write(STORY)
        await talk.connection.response.create()
        await talk.until("response.output_audio.delta")
        await talk.connection.response.cancel()
        done = await talk.until("response.done")
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "client_cancelled"
        n_deltas = len(list(talk.of(ResponseAudioDeltaEvent)))
        await talk.write(SKY)
        check_answered(talk, await talk.answer())
        later = list(talk.of(ResponseAudioDeltaEvent))[n_deltas:]
        assert done.response.id not in {delta.response_id for delta in later}

    converse(calling_url, scenario)


def test_speech_over_an_answer_ends_it_and_is_answered(calling_url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.configure(audio={"input": {"turn_detection": {"type": "server_vad"}}})
        async with talk.microphone() as microphone:
            await talk.write(STORY)
            await talk.connection.response.create()
            old = await talk.until("response.output_audio.delta")
            microphone.put(SKY)
            await talk.until("input_audio_buffer.speech_started")
            await talk.connection.conversation.item.truncate(
                item_id=old.item_id, content_index=0, audio_end_ms=400
            )
            truncated = await talk.until("conversation.item.truncated")
            # Clamped to what had been sent, which on a slow machine is less.
            sent_ms = round(1000 * seconds(talk.audio(old.response_id)))
            assert truncated.audio_end_ms == min(400, sent_ms)
            first, second = await talk.answers(2)
        assert first.response.id == old.response_id
        assert first.response.status == "cancelled"
        assert first.response.status_details.reason == "turn_detected"
        check_answered(talk, second)

    converse(calling_url, scenario)


def test_what_was_not_heard_of_an_answer_is_forgotten(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.write(STORY)
        done = await talk.answer()
        (item,) = done.response.output
        items = talk.connection.conversation.item
        await items.truncate(item_id=item.id, content_index=0, audio_end_ms=500)
        await talk.until("conversation.item.truncated")
        await items.retrieve(item_id=item.id)
        kept = (await talk.until("conversation.item.retrieved")).item
        assert len(kept.content[0].transcript or "") < len(words(done.response))
        await talk.write(SKY)
        check_answered(talk, await talk.answer())

    converse(url, scenario)


def test_functions_that_the_text_model_cannot_call_are_refused_in_words(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        talk.may_err = True
        tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
        await talk.connection.session.update(session={"type": "realtime", "tools": [tool]})
        error = (await talk.until("error")).error
        assert (error.code, error.param) == ("tools_not_supported", "session.tools")
        assert "cannot call tools" in error.message
        talk.may_err = False
        await talk.write(SKY)
        check_answered(talk, await talk.answer())

    converse(url, scenario)


def test_the_example_asks_and_writes_the_answer(url: str, question: Path, tmp_path: Path):
    answer = tmp_path / "answer.wav"
    you, parley = run_example("openai_realtime.py", url, question, answer).splitlines()
    assert "sky" in you
    assert len(parley) > len("Parley: ")
    with wave.open(str(answer)) as file:
        assert file.getnframes() / file.getframerate() > 0.5
