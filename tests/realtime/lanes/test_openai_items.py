"""The lane of OpenAI Realtime clients: items, what was heard of them, answers aside."""

import base64

import numpy as np
import pytest

from realtime.agent.base import Message, StageFailed
from realtime.audio.coder import pcm16_bytes
from tests.realtime.harness import run, until
from tests.realtime.lanes.ga_client import ga_client
from tests.realtime.lanes.test_openai_turns import BEGUN, replying
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

WORDS = "one two three four five six seven eight nine ten"


def texts(request):
    return [item.text for item in request.items if isinstance(item, Message)]


async def spoken(here, client, text=WORDS, seconds=2.0):
    """A whole answer; returns the item."""
    n_before = len(here.agent.replies)
    await client.send("response.create")
    reply = await replying(here, client, text, seconds, n_before)
    reply.end()
    return (await client.done())["output"][0]


async def truncated(client, item, audio_end_ms):
    await client.send(
        "conversation.item.truncate",
        item_id=item["id"],
        content_index=0,
        audio_end_ms=audio_end_ms,
    )
    return await client.until("conversation.item.truncated")


async def retrieved(client, item):
    await client.send("conversation.item.retrieve", item_id=item["id"])
    return (await client.until("conversation.item.retrieved"))["item"]


def test_items_keep_the_clients_ids_and_their_places():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            second = await client.write("second", id="my_item")
            assert second["id"] == "my_item"
            await client.write("first", "root", id="head", role="system")
            await client.write("third", "my_item")
            added = client.events("conversation.item.added")
            assert [one["previous_item_id"] for one in added] == [None, None, "my_item"]
            await client.answer()
            assert texts(here.agent.replies[0].request) == ["first", "second", "third"]

    run(scenario)


def test_200_items_are_replayed_and_deleted_again():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            for number in range(200):
                await client.write(f"item {number}", id=f"i{number}")
            for number in range(199):
                await client.send("conversation.item.delete", item_id=f"i{number}")
                deleted = await client.until("conversation.item.deleted")
                assert deleted["item_id"] == f"i{number}"
            await client.answer()
            assert texts(here.agent.replies[0].request) == ["item 199"]

    run(scenario)


def test_an_assistants_message_of_the_client_is_shown_in_its_words():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            content = [{"type": "output_audio", "transcript": "as I said"}]
            item = {"type": "message", "role": "assistant", "content": content}
            await client.send("conversation.item.create", item=item)
            shown = (await client.until("conversation.item.done"))["item"]
            assert shown["content"] == content
            assert await retrieved(client, shown) == shown

    run(scenario)


def test_audio_inside_an_item_is_heard():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            payload = pcm16_bytes(np.full(12_000, LOUD, np.float32))
            part = {"type": "input_audio", "audio": base64.b64encode(payload).decode()}
            item = {"type": "message", "role": "user", "content": [part]}
            await client.send("conversation.item.create", item=item)
            await client.answer()
            assert len(here.agent.transcriptions[0].pcm) == 8000
            assert texts(here.agent.replies[0].request) == ["hello"]

    run(scenario)


def test_only_so_many_items_may_wait_to_be_heard():
    async def scenario():
        agent = ScriptedAgent(words=None)
        async with talk(agent) as here, ga_client(here) as client:
            payload = pcm16_bytes(np.full(2400, LOUD, np.float32))
            part = {"type": "input_audio", "audio": base64.b64encode(payload).decode()}
            item = {"type": "message", "role": "user", "content": [part]}
            for _ in range(8):
                await client.send("conversation.item.create", item=item)
                await client.until("conversation.item.done")
            error = await client.refused("conversation.item.create", item=item)
            assert error["code"] == "too_many_events"
            assert len(client.events("conversation.item.added")) == 8
            await until(lambda: len(agent.transcriptions) == 8)
            for transcription in agent.transcriptions:
                transcription.say("heard")
            await client.settle()
            await client.send("conversation.item.create", item=item)
            await client.until("conversation.item.done")

    run(scenario)


def test_the_id_of_a_turn_that_is_being_heard_is_taken():
    """The turn could not be put into the conversation then, and the session ended with 1011."""

    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.speak((LOUD, 640))
            turn_id = (await client.until("input_audio_buffer.speech_started"))["item_id"]
            content = [{"type": "input_text", "text": "me first"}]
            item = {"type": "message", "id": turn_id, "role": "user", "content": content}
            error = await client.refused("conversation.item.create", item=item)
            assert (error["code"], error["param"]) == ("item_id_taken", "item.id")
            await client.speak((0.0, 640))
            assert (await client.until("input_audio_buffer.committed"))["item_id"] == turn_id
            assert (await client.done())["status"] == "completed"

    run(scenario)


# What was heard.


def test_a_truncated_answer_counts_as_far_as_it_was_heard():
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, ga_client(here) as client:
            item = await spoken(here, client)
            assert (await truncated(client, item, 1000))["audio_end_ms"] == 1000
            shown = await retrieved(client, item)
            assert shown["content"][0]["transcript"] == "one two three four five"
            assert shown["status"] == "incomplete"
            # Again, and further than it is long by now: nothing comes back.
            for audio_end_ms in (1000, 5000):
                assert (await truncated(client, item, audio_end_ms))["audio_end_ms"] == 1000
            assert await retrieved(client, item) == shown
            await client.send("response.create")
            await until(lambda: len(here.agent.replies) == 2)
            assert texts(here.agent.replies[1].request) == ["one two three four five"]

    run(scenario)


@pytest.mark.parametrize(("audio_end_ms", "kept_ms", "words"), [(0, 0, ""), (99_999, 2000, WORDS)])
def test_truncate_takes_zero_and_what_is_too_much(audio_end_ms, kept_ms, words):
    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, ga_client(here) as client:
            item = await spoken(here, client)
            assert (await truncated(client, item, audio_end_ms))["audio_end_ms"] == kept_ms
            shown = await retrieved(client, item)
            assert shown["content"][0]["transcript"] == words

    run(scenario)


def test_truncate_before_any_sound():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            await until(lambda: agent.replies)
            agent.replies[0].say("not heard yet", 0)
            item = (await client.until("response.output_item.added"))["item"]
            assert (await truncated(client, item, 0))["audio_end_ms"] == 0
            assert agent.replies[0].is_cancelled
            done = client.events("response.done")[0]["response"]
            assert done["status"] == "cancelled"

    run(scenario)


def test_the_client_says_what_was_heard_of_an_interrupted_answer():
    """It knows better than any estimate, in both directions; and it is told nothing unasked."""

    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client, WORDS, 2.0)
            await until(lambda: reply.playout.sent_s >= 2.0)
            here.clock.now_s += 0.6
            await client.speak((LOUD, 400))
            item = (await client.done())["output"][0]
            assert item["content"][0]["transcript"] == WORDS, "so much was sent"
            assert not client.events("conversation.item.truncated")
            await truncated(client, item, 1000)
            shown = await retrieved(client, item)
            assert shown["content"][0]["transcript"] == "one two three four five"

    run(scenario)


def test_what_seems_to_have_been_heard_counts_until_the_client_says_so():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create")
            reply = await replying(here, client, WORDS, 2.0)
            await until(lambda: reply.playout.sent_s >= 2.0)
            here.clock.now_s += 0.8
            await client.turn()
            await until(lambda: len(agent.replies) == 2)
            heard = texts(agent.replies[1].request)[0]
            assert WORDS.startswith(heard)
            assert 3 <= len(heard.split()) <= 6

    run(scenario)


# Answers aside.


def test_an_answer_aside_leaves_the_conversation_and_its_answer_alone():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.write("Hello.")
            await client.send("response.create")
            await replying(here, client)
            client.log.clear()
            question = {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Is this rude?"}],
            }
            await client.send(
                "response.create",
                response={
                    "conversation": "none",
                    "input": [question],
                    "instructions": "Say yes or no.",
                    "output_modalities": ["text"],
                    "metadata": {"topic": "manners"},
                    "tools": [],
                },
            )
            await until(lambda: len(agent.replies) == 2)
            aside = agent.replies[1]
            assert texts(aside.request) == ["Is this rude?"]
            assert aside.request.instructions == "Say yes or no."
            aside.say("no", 0)
            aside.end()
            response = await client.done()
            assert response["conversation_id"] is None
            assert response["metadata"] == {"topic": "manners"}
            assert response["output"][0]["content"] == [{"type": "output_text", "text": "no"}]
            assert client.types("response.output_audio.delta") == [
                *BEGUN,
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.done",
            ]
            agent.replies[0].end()
            other = await client.done()
            assert (other["status"], other["metadata"]) == ("completed", None)
            await client.send("response.create")
            await until(lambda: len(agent.replies) == 3)
            assert texts(agent.replies[2].request) == ["Hello.", "It is a long story"]

    run(scenario)


def test_an_answer_aside_is_cancelled_by_its_id_and_survives_the_user():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            await client.send("response.create", response={"conversation": "none", "input": []})
            created = await client.until("response.created")
            await until(lambda: agent.replies)
            await client.speak((LOUD, 400))
            await client.until("input_audio_buffer.speech_started")
            assert not agent.replies[0].is_cancelled
            await client.refused("response.cancel")
            await client.send("response.cancel", response_id=created["response"]["id"])
            assert (await client.done())["status"] == "cancelled"
            assert agent.replies[0].is_cancelled

    run(scenario)


def test_only_so_many_answers_aside():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, ga_client(here) as client:
            for _ in range(4):
                await client.send("response.create", response={"conversation": "none"})
                await client.until("response.created")
            error = await client.refused("response.create", response={"conversation": "none"})
            assert error["code"] == "too_many_responses"
            await until(lambda: len(agent.replies) == 4)
            for reply in agent.replies:
                reply.end()
                await client.done()
            await client.send("response.create", response={"conversation": "none"})
            await client.until("response.created")

    run(scenario)


def test_given_items_and_references_are_answered_instead_of_the_conversation():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.write("left out", id="a")
            await client.write("referred to", id="b")
            payload = pcm16_bytes(np.full(12_000, LOUD, np.float32))
            heard = {"type": "input_audio", "audio": base64.b64encode(payload).decode()}
            given = [
                {"type": "item_reference", "id": "b"},
                {"type": "message", "role": "user", "content": [heard]},
            ]
            response = await client.answer(input=given)
            assert texts(here.agent.replies[0].request) == ["referred to", "hello"]
            assert response["conversation_id"] is not None
            error = await client.refused(
                "response.create", response={"input": [{"type": "item_reference", "id": "x"}]}
            )
            assert error["param"] == "response.input.0.id"
            bad = {"type": "message", "role": "user", "content": [{"type": "input_text"}]}
            error = await client.refused("response.create", response={"input": [given[0], bad]})
            assert error["param"] == "response.input.1.content.0.text"

    run(scenario)


def test_given_items_may_share_an_id():
    async def scenario():
        async with talk() as here, ga_client(here) as client:
            await client.write("referred to", id="a")
            payload = pcm16_bytes(np.full(12_000, LOUD, np.float32))
            heard = {"type": "input_audio", "audio": base64.b64encode(payload).decode()}
            written = {"type": "input_text", "text": "written"}
            given = [
                {"type": "item_reference", "id": "a"},
                {"type": "message", "id": "a", "role": "user", "content": [heard]},
                {"type": "message", "id": "a", "role": "user", "content": [written]},
            ]
            assert (await client.answer(input=given))["status"] == "completed"
            assert texts(here.agent.replies[0].request) == ["referred to", "hello", "written"]
            await client.answer()
            assert texts(here.agent.replies[1].request)[0] == "referred to"

    run(scenario)


def test_given_audio_that_cannot_be_made_out_fails_the_response():
    async def scenario():
        agent = ScriptedAgent(words=None)
        async with talk(agent) as here, ga_client(here) as client:
            payload = pcm16_bytes(np.full(12_000, LOUD, np.float32))
            heard = {"type": "input_audio", "audio": base64.b64encode(payload).decode()}
            given = [{"type": "message", "role": "user", "content": [heard]}]
            await client.send("response.create", response={"input": given})
            await until(lambda: agent.transcriptions)
            fault = StageFailed(stage="transcriber", code="model_error", message="noise")
            agent.transcriptions[0].put(fault)
            response = await client.done()
            assert response["status_details"]["error"]["code"] == "model_error"
            assert client.types() == [*BEGUN, "response.done"]

    run(scenario)


def test_a_session_that_ends_takes_its_answers_aside_along():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here:
            async with ga_client(here) as client:
                await client.send("response.create", response={"conversation": "none"})
                await until(lambda: agent.replies)
            await until(lambda: agent.replies[0].is_cancelled)

    run(scenario)
