"""The lane of OpenAI Realtime clients: how a session begins, its settings, its formats, its end."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from realtime.audio.coder import pcm16_bytes
from realtime.audio.g711 import G711
from realtime.audio.resample import Resampler
from tests.fakes import fake_spec
from tests.realtime.harness import FAST_CONFIG, run, until
from tests.realtime.lanes.ga_client import closed, ga_client
from tests.realtime.lanes.test_openai_turns import WEATHER, replying
from tests.realtime.sounds import speech_like
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

AGENTS_FIRST_UPDATE = {
    "model": "gpt-realtime-2.1",
    "instructions": "Be brief.",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
            "noise_reduction": {"type": "near_field"},
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "ash", "speed": 1.0},
    },
    "tools": [],
    "tool_choice": "auto",
    "tracing": "auto",
    "truncation": {"type": "retention_ratio", "retention_ratio": 0.8},
    "include": ["item.input_audio_transcription.logprobs"],
    "reasoning": {"effort": "low"},
    "parallel_tool_calls": False,
    "prompt": None,
}


# How it begins.


def test_a_session_begins_as_these_clients_expect():
    async def scenario():
        async with talk() as here, ga_client(here, "?model=gpt-realtime") as client:
            session = client.session
            assert session["type"] == "realtime"
            assert session["object"] == "realtime.session"
            assert session["model"] == "scripted", "who answers in fact"
            assert session["output_modalities"] == ["audio"]
            assert session["max_output_tokens"] == "inf"
            assert session["audio"] == {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": None,
                    "noise_reduction": None,
                    "turn_detection": {
                        "type": "server_vad",
                        "threshold": 0.5,
                        "prefix_padding_ms": 300,
                        "silence_duration_ms": 500,
                        "create_response": True,
                        "interrupt_response": True,
                        "idle_timeout_ms": None,
                    },
                },
                "output": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "voice": "ada",
                    "speed": 1.0,
                },
            }

    run(scenario)


@pytest.mark.parametrize(
    ("offered", "selected"),
    [(None, None), (["realtime"], "realtime"), (["x", "realtime", "parley.v1"], "realtime")],
)
def test_the_subprotocol_is_selected_only_if_it_is_offered(offered, selected):
    async def scenario():
        async with talk() as here, ga_client(here, subprotocols=offered) as client:
            assert client.socket.subprotocol == selected

    run(scenario)


def test_the_old_subprotocol_is_refused():
    async def scenario():
        async with talk() as here:
            with pytest.raises(InvalidStatus) as caught:
                async with ga_client(here, subprotocols=["openai-beta.realtime-v1"]):
                    pass
            assert caught.value.response.status_code == 400

    run(scenario)


# Settings.


def test_what_a_client_sets_is_shown_as_it_was_sent():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            session = await client.update(**AGENTS_FIRST_UPDATE)
            shown = {name: session[name] for name in AGENTS_FIRST_UPDATE}
            shown["audio"]["input"]["turn_detection"] = {
                "type": "semantic_vad",
                "interrupt_response": True,
            }
            assert shown == AGENTS_FIRST_UPDATE | {"model": "scripted"}
            again = await client.update(tracing=None, instructions="")
            expected = session | {"tracing": None, "instructions": ""}
            assert again["instructions"] == ""
            assert {**again, "audio": None} == {**expected, "audio": None}

    run(scenario)


def test_settings_are_merged_field_by_field():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            vad = {"type": "server_vad", "threshold": 0.7, "silence_duration_ms": 200}
            reduction = {"type": "far_field", "strength": 0.5}
            heard = {"turn_detection": vad, "noise_reduction": reduction}
            await client.update(audio={"input": heard, "output": {"voice": "bob"}})
            vad = {"type": "server_vad", "interrupt_response": False}
            heard = {"turn_detection": vad, "noise_reduction": {"type": "near_field"}}
            session = await client.update(audio={"input": heard}, max_output_tokens=100)
            shown = session["audio"]["input"]["turn_detection"]
            assert (shown["threshold"], shown["silence_duration_ms"]) == (0.7, 200)
            assert shown["interrupt_response"] is False
            assert session["audio"]["input"]["noise_reduction"] == {
                "type": "near_field",
                "strength": 0.5,
            }
            assert session["audio"]["output"]["voice"] == "bob"
            # Of another kind: nothing of the one before holds.
            vad = {"type": "semantic_vad"}
            session = await client.update(audio={"input": {"turn_detection": vad}})
            assert session["audio"]["input"]["turn_detection"]["interrupt_response"] is True
            session = await client.update(audio={"input": {"turn_detection": None}})
            assert session["audio"]["input"]["turn_detection"] is None

    run(scenario)


def test_an_update_with_one_bad_field_changes_nothing():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            before = client.session
            error = await client.refused(
                "session.update",
                session={
                    "type": "realtime",
                    "instructions": "other",
                    "tracing": "auto",
                    "audio": {"output": {"voice": "nobody"}, "input": {"turn_detection": None}},
                },
            )
            assert error["param"] == "session.audio.output.voice"
            assert error["code"] == "unknown_voice"
            assert await client.update() == before

    run(scenario)


@pytest.mark.parametrize("voice", ["alloy", "ash", "cedar", "marin", {"id": "ash"}])
def test_voices_of_the_api_are_the_models_first_voice(voice):
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            session = await client.update(audio={"output": {"voice": voice}})
            assert session["audio"]["output"]["voice"] == voice
            response = await client.answer()
            assert here.agent.replies[0].request.voice is None
            name = voice["id"] if isinstance(voice, dict) else voice
            assert response["audio"]["output"]["voice"] == name
            session = await client.update(audio={"output": {"voice": "bob"}})
            assert session["audio"]["output"]["voice"] == "bob"
            await client.answer(audio={"output": {"voice": "ada"}})
            assert here.agent.replies[1].request.voice == "ada"

    run(scenario)


def test_a_voice_that_the_model_has_under_such_a_name_is_that_one():
    async def scenario():
        agent = ScriptedAgent(spec=fake_spec(voices=("ada", "ash")))
        async with talk(agent) as here, ga_client(here) as client:
            await client.update(audio={"output": {"voice": "ash"}})
            await client.answer()
            assert agent.replies[0].request.voice == "ash"

    run(scenario)


def test_speed_is_the_models_own_option():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            session = await client.update(audio={"output": {"speed": 1.25}})
            assert session["audio"]["output"]["speed"] == 1.25
            await client.answer()
            assert here.agent.replies[0].request.options == {"speed": 1.25}
            # The API goes down to 0.25, this model to 0.5.
            for speed in (0.25, 1.6):
                bad = {"type": "realtime", "audio": {"output": {"speed": speed}}}
                error = await client.refused("session.update", session=bad)
                assert error["param"] == "session.audio.output.speed"
            session = await client.update(audio={"output": {"speed": 1}})
            await client.answer()
            assert here.agent.replies[1].request.options == {}

    run(scenario)


def test_a_model_without_speeds_speaks_at_one_speed():
    async def scenario():
        agent = ScriptedAgent(spec=fake_spec(options=()))
        async with talk(agent) as here, ga_client(here) as client:
            await client.update(audio={"output": {"speed": 1.0}})
            bad = {"type": "realtime", "audio": {"output": {"speed": 1.2}}}
            error = await client.refused("session.update", session=bad)
            assert (error["param"], error["code"]) == (
                "session.audio.output.speed",
                "unknown_option",
            )

    run(scenario)


def test_a_language_that_is_not_heard_is_refused_before_anybody_speaks():
    """It was taken, and every turn failed."""

    async def scenario():
        agent = ScriptedAgent(transcribed_languages=("en", "de"))
        async with talk(agent) as here, ga_client(here) as client:
            heard = {"input": {"transcription": {"language": "de-AT"}}}
            await client.update(audio=heard)
            heard = {"input": {"transcription": {"language": "xx"}}}
            session = {"type": "realtime", "audio": heard}
            error = await client.refused("session.update", session=session)
            assert error["code"] == "unsupported_language"
            assert error["param"] == "session.audio.input.transcription.language"
            assert "en, de" in error["message"]

    run(scenario)


def test_tools_are_refused_in_words_where_the_text_model_calls_none():
    async def scenario():
        agent = ScriptedAgent(calls_tools=False)
        async with talk(agent) as here, ga_client(here) as client:
            await client.update(tools=[], tool_choice="auto")
            session = {"type": "realtime", "tools": [WEATHER]}
            error = await client.refused("session.update", session=session)
            assert (error["code"], error["param"]) == ("tools_not_supported", "session.tools")
            assert "--llm-url" in error["message"]
            error = await client.refused("response.create", response={"tools": [WEATHER]})
            assert error["param"] == "response.tools"
            assert (await client.answer())["status"] == "completed"

    run(scenario)


def test_a_response_has_settings_of_its_own():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.update(instructions="Be kind.")
            response = await client.answer(
                instructions="Be rude.",
                output_modalities=["text"],
                max_output_tokens=5,
                metadata={"client_event_id": "c1"},
                tools=[WEATHER],
                tool_choice={"type": "function", "name": "weather"},
            )
            assert response["metadata"] == {"client_event_id": "c1"}
            assert response["output_modalities"] == ["text"]
            created = client.events("response.created")[0]["response"]
            assert created["metadata"] == {"client_event_id": "c1"}
            asked = here.agent.replies[0].request
            assert (asked.instructions, asked.wants_audio) == ("Be rude.", False)
            assert asked.tool_choice == "weather"
            await client.answer()
            assert here.agent.replies[1].request.instructions == "Be kind."

    run(scenario)


# Formats.


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_out(law):
    async def scenario():
        form = {"type": f"audio/{law}"}
        async with talk(ScriptedAgent(answer=None)) as here, ga_client(here) as client:
            session = await client.update(audio={"output": {"format": form}})
            assert session["audio"]["output"]["format"] == form
            await client.send("response.create")
            reply = await replying(here, client, seconds=1.0)
            reply.end()
            response = await client.done()
            assert response["audio"]["output"]["format"] == form
            payload = bytes(client.audio[response["id"]])
            assert len(payload) == 8000, "a byte a sample, resampled without loss"
            heard = G711[law].decode(payload).astype(float) / 32768
            # A constant; the resampler rings at its two ends.
            assert np.abs(heard[200:-200] - 0.1).max() < 0.005

    run(scenario)


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_in_in_pieces_of_any_size(law):
    async def scenario():
        speech = speech_like(1.024)
        down = Resampler(16000, 8000)
        narrow = np.concatenate([down.push(speech), down.finish()])
        payload = G711[law].encode(np.frombuffer(pcm16_bytes(narrow), "<i2"))
        heard = {"format": {"type": f"audio/{law}"}, "turn_detection": None}
        async with talk() as here, ga_client(here) as client:
            # Sent in one go: the audio is read in the form that was asked for just before.
            await client.send("session.update", session={"audio": {"input": heard}})
            for start in range(0, len(payload), 161):
                await client.append(payload[start : start + 161])
            await client.send("input_audio_buffer.commit")
            await client.until("conversation.item.done")
            await until(lambda: here.agent.transcriptions)
            pcm = here.agent.transcriptions[0].pcm
            up = Resampler(8000, 16000)
            expected = np.concatenate([up.push(narrow), up.finish()])
            assert len(pcm) == len(expected)
            assert np.corrcoef(pcm, expected)[0, 1] > 0.99

    run(scenario)


def test_bytes_one_by_one_and_odd_pieces_lose_nothing():
    async def scenario():
        config = replace(FAST_CONFIG, max_messages_per_s=1e6, message_burst=100_000)
        payload = pcm16_bytes(np.full(2400, LOUD, np.float32))
        async with talk(config=config) as here, ga_client(here) as client:
            await client.update(audio={"input": {"turn_detection": None}})
            for start in range(len(payload)):
                await client.append(payload[start : start + 1])
            for start in range(0, len(payload), 333):
                await client.append(payload[start : start + 333])
            await client.send("input_audio_buffer.commit")
            await client.until("conversation.item.done")
            await until(lambda: here.agent.transcriptions)
            pcm = here.agent.transcriptions[0].pcm
            assert len(pcm) == 3200
            assert np.abs(pcm[50:-50] - LOUD).max() < 0.01

    run(scenario)


def test_two_minutes_in_one_event():
    """As much as may wait for a commit; the API's clients may send a recording at once."""

    async def scenario():
        payload = pcm16_bytes(np.full(120 * 24_000, LOUD, np.float32))
        async with talk() as here, ga_client(here) as client:
            await client.update(audio={"input": {"turn_detection": None}})
            await client.append(payload)
            await client.send("input_audio_buffer.commit")
            await client.until("conversation.item.done")
            await until(lambda: here.agent.transcriptions)
            assert len(here.agent.transcriptions[0].pcm) == 120 * 16_000

    run(scenario)


# Its end.


def test_silence_ends_no_session_but_an_hour_does():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            here.clock.now_s += 3500.0
            await asyncio.sleep(0.5)
            await client.settle()
            client.log.clear()
            here.clock.now_s += 101.0
            code, reason = await closed(client)
            assert code == 1001
            assert "3600 s" in reason
            assert client.log[-1]["error"]["code"] == "session_expired"

    run(scenario)


def test_a_stop_lets_the_answer_end():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client)
            stopping = asyncio.create_task(here.server.gateway.drain())
            await client.settle()
            error = await client.refused("response.create")
            assert error["code"] == "server_stopping"
            reply.end()
            assert (await client.done())["status"] == "completed"
            assert (await closed(client))[0] == 1001
            await stopping

    run(scenario)


def test_an_answer_is_over_before_the_session_is():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            await replying(here, client)
            here.clock.now_s += 3601
            assert (await closed(client))[0] == 1001
            (done,) = client.events("response.done")
            assert done["response"]["status"] == "cancelled"

    run(scenario)
