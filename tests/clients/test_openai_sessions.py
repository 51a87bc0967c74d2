"""What else people do with a session through the `openai` package."""

from __future__ import annotations

import asyncio
import io

import av
import numpy as np
import pytest
from openai import AsyncOpenAI, AuthenticationError, OpenAI
from websockets.exceptions import InvalidStatus

from tests.clients.keys import KEY
from tests.clients.openai_talk import OpenAiTalk, converse, talking, words
from tests.clients.voice import RATE_HZ, say

pytestmark = [pytest.mark.weights, pytest.mark.slow]

SKY = "What colour is the sky?"
TELEPHONE_HZ = 8_000
LAWS = {"audio/pcmu": "mulaw", "audio/pcma": "alaw"}
ENDED = ("completed", "incomplete")
"""A small model may lose the thread: it is cut after some dozens of tokens."""


def telephone_bytes(sound: bytes, law: str) -> bytes:
    """PCM16 of 24 kHz as FFmpeg sends it through a telephone."""
    target = io.BytesIO()
    with av.open(target, "w", format=law) as file:
        stream = file.add_stream(f"pcm_{law}", rate=TELEPHONE_HZ, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.frombuffer(sound, "<i2")[None, :], "s16", "mono")
        frame.sample_rate = RATE_HZ
        resampler = av.AudioResampler(format="s16", layout="mono", rate=TELEPHONE_HZ)
        for out in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(out))
        file.mux(stream.encode(None))
    return target.getvalue()


@pytest.mark.parametrize("kind", LAWS)
def test_a_telephone_is_understood_and_answered(url: str, kind: str):
    async def scenario(talk: OpenAiTalk) -> None:
        session = await talk.configure(
            audio={
                "input": {
                    "format": {"type": kind},
                    "transcription": {"model": "whisper-1"},
                    "turn_detection": None,
                },
                "output": {"format": {"type": kind}},
            }
        )
        assert session.audio.output.format.type == kind
        await talk.append(telephone_bytes(say(SKY), LAWS[kind]))
        await talk.connection.input_audio_buffer.commit()
        response = (await talk.answer()).response
        assert response.status in ENDED
        codes = talk.audio(response.id)
        assert len(codes) / TELEPHONE_HZ > len(words(response)) / 30
        # A voice leaves no code out; silence, or samples taken for codes, look otherwise.
        assert len(set(codes)) > 200
        (heard,) = (one.transcript for one in talk.events if one.type.endswith("n.completed"))
        assert "sky" in heard.lower()

    converse(url, scenario)


def test_words_that_sound_finished_end_a_turn(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        await talk.configure(
            audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}}
        )
        async with talk.microphone() as microphone:
            microphone.put(SKY)
            response = (await talk.until("response.done")).response
        assert response.status in ENDED
        assert words(response)

    converse(url, scenario)


def test_an_answer_beside_the_conversation_leaves_no_trace_in_it(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        content = [{"type": "input_text", "text": SKY}]
        await talk.connection.response.create(
            response={
                "conversation": "none",
                "metadata": {"topic": "sky"},
                "output_modalities": ["text"],
                "input": [{"type": "message", "role": "user", "content": content}],
            }
        )
        response = (await talk.until("response.done")).response
        assert response.status in ENDED
        assert response.metadata == {"topic": "sky"}
        assert response.conversation_id is None
        assert words(response)
        assert "conversation.item.added" not in {event.type for event in talk.events}

    converse(url, scenario)


def test_an_error_names_the_event_at_fault_and_ends_nothing(url: str):
    async def scenario(talk: OpenAiTalk) -> None:
        talk.may_err = True
        connection = talk.connection
        for code, ask in {
            "item_retrieve_invalid_item_id": connection.conversation.item.retrieve(
                item_id="item_nowhere", event_id="event_a"
            ),
            "response_cancel_not_active": connection.response.cancel(event_id="event_a"),
            "input_audio_buffer_commit_empty": connection.input_audio_buffer.commit(
                event_id="event_a"
            ),
        }.items():
            await ask
            error = (await talk.until("error")).error
            assert (error.code, error.event_id) == (code, "event_a")
        talk.may_err = False
        await talk.write(SKY)
        assert (await talk.answer()).response.status in ENDED

    converse(url, scenario)


def test_two_users_are_answered_at_once(url: str):
    async def one() -> str:
        async with talking(url) as talk:
            await talk.write(SKY)
            response = (await talk.answer()).response
            assert talk.audio(response.id)
            return words(response)

    async def both() -> list[str]:
        return await asyncio.gather(one(), one())

    assert all(asyncio.run(both()))


def test_a_wrong_key_is_refused(calling_url: str):
    with (
        OpenAI(base_url=f"{calling_url}/v1", api_key="wrong" * 4) as client,
        pytest.raises(AuthenticationError),
    ):
        client.models.list()

    async def nothing(_talk: OpenAiTalk) -> None: ...

    with pytest.raises(InvalidStatus) as refusal:
        converse(calling_url, nothing, key="wrong" * 4)
    assert refusal.value.response.status_code == 401


def test_a_client_secret_opens_the_session_that_it_was_made_for(calling_url: str):
    async def make() -> str:
        async with AsyncOpenAI(base_url=f"{calling_url}/v1", api_key=KEY) as client:
            made = await client.realtime.client_secrets.create(
                session={"type": "realtime", "output_modalities": ["text"]}
            )
            assert made.value.startswith("ek_")
            return made.value

    async def scenario(talk: OpenAiTalk) -> None:
        assert talk.events[0].session.output_modalities == ["text"]
        await talk.write(SKY)
        assert words((await talk.answer()).response)

    converse(calling_url, scenario, key=asyncio.run(make()))
