"""The lane of OpenAI Realtime clients: which events a turn has, and in which order.

Every event that comes is checked against the types of the `openai` package, strictly.
"""

import numpy as np
import pytest

from realtime.agent.base import AudioDelta, FunctionCall, ReplyDone, StageFailed, TextDelta
from tests.fakes import RATE_HZ
from tests.realtime.harness import run, until
from tests.realtime.lanes.ga_client import MAX_DELTA_MS, ga_client
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

COMMITTED = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]
WRITTEN = ["conversation.item.added", "conversation.item.done"]
BEGUN = ["response.created", "rate_limits.updated"]
ITEM_ADDED = ["response.output_item.added", "conversation.item.added"]
ITEM_DONE = ["response.output_item.done", "conversation.item.done"]
SPOKEN = [
    *ITEM_ADDED,
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    *ITEM_DONE,
]
TYPED = [
    *ITEM_ADDED,
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    *ITEM_DONE,
]
CALLED = [
    *ITEM_ADDED,
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    *ITEM_DONE,
]
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "of a town",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
}


async def replying(here, client, text="It is a long story", seconds=1.0, n_before=0):
    """An answer under way, of which something has been sent."""
    await until(lambda: len(here.agent.replies) > n_before)
    reply = here.agent.replies[-1]
    reply.say(text, seconds)
    await client.until("response.output_audio.delta")
    return reply


def test_a_spoken_turn():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.turn()
            response = await client.done()
            assert client.types() == [*COMMITTED, *BEGUN, *SPOKEN, "response.done"]
            item = response["output"][0]
            assert item["content"] == [{"type": "output_audio", "transcript": "Good day to you."}]
            assert len(client.audio[response["id"]]) == 24_000, "half a second of PCM16 at 24 kHz"
            added = client.events("conversation.item.added")[-1]["item"]
            assert (added["status"], added["content"]) == ("in_progress", [])
            assert added["id"] == item["id"]
            started, stopped, committed = client.log[:3]
            assert started["item_id"] == stopped["item_id"] == committed["item_id"]
            assert started["audio_start_ms"] < stopped["audio_end_ms"]

    run(scenario)


def test_a_written_turn_that_is_spoken():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.write("Hello.")
            await client.answer()
            assert client.types() == [*WRITTEN, *BEGUN, *SPOKEN, "response.done"]

    run(scenario)


def test_a_written_turn_that_is_written():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.update(output_modalities=["text"])
            client.log.clear()
            await client.write("Hello.")
            response = await client.answer()
            assert client.types() == [*WRITTEN, *BEGUN, *TYPED, "response.done"]
            content = response["output"][0]["content"]
            assert content == [{"type": "output_text", "text": "Good day to you."}]
            assert response["output_modalities"] == ["text"]

    run(scenario)


def test_a_turn_with_a_function_call():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            session = await client.update(tools=[WEATHER], tool_choice="required")
            assert (session["tools"], session["tool_choice"]) == ([WEATHER], "required")
            await client.write("How is it in Rome?")
            client.log.clear()
            await client.send("response.create")
            await until(lambda: agent.replies)
            call = FunctionCall(call_id="call_1", name="weather", arguments='{"town": "Rome"}')
            agent.replies[0].put(call, ReplyDone(n_input_tokens=9, n_output_tokens=4))
            response = await client.done()
            assert client.types() == [*BEGUN, *CALLED, "response.done"]
            assert agent.replies[0].request.tools[0].name == "weather"
            item = response["output"][0]
            assert item == {
                "id": item["id"],
                "object": "realtime.item",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_1",
                "name": "weather",
                "arguments": '{"town": "Rome"}',
            }
            result = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
            await client.send("conversation.item.create", item=result)
            done = await client.until("conversation.item.done")
            assert done["previous_item_id"] == item["id"]
            await client.send("response.create")
            await until(lambda: len(agent.replies) == 2)
            agent.replies[1].put(TextDelta(text="It is sunny."))
            agent.replies[1].end()
            await client.done()
            _, call, result = agent.replies[1].request.items
            assert (call.name, call.arguments) == ("weather", '{"town": "Rome"}')
            assert (result.call_id, result.output) == ("call_1", "sunny")

    run(scenario)


def test_a_turn_that_the_user_interrupts():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.turn()
            reply = await replying(here, client)
            client.log.clear()
            await client.speak((LOUD, 400))
            response = await client.done()
            assert client.types("response.output_audio.delta") == [
                "input_audio_buffer.speech_started",
                "response.output_audio.done",
                "response.output_audio_transcript.done",
                "response.content_part.done",
                *ITEM_DONE,
                "response.done",
            ]
            assert response["status"] == "cancelled"
            assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
            assert response["output"][0]["status"] == "incomplete"
            assert reply.is_cancelled

    run(scenario)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_turn_that_the_client_cancels(is_named):
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            response_id = (await client.until("response.created"))["response"]["id"]
            await replying(here, client)
            named = {"response_id": response_id} if is_named else {}
            await client.send("response.cancel", **named)
            response = await client.done()
            assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
            assert client.types() == [*BEGUN, *SPOKEN, "response.done"]

    run(scenario)


def test_a_turn_that_is_cancelled_before_it_says_anything():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, ga_client(here) as client:
            await client.send("response.create")
            await client.send("response.cancel")
            response = await client.done()
            assert client.types() == [*BEGUN, "response.done"]
            assert (response["status"], response["output"]) == ("cancelled", [])

    run(scenario)


def test_a_turn_that_is_cancelled_between_its_words_and_its_sound():
    """Whatever was opened is closed, sound that never came too."""

    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            await until(lambda: agent.replies)
            agent.replies[0].put(TextDelta(text="Silence."))
            await client.until("response.output_audio_transcript.delta")
            await client.send("response.cancel")
            response = await client.done()
            wanted = [kind for kind in SPOKEN if kind != "response.output_audio.delta"]
            assert client.types() == [*BEGUN, *wanted, "response.done"]
            assert response["output"][0]["content"][0]["transcript"] == ""

    run(scenario)


def test_a_turn_that_fails():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client)
            reply.put(StageFailed(stage="text_model", code="model_error", message="out of ideas"))
            response = await client.done()
            assert response["status"] == "failed"
            assert response["status_details"] == {
                "type": "failed",
                "error": {
                    "type": "server_error",
                    "code": "model_error",
                    "message": "text_model: out of ideas",
                },
            }
            assert client.types() == [*BEGUN, *SPOKEN, "response.done"]
            assert response["usage"]["output_token_details"] == {
                "text_tokens": 1,
                "audio_tokens": 100,
            }

    run(scenario)


def test_a_turn_that_is_cut_by_a_limit():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create", response={"max_output_tokens": 7})
            reply = await replying(here, client)
            assert reply.request.max_output_tokens == 7
            reply.put(ReplyDone(reason="length"))
            response = await client.done()
            assert response["status_details"] == {
                "type": "incomplete",
                "reason": "max_output_tokens",
            }
            assert response["max_output_tokens"] == 7

    run(scenario)


def test_usage_counts_tokens_of_the_text_model_and_frames_of_the_voice():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client)
            reply.put(ReplyDone(n_input_tokens=30, n_output_tokens=8, n_frames=50))
            usage = (await client.done())["usage"]
            assert usage["input_tokens"] == usage["input_token_details"]["text_tokens"] == 30
            assert usage["output_token_details"] == {"text_tokens": 8, "audio_tokens": 50}
            assert (usage["output_tokens"], usage["total_tokens"]) == (58, 88)

    run(scenario)


def test_usage_of_a_stopped_response_is_what_was_made_until_then():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client, seconds=0.5)
            await until(lambda: reply.playout.sent_s >= 0.5)
            await client.send("response.cancel")
            usage = (await client.done())["usage"]
            assert usage["output_token_details"] == {"text_tokens": 1, "audio_tokens": 50}
            assert usage["total_tokens"] == 51

    run(scenario)


def test_deltas_of_audio_are_20_to_200_ms_each():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client, seconds=1.0)
            # Models may give much at once.
            reply.put(AudioDelta(pcm=np.full(2 * RATE_HZ, 0.1, np.float32), text_end=18))
            reply.end()
            response = await client.done()
            assert len(client.audio[response["id"]]) == 3 * 48_000
            for event in client.events("response.output_audio.delta"):
                n_bytes = len(event["delta"]) * 3 / 4
                assert 20 * 48 <= n_bytes <= MAX_DELTA_MS * 48

    run(scenario)


def test_ids_chain_the_items_and_the_events_of_an_answer():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            for _ in range(3):
                await client.turn()
                await client.done()
            order = []
            for added in client.events("conversation.item.added"):
                assert added["previous_item_id"] == (order[-1] if order else None)
                order.append(added["item"]["id"])
            done = client.events("conversation.item.done")
            assert [one["item"]["id"] for one in done] == order
            ids = [event["event_id"] for event in client.log]
            assert len(set(ids)) == len(ids)
            for created, answer in zip(
                client.events("response.created"), client.events("response.done"), strict=True
            ):
                assert created["response"]["id"] == answer["response"]["id"]
                assert created["response"]["status"] == "in_progress"

    run(scenario)


def test_push_to_talk():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.update(audio={"input": {"turn_detection": None}})
            client.log.clear()
            await client.send("input_audio_buffer.clear")
            await client.speak((LOUD, 500))
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            await client.done()
            assert client.types() == [
                "input_audio_buffer.cleared",
                "input_audio_buffer.committed",
                *WRITTEN,
                *BEGUN,
                *SPOKEN,
                "response.done",
            ]

    run(scenario)


def test_transcripts_come_where_they_were_asked_for():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.turn()
            await client.done()
            assert not [one for one in client.log if "transcription" in one["type"]]
            asked = {"model": "gpt-4o-mini-transcribe", "language": "en"}
            session = await client.update(audio={"input": {"transcription": asked}})
            assert session["audio"]["input"]["transcription"] == asked
            client.log.clear()
            await client.turn()
            await client.done()
            kind = "conversation.item.input_audio_transcription.completed"
            completed = client.events(kind)[0]
            assert completed["transcript"] == "hello"
            assert completed["usage"]["type"] == "duration"
            assert completed["usage"]["seconds"] > 0.5
            assert (
                completed["item_id"] == client.events("input_audio_buffer.committed")[0]["item_id"]
            )
            assert here.agent.transcriptions[-1].language == "en"

    run(scenario)


def test_a_transcript_that_fails():
    async def scenario():
        agent = ScriptedAgent(words=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.update(audio={"input": {"transcription": {}}})
            await client.turn()
            await client.until("input_audio_buffer.committed")
            agent.transcriptions[-1].put(
                StageFailed(stage="transcriber", code="model_error", message="noise")
            )
            kind = "conversation.item.input_audio_transcription.failed"
            failed = await client.until(kind)
            assert failed["error"]["code"] == "model_error"
            assert failed["error"]["type"] == "server_error"

    run(scenario)


def test_vad_that_neither_creates_nor_interrupts():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        vad = {"type": "server_vad", "create_response": False, "interrupt_response": False}
        async with talk(agent) as here, ga_client(here) as client:
            session = await client.update(audio={"input": {"turn_detection": vad}})
            echoed = session["audio"]["input"]["turn_detection"]
            assert (echoed["create_response"], echoed["interrupt_response"]) == (False, False)
            await client.turn()
            await client.until("conversation.item.done")
            await client.settle()
            assert not agent.replies
            await client.send("response.create")
            reply = await replying(here, client)
            await client.turn()
            await client.until("input_audio_buffer.committed")
            assert not reply.is_cancelled
            reply.end()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_semantic_vad_with_its_eagerness():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            vad = {"type": "semantic_vad", "eagerness": "low"}
            session = await client.update(audio={"input": {"turn_detection": vad}})
            assert session["audio"]["input"]["turn_detection"] == {
                "type": "semantic_vad",
                "eagerness": "low",
                "create_response": True,
                "interrupt_response": True,
            }

    run(scenario)


def test_silence_is_a_turn_after_the_idle_timeout():
    async def scenario():
        vad = {"type": "server_vad", "idle_timeout_ms": 5000}
        async with talk() as here, ga_client(here) as client:
            await client.update(audio={"input": {"turn_detection": vad}})
            await client.turn()
            await client.done()
            await client.settle()
            client.log.clear()
            here.clock.now_s += 2.0
            await client.settle()
            while not client.events("input_audio_buffer.timeout_triggered"):
                here.clock.now_s += 1.0
                await client.settle()
            await client.done()
            wanted = ["input_audio_buffer.timeout_triggered", "input_audio_buffer.committed"]
            assert client.types("error") == [*wanted, *WRITTEN, *BEGUN, *SPOKEN, "response.done"]

    run(scenario)
