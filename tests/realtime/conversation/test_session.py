"""Conversations through a real socket, with a scripted agent and a clock by hand."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from realtime.agent.base import (
    CallResult,
    FunctionCall,
    Message,
    PastCall,
    ReplyDone,
    StageFailed,
)
from realtime.conversation.session import TICK_S
from realtime.frames import AudioFrame
from tests.realtime.harness import FAST_CONFIG, run, until
from tests.realtime.talk_harness import (
    HANDS_FREE,
    LOUD,
    PUSH_TO_TALK,
    SOFT,
    ScriptedAgent,
    ScriptedJudge,
    talk,
)

SPOKEN_TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]
SPOKEN_ANSWER = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.started",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
TRANSCRIPTION = "conversation.item.input_audio_transcription."


def without(types, *leave_out):
    kept = [one for one in types if one not in leave_out]
    return [one for one in kept if not one.startswith(TRANSCRIPTION)]


def texts(request):
    return [item.text for item in request.items if isinstance(item, Message)]


def test_a_spoken_turn_is_answered_by_voice():
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.turn()
            done = await client.done()
            assert without(client.types, "audio", "response.output_audio.mark") == [
                *SPOKEN_TURN,
                *SPOKEN_ANSWER,
            ]
            started = client.events("input_audio_buffer.speech_started")[0]
            committed = client.events("input_audio_buffer.committed")[0]
            assert committed["item_id"] == started["item_id"]
            assert committed["previous_item_id"] is None
            heard = client.events(TRANSCRIPTION + "completed")[0]
            assert (heard["item_id"], heard["transcript"]) == (started["item_id"], "hello")
            assert done["status"] == "completed"
            assert done["output"][0]["content"][0]["transcript"] == "Good day to you."
            assert done["usage"]["audio_ms"] == 500
            assert done["usage"]["total_tokens"] == 5
            assert done["timing"]["endpoint_ms"] >= 500
            assert done["timing"]["stage_ms"] == {"text_model": 1.0}
            assert (
                len(client.frames(1)) == client.events("response.output_audio.done")[0]["n_packets"]
            )
            (reply,) = here.agent.replies
            assert texts(reply.request) == ["hello"]

    run(scenario)


def test_every_event_has_an_id_of_its_own():
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.turn()
            await client.done()
            ids = [one["event_id"] for one in client.log if isinstance(one, dict)]
            assert all(ids)
            assert len(set(ids)) == len(ids)

    run(scenario)


def test_a_turn_holds_the_padding_and_the_speech():
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.hear((0.0, 960))
            await client.turn(640)
            await client.done()
            pcm = here.agent.transcriptions[-1].pcm
            n_loud = int((np.abs(pcm) > 0.1).sum())
            assert n_loud == 640 * 16
            n_before = int(np.argmax(np.abs(pcm) > 0.1))
            assert 300 * 16 <= n_before < 333 * 16

    run(scenario)


def test_a_conversation_goes_on():
    async def scenario():
        async with talk() as here, here.client() as client:
            for number in (1, 2, 3):
                await client.turn()
                assert (await client.done())["number"] == number
                here.clock.now_s += 5.0
                await client.settle()
            request = here.agent.replies[2].request
            assert texts(request) == ["hello", "Good day to you."] * 2 + ["hello"]
            assert [one.role for one in request.items] == ["user", "assistant"] * 2 + ["user"]

    run(scenario)


def test_a_written_turn_is_answered_by_voice_or_in_writing():
    async def scenario():
        async with talk() as here, here.client() as client:
            item = await client.write("What time is it?", id="mine")
            assert item["id"] == "mine"
            await client.send("response.create", response={"output_modalities": ["text"]})
            done = await client.done()
            assert done["output"][0]["content"] == [
                {
                    "type": "output_text",
                    "text": "Good day to you.",
                    "transcript": None,
                    "audio": None,
                }
            ]
            assert not client.frames(1)
            await client.send("response.create", response={"metadata": {"mine": "yes"}})
            created = await client.until_event("response.created")
            assert created["response"]["metadata"] == {"mine": "yes"}
            assert (await client.done())["metadata"] == {"mine": "yes"}
            assert client.frames(2)

    run(scenario)


def test_what_a_response_is_told():
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.update(
                instructions="Be brief.",
                language="de",
                max_output_tokens=50,
                options={"speed": 1.5},
                tools=[{"type": "function", "name": "clock", "parameters": {"type": "object"}}],
                audio={"output": {"voice": "bob"}},
            )
            await client.write("Hello.")
            await client.send("response.create", response={"instructions": "Be rude."})
            await client.done()
            await client.send("response.create")
            await client.done()
            first, second = (reply.request for reply in here.agent.replies)
            assert (first.instructions, second.instructions) == ("Be rude.", "Be brief.")
            assert (second.voice, second.language, second.max_output_tokens) == ("bob", "de", 50)
            assert second.options == {"speed": 1.5}
            assert [tool.name for tool in second.tools] == ["clock"]

    run(scenario)


# No answer to nothing.


def test_a_cough_is_not_answered():
    async def scenario():
        async with talk(ScriptedAgent(words="")) as here, here.client() as client:
            await client.turn(160)
            await client.until_event(TRANSCRIPTION + "completed")
            await client.settle()
            assert "response.created" not in client.types
            assert not here.agent.replies

    run(scenario)


def test_a_cough_after_a_question_does_not_lose_the_answer():
    async def scenario():
        async with talk(ScriptedAgent(words="why?", answer=None)) as here, here.client() as client:
            await client.turn()
            await until(lambda: here.agent.replies)
            here.agent.words = ""
            await client.turn()
            await until(lambda: len(here.agent.replies) == 2)
            assert here.agent.replies[0].is_cancelled
            assert [text for text in texts(here.agent.replies[1].request) if text] == ["why?"]
            here.agent.replies[1].end()
            assert (await client.done())["status"] == "cancelled"
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_push_to_talk_of_silence_is_not_transcribed_and_answered_by_nothing():
    async def scenario():
        async with talk() as here, here.client(audio=PUSH_TO_TALK) as client:
            await client.hear((0.0, 2000))
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            done = await client.done()
            assert client.events(TRANSCRIPTION + "completed")[0]["transcript"] == ""
            assert (done["status"], done["output"]) == ("completed", [])
            assert not here.agent.transcriptions
            assert not here.agent.replies

    run(scenario)


# Push to talk.


def test_push_to_talk():
    async def scenario():
        async with talk() as here, here.client(audio=PUSH_TO_TALK) as client:
            await client.turn()
            await client.turn()
            await client.settle()
            assert client.types == ["error"], "nothing starts by itself"
            await client.send("input_audio_buffer.commit")
            await client.until_event("conversation.item.done")
            assert len(here.agent.transcriptions[0].pcm) == 2 * 1280 * 16
            await client.send("response.create")
            assert (await client.done())["status"] == "completed"
            assert "input_audio_buffer.speech_started" not in client.types

    run(scenario)


def test_what_is_cleared_is_not_committed():
    async def scenario():
        async with talk() as here, here.client(audio=PUSH_TO_TALK) as client:
            await client.hear((LOUD, 1000))
            await client.send("input_audio_buffer.clear")
            await client.hear((LOUD, 320))
            await client.send("input_audio_buffer.commit")
            await client.until_event("conversation.item.done")
            assert "input_audio_buffer.cleared" in client.types
            assert len(here.agent.transcriptions[0].pcm) == 320 * 16

    run(scenario)


def test_a_turn_that_the_clock_ended_is_not_committed_again():
    async def scenario():
        async with talk() as here, here.client(audio=HANDS_FREE) as client:
            await client.hear((LOUD, 640))
            await client.settle()
            here.clock.now_s += 1.0
            await client.until_event("input_audio_buffer.committed")
            await client.send("input_audio_buffer.commit")
            assert (await client.until_error())["code"] == "input_audio_buffer_commit_empty"
            assert len(client.events("input_audio_buffer.committed")) == 1

    run(scenario)


def test_an_answer_asked_for_waits_for_the_transcript():
    async def scenario():
        agent = ScriptedAgent(words=None)
        async with talk(agent) as here, here.client(audio=PUSH_TO_TALK) as client:
            await client.hear((LOUD, 640))
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            await client.until_event("response.created")
            assert not agent.replies
            agent.transcriptions[0].say("what time is it")
            assert (await client.done())["status"] == "completed"
            assert texts(agent.replies[0].request) == ["what time is it"]

    run(scenario)


def test_turn_detection_can_be_changed_within_a_session():
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.turn()
            await client.done()
            await client.push_to_talk()
            await client.turn()
            await client.settle()
            assert len(here.agent.replies) == 1
            await client.update(audio={"input": {"turn_detection": {"type": "server_vad"}}})
            await client.turn()
            await client.done()
            assert len(here.agent.replies) == 2

    run(scenario)


# Ends of turns.


def test_in_a_pause_the_transcript_is_begun_and_dropped_when_the_user_goes_on():
    async def scenario():
        async with talk(ScriptedAgent(words=None)) as here, here.client() as client:
            await client.hear((LOUD, 640), (0.0, 256))
            await until(lambda: len(here.agent.transcriptions) == 1)
            await client.hear((LOUD, 320))
            await until(lambda: here.agent.transcriptions[0].is_cancelled)
            await client.hear((0.0, 640))
            await until(lambda: len(here.agent.transcriptions) == 2)
            here.agent.transcriptions[1].say("both halves")
            await client.done()
            assert texts(here.agent.replies[0].request) == ["both halves"]
            assert len(here.agent.transcriptions) == 2, "what was begun in the pause is kept"
            assert client.types.count(TRANSCRIPTION + "completed") == 1

    run(scenario)


@pytest.mark.parametrize(
    ("completeness", "words", "is_early"),
    [
        (0.9, "hello", True),
        (0.1, "hello and", False),
        (0.9, "hello and", False),
        # The judge alone would have it wait two seconds.
        (0.1, "", True),
    ],
)
def test_judge_and_words_shorten_or_lengthen_the_wait(completeness, words, is_early):
    async def scenario():
        judge = ScriptedJudge(completeness)
        agent = ScriptedAgent(words=words)
        async with talk(agent, judge=judge) as here, here.client() as client:
            assert client.session["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
            await client.hear((LOUD, 640), (0.0, 224))
            await until(lambda: judge.heard)
            await client.settle()
            await client.hear((0.0, 416))
            await client.settle()
            assert ("input_audio_buffer.speech_stopped" in client.types) == is_early
            await client.hear((0.0, 1600))
            await client.settle()
            assert "input_audio_buffer.speech_stopped" in client.types
            assert len(judge.heard) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("completeness", "words", "silence_ms"),
    [(0.9, "Why?", 288), (0.1, "Why?", 512), (0.9, "Because the", 2016), (0.1, "My name is", 2016)],
)
def test_how_long_a_turn_waits_for_more(completeness, words, silence_ms):
    async def scenario():
        agent = ScriptedAgent(words=None)
        async with talk(agent, judge=ScriptedJudge(completeness)) as here, here.client() as client:
            await client.hear((LOUD, 640), (0.0, 192))
            await until(lambda: agent.transcriptions)
            agent.transcriptions[0].say(words)
            await client.settle()
            n_frames = 6
            while "input_audio_buffer.speech_stopped" not in client.types:
                await client.hear((0.0, 32), piece_ms=32)
                await client.settle()
                n_frames += 1
            assert n_frames * 32 == silence_ms

    run(scenario)


def test_a_judge_keeps_the_turn_open_while_the_words_are_to_come():
    async def scenario():
        agent = ScriptedAgent(words=None)
        async with talk(agent, judge=ScriptedJudge(0.1)) as here, here.client() as client:
            await client.hear((LOUD, 640), (0.0, 256))
            await client.settle()
            await client.hear((0.0, 960))
            await client.settle()
            assert "input_audio_buffer.speech_stopped" not in client.types
            agent.transcriptions[0].say("When does the shop open?")
            await client.until_event("input_audio_buffer.speech_stopped")

    run(scenario)


@pytest.mark.parametrize(("completeness", "is_early"), [(0.9, True), (0.1, False)])
def test_for_an_agent_without_transcripts_the_judge_decides_alone(completeness, is_early):
    async def scenario():
        agent = ScriptedAgent(needs_transcript=False, can_transcribe=False)
        async with talk(agent, judge=ScriptedJudge(completeness)) as here, here.client() as client:
            await client.hear((LOUD, 640), (0.0, 416))
            await client.settle()
            await client.hear((0.0, 640))
            await client.settle()
            assert ("input_audio_buffer.speech_stopped" in client.types) == is_early

    run(scenario)


def test_without_a_judge_the_words_alone_ask_for_patience():
    async def scenario():
        vad = {"input": {**HANDS_FREE["input"], "turn_detection": {"type": "semantic_vad"}}}
        async with talk(ScriptedAgent(words="and the")) as here, here.client(audio=vad) as client:
            await client.hear((LOUD, 640), (0.0, 256))
            await client.settle()
            await client.hear((0.0, 640))
            await client.settle()
            assert "input_audio_buffer.speech_stopped" not in client.types
            await client.hear((0.0, 1600))
            await client.done()

    run(scenario)


def test_server_vad_asks_no_judge():
    async def scenario():
        judge = ScriptedJudge(0.0)
        vad = {"input": {**HANDS_FREE["input"], "turn_detection": {"type": "server_vad"}}}
        async with talk(judge=judge) as here, here.client(audio=vad) as client:
            await client.turn()
            await client.done()
            assert not judge.heard

    run(scenario)


def test_mute_in_mid_speech_ends_the_turn_by_the_wall_clock():
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.hear((LOUD, 640))
            await client.until_event("input_audio_buffer.speech_started")
            await client.settle()
            here.clock.now_s += 0.7
            await asyncio.sleep(0.15)
            await client.settle()
            assert "input_audio_buffer.speech_stopped" not in client.types
            here.clock.now_s += 0.2
            assert (await client.done())["status"] == "completed"

    run(scenario)


# Barge-in.


async def speaking(here, client, text="one two three four five six", seconds=3.0):
    """Bring an answer to the point where all its audio is at the client."""
    await client.write("Count.")
    await client.send("response.create")
    await until(lambda: here.agent.replies)
    reply = here.agent.replies[-1]
    reply.say(text, seconds)
    n_packets = round(seconds * 50)
    while len(client.frames(len(here.agent.replies))) < n_packets - 1:
        await client.next()
    return reply


def test_speech_stops_the_answer_at_once_and_only_what_was_heard_counts():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await speaking(here, client)
            response_id = client.events("response.created")[0]["response"]["id"]
            # The client plays with a delay of its own, which only it knows.
            here.clock.now_s += 1.9
            await client.send("output_audio.playout", response_id=response_id, heard_ms=1500)
            await client.settle()
            client.log.clear()
            await client.hear((LOUD, 256))
            done = await client.done()
            assert client.types[:3] == [
                "input_audio_buffer.speech_started",
                "output_audio_buffer.cleared",
                "conversation.item.truncated",
            ], "silence first, and why"
            assert client.log[1]["response_id"] == response_id
            assert client.log[2]["audio_end_ms"] == 1500
            assert reply.is_cancelled
            assert reply.reports == [1.5]
            assert done["status"] == "cancelled"
            assert done["status_details"]["reason"] == "turn_detected"
            (item,) = done["output"]
            assert item["status"] == "incomplete"
            assert item["content"][0]["transcript"] == "one two three"

            here.agent.answer = "All right."
            await client.hear((LOUD, 320), (0.0, 640))
            await client.done()
            assert texts(here.agent.replies[1].request) == ["Count.", "one two three", "hello"]

    run(scenario)


async def broken_off(here, client, words):
    """An answer of six words, stopped after two seconds by somebody who says `words`."""
    reply = await speaking(here, client)
    await heard(here, client, 2000)
    here.agent.words = words
    await client.turn()
    return reply


async def heard(here, client, milliseconds):
    here.clock.now_s += milliseconds / 1000
    response_id = client.events("response.created")[-1]["response"]["id"]
    await client.send("output_audio.playout", response_id=response_id, heard_ms=milliseconds)
    await client.settle()


@pytest.mark.parametrize("words", ["", "Hmm."])
def test_an_answer_goes_on_where_nothing_was_said_after_all(words):
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await broken_off(here, client, words)
            await until(lambda: len(here.agent.replies) == 2)
            assert reply.is_cancelled
            stopped, resumed = await client.done(), await client.done()
            assert [stopped["status"], resumed["status"]] == ["cancelled", "completed"]
            assert stopped["output"][0]["content"][0]["transcript"] == "one two three four"
            assert resumed["output"][0]["content"][0]["transcript"] == "five six"
            assert client.frames(2)
            here.agent.words, here.agent.answer = "And then?", "Seven."
            here.clock.now_s += 5.0
            await client.settle()
            await client.turn()
            await client.done()
            assert "five six" in texts(here.agent.replies[-1].request)
            assert "one two three four" in texts(here.agent.replies[-1].request)

    run(scenario)


def test_an_answer_that_was_interrupted_by_words_does_not_go_on():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await broken_off(here, client, "Stop.")
            await until(lambda: len(here.agent.replies) == 2)
            here.agent.replies[1].say("Good.", 0.2)
            here.agent.replies[1].end()
            assert (await client.done())["status"] == "cancelled"
            assert (await client.done())["output"][0]["content"][0]["transcript"] == "Good."

    run(scenario)


def test_an_agent_that_cannot_recite_stays_silent():
    async def scenario():
        agent = ScriptedAgent(answer=None, can_recite=False)
        async with talk(agent) as here, here.client() as client:
            await broken_off(here, client, "")
            await client.done()
            await client.settle()
            assert len(agent.replies) == 1
            agent.words, agent.answer = "Go on.", "Five."
            await client.turn()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_without_reports_the_estimate_counts():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await speaking(here, client)
            here.clock.now_s += 2.0
            await client.hear((LOUD, 256))
            assert (await client.until_event("conversation.item.truncated"))["audio_end_ms"] == 2000
            done = await client.done()
            assert done["output"][0]["content"][0]["transcript"] == "one two three four"

    run(scenario)


def test_a_complete_answer_that_is_still_heard_is_silenced_and_cut():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await speaking(here, client)
            reply.end()
            item = (await client.done())["output"][0]
            here.clock.now_s += 1.0
            await client.hear((LOUD, 256))
            await client.until_event("output_audio_buffer.cleared")
            cut = await client.until_event("conversation.item.truncated")
            assert (cut["item_id"], cut["audio_end_ms"]) == (item["id"], 1000)
            await client.send("conversation.item.retrieve", item_id=item["id"])
            kept = (await client.until_event("conversation.item.retrieved"))["item"]
            assert kept["content"][0]["transcript"] == "one two"

    run(scenario)


def test_what_was_heard_to_its_end_is_not_cut():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await speaking(here, client)
            reply.end()
            await client.done()
            here.clock.now_s += 4.0
            await asyncio.sleep(0.2)
            await client.turn()
            await client.until_event(TRANSCRIPTION + "completed")
            assert "output_audio_buffer.cleared" not in client.types

    run(scenario)


def test_no_late_audio_of_a_stopped_answer():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await speaking(here, client)
            await client.hear((LOUD, 256))
            await client.until_event("output_audio_buffer.cleared")
            client.log.clear()
            reply.say("seven eight nine", 2.0)
            reply.end()
            await client.done()
            here.agent.answer = "Yes?"
            await client.hear((0.0, 640))
            await client.done()
            assert not client.frames(1)
            assert client.frames(2)

    run(scenario)


def test_an_echo_does_not_interrupt():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await speaking(here, client)
            # Enough for a turn at other times, but too short, or too soft, while the agent speaks.
            await client.hear((LOUD, 128), (0.0, 320), (SOFT, 1000), (0.0, 640))
            await client.settle()
            assert not reply.is_cancelled
            assert "input_audio_buffer.speech_started" not in client.types
            reply.end()
            await client.done()
            here.clock.now_s += 4.0
            await asyncio.sleep(0.2)
            await client.hear((LOUD, 192), (0.0, 320))
            await client.until_event("input_audio_buffer.speech_started")

    run(scenario)


def test_interruption_can_be_switched_off():
    async def scenario():
        vad = {"type": "server_vad", "interrupt_response": False}
        audio = {"input": {**HANDS_FREE["input"], "turn_detection": vad}}
        async with talk(ScriptedAgent(answer=None)) as here, here.client(audio=audio) as client:
            reply = await speaking(here, client)
            await client.turn()
            await client.until_event(TRANSCRIPTION + "completed")
            assert not reply.is_cancelled
            reply.end()
            assert (await client.done())["status"] == "completed"
            await asyncio.sleep(3 * TICK_S)
            assert len(here.agent.replies) == 1, "its end is still heard"
            here.clock.now_s += 5.0
            await until(lambda: len(here.agent.replies) == 2)
            here.agent.replies[1].end()
            await client.done()

    run(scenario)


def test_all_that_is_said_during_an_answer_without_interruption_has_one_answer():
    async def scenario():
        vad = {"type": "server_vad", "interrupt_response": False}
        audio = {"input": {**HANDS_FREE["input"], "turn_detection": vad}}
        async with talk(ScriptedAgent(answer=None)) as here, here.client(audio=audio) as client:
            reply = await speaking(here, client)
            for words in ("one", "two", "", "three", ""):
                here.agent.words = words
                await client.turn()
                await client.until_event(TRANSCRIPTION + "completed")
            reply.end()
            await client.done()
            here.clock.now_s += 5.0
            await until(lambda: len(here.agent.replies) == 2)
            said = [text for text in texts(here.agent.replies[1].request) if text]
            assert said[-3:] == ["one", "two", "three"]
            here.agent.replies[1].end()
            await client.done()
            await client.settle()
            assert len(here.agent.replies) == 2

    run(scenario)


def test_silence_after_an_answer_is_answered_after_the_idle_timeout():
    async def scenario():
        vad = {"type": "server_vad", "idle_timeout_ms": 5000}
        audio = {"input": {**HANDS_FREE["input"], "turn_detection": vad}}
        async with talk() as here, here.client(audio=audio) as client:
            await client.turn()
            await client.done()
            here.clock.now_s += 1.0
            await client.hear((0.0, 640))
            await client.settle()
            await asyncio.sleep(0.2)
            here.clock.now_s += 5.1
            triggered = await client.until_event("input_audio_buffer.timeout_triggered")
            await client.done()
            assert triggered["audio_end_ms"] > triggered["audio_start_ms"]
            assert len(here.agent.replies) == 2

    run(scenario)


# Cancel and refuse.


def test_cancel_reaches_the_agent_and_the_next_answer_may_follow_at_once():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            reply = await speaking(here, client)
            await client.send("response.cancel")
            await client.send("response.create")
            done = await client.done()
            assert done["status_details"]["reason"] == "client_cancelled"
            assert reply.is_cancelled
            await until(lambda: len(here.agent.replies) == 2)
            here.agent.replies[1].say("Yes.", 0.2)
            here.agent.replies[1].end()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_cancel_before_the_transcript_ends_the_answer_that_was_to_come():
    async def scenario():
        async with talk(ScriptedAgent(words=None)) as here, here.client() as client:
            await client.turn()
            await client.until_event("conversation.item.done")
            await client.send("response.cancel")
            done = await client.done()
            assert (done["status"], done["output"]) == ("cancelled", [])
            here.agent.transcriptions[0].say("never mind")
            await client.until_event(TRANSCRIPTION + "completed")
            await client.settle()
            assert not here.agent.replies
            assert client.types.count("response.created") == 1

    run(scenario)


# Failures cost what they must and no more.


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (StageFailed(stage="text_model", code="overloaded", message="busy"), "overloaded"),
        (RuntimeError("a bug"), "model_error"),
    ],
)
def test_a_stage_that_fails_ends_its_response_only(event, code):
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await client.write("Hello.")
            await client.send("response.create")
            await until(lambda: here.agent.replies)
            here.agent.replies[0].say("Half of", 0.2)
            here.agent.replies[0].put(event)
            done = await client.done()
            assert done["status"] == "failed"
            assert done["status_details"]["error"]["code"] == code
            here.agent.answer = "Whole."
            await client.send("response.create")
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_an_agent_that_cannot_start_fails_the_response():
    async def scenario():
        agent = ScriptedAgent(fault=ValueError("no"))
        async with talk(agent) as here, here.client() as client:
            await client.turn()
            assert (await client.done())["status"] == "failed"
            agent.fault = None
            await client.turn()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_a_transcript_that_fails_is_told_and_not_answered():
    async def scenario():
        async with talk(ScriptedAgent(words=None)) as here, here.client() as client:
            await client.turn()
            await until(lambda: here.agent.transcriptions)
            here.agent.transcriptions[0].put(
                StageFailed(stage="transcriber", code="model_error", message="no")
            )
            failed = await client.until_event(TRANSCRIPTION + "failed")
            assert failed["error"]["code"] == "model_error"
            here.agent.words = "again"
            await client.turn()
            await client.done()
            assert texts(here.agent.replies[0].request)[-1] == "again"

    run(scenario)


def test_an_answer_cut_by_a_limit_is_incomplete():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await client.send("response.create", response={"options": {"max_seconds": 0.5}})
            await until(lambda: here.agent.replies)
            here.agent.replies[0].say("one two three four", 2.0)
            done = await client.done()
            assert done["status"] == "incomplete"
            assert done["usage"]["audio_ms"] == 500
            assert here.agent.replies[0].is_cancelled
            await client.send("response.create")
            await until(lambda: len(here.agent.replies) == 2)
            here.agent.replies[1].put(ReplyDone(reason="length"))
            details = (await client.done())["status_details"]
            assert details["reason"] == "max_output_tokens"

    run(scenario)


# Tools.


def test_a_function_call_and_its_result():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await client.write("What time is it?")
            await client.send("response.create")
            await until(lambda: here.agent.replies)
            call = FunctionCall(call_id="call_1", name="clock", arguments='{"zone": "UTC"}')
            here.agent.replies[0].put(call, ReplyDone())
            client.log.clear()
            done = await client.done()
            assert client.types == [
                "response.created",
                *["response.output_item.added", "conversation.item.added"],
                *[
                    "response.function_call_arguments.delta",
                    "response.function_call_arguments.done",
                ],
                *["response.output_item.done", "conversation.item.done", "response.done"],
            ]
            assert done["output"][0]["arguments"] == '{"zone": "UTC"}'
            result = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}
            await client.send("conversation.item.create", item=result)
            await client.send("response.create")
            await until(lambda: len(here.agent.replies) == 2)
            here.agent.replies[1].end()
            await client.done()
            _, called, given = here.agent.replies[1].request.items
            assert isinstance(called, PastCall)
            assert isinstance(given, CallResult)
            assert (called.name, given.output) == ("clock", "noon")

    run(scenario)


# Its end.


def test_a_client_that_vanishes_stops_its_answer():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here:
            async with here.client() as client:
                reply = await speaking(here, client)
                client.socket.transport.abort()
            await until(lambda: reply.is_cancelled)
            await until(lambda: not here.sample("parley_sessions"))

    run(scenario)


def test_a_slow_reader_pauses_the_agent_and_loses_nothing():
    limits = replace(FAST_CONFIG.send, high_s=0.2, low_s=0.1)

    async def scenario():
        agent = ScriptedAgent(answer=None)
        config = replace(FAST_CONFIG, send=limits)
        pcm = {"output": {"format": {"type": "audio/pcm", "rate": 48000}}}
        async with (
            talk(agent, config=config) as here,
            here.client(max_queue=1, audio=pcm) as client,
        ):
            await client.send("response.create")
            await until(lambda: agent.replies)
            agent.replies[0].say("a long story " * 10, 20.0)
            agent.replies[0].end()
            await until(lambda: agent.replies[0].pauses)
            assert agent.replies[0].pauses == [True]
            done = await client.done()
            assert done["usage"]["audio_ms"] == 20_000
            assert agent.replies[0].pauses[-1] is False
            times = [one.media_time_ms for one in client.log if isinstance(one, AudioFrame)]
            assert times == [20 * n for n in range(len(times))]

    run(scenario)
