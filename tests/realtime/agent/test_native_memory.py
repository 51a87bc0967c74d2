"""What a model that keeps turns may go on from: no rows of what is not in the conversation."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np

from realtime.agent.base import ReplyDone
from realtime.audio.coder import pcm16_bytes
from tests.engine.harness import load_toy
from tests.models.audio.test_reference import voice
from tests.realtime.agent.test_native import LONG, Watched, ask, keeping_turns, native, roles
from tests.realtime.harness import run
from tests.realtime.talk_harness import LOUD, PUSH_TO_TALK, ScriptedAgent, talk

SHORT = {"frames": 5, "reply_letters": 3}
TOOL = {"type": "function", "name": "weather"}


async def answered(client, **response) -> dict:
    await client.send("response.create", response=response)
    return await client.done()


async def remembered(change) -> object | None:
    """What the second answer is given back, where `change` comes while the first is made."""
    agent = ScriptedAgent(answer=None)
    async with talk(agent) as here, here.client(audio=PUSH_TO_TALK) as client:
        await client.write("The code is 4711.", id="secret")
        await client.write("Hello?", id="hello")
        await client.send("response.create")
        await client.until_event("response.created")
        while not agent.replies:
            await client.settle()
        await change(client, agent.replies[0])
        agent.replies[0].say(" there.", 0.2)
        agent.replies[0].put(ReplyDone(memory="rows"))
        await client.done()
        await client.write("And now?")
        await client.send("response.create")
        while len(agent.replies) < 2:
            await client.settle()
        (said,) = [one for one in agent.replies[1].request.items if one.role == "assistant"]
        agent.replies[1].say("Yes.", 0.1)
        agent.replies[1].end()
        await client.done()
        return said.memory


def test_what_is_deleted_while_an_answer_is_made_is_not_in_its_memory():
    async def before_its_first_word(client, reply):
        await client.send("conversation.item.delete", item_id="secret")
        await client.until_event("conversation.item.deleted")

    async def behind_its_first_word(client, reply):
        reply.say("Hello", 0.2)
        await client.until_event("response.output_item.added")
        await before_its_first_word(client, reply)

    async def put_between(client, reply):
        await client.write("You are kind.", id="first")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A"}]}
        await client.send("conversation.item.create", item=item, previous_item_id="root")
        await client.until_event("conversation.item.done")

    async def nothing(client, reply):
        pass

    assert run(lambda: remembered(nothing)) == "rows"
    for change in (before_its_first_word, behind_its_first_word, put_between):
        assert run(lambda change=change: remembered(change)) is None


def test_given_items_are_answered_without_the_rows_of_the_conversation():
    toy = keeping_turns()

    async def scenario():
        async with native(toy=toy) as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(options=SHORT)
            await ask(client)
            (said,) = (await client.done())["output"]
            given = [{"type": "item_reference", "id": said["id"]}, spoken(voice(0.5))]
            for place in ("none", "auto"):
                done = await answered(client, conversation=place, input=given)
                assert done["status"] == "completed"
            await ask(client)
            assert (await client.done())["status"] == "completed"

    run(scenario)
    first, aside, within, after = toy.asked
    assert aside.history is None
    assert within.history is None
    # What was given is in no conversation; it goes on from the first answer.
    assert len(after.history) == len(toy._toy.plan(first).ids) + sum(SHORT.values())


def spoken(pcm: np.ndarray, *texts: str) -> dict:
    """A message of the user that is said, and texts beside it."""
    audio = {"type": "input_audio", "audio": base64.b64encode(pcm16_bytes(pcm)).decode()}
    written = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "role": "user", "content": [*written, audio]}


def test_what_is_written_beside_what_is_said_is_asked_too():
    toy = Watched(keeping_turns()._toy)

    async def scenario():
        async with native(toy=toy) as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(options=SHORT)
            item = spoken(voice(0.5), "In French, please.")
            item["content"][1]["transcript"] = "What is it?"
            await client.send("conversation.item.create", item=item)
            await client.until_event("conversation.item.done")
            assert (await answered(client))["status"] == "completed"

    run(scenario)
    (asked,) = toy.asked
    assert (asked.text, roles(asked.messages)) == ("In French, please.", [])
    assert asked.audio is not None


def test_text_ends_at_the_tokens_that_were_asked_for():
    async def scenario():
        async with native() as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(options=LONG)
            for wanted in (["text"], ["audio"]):
                await client.hear((LOUD, 500))
                await client.send("input_audio_buffer.commit")
                done = await answered(client, max_output_tokens=4, output_modalities=wanted)
                assert done["status_details"]["reason"] == "max_output_tokens"
                assert done["usage"]["output_tokens"] == 4
                assert done["usage"]["input_tokens"] > 0
                kind = "output_text" if wanted == ["text"] else "output_audio_transcript"
                told = client.events(f"response.{kind}.delta")
                assert sum(len(one["delta"]) for one in told) == 4

    run(scenario)


def test_speech_that_was_cut_is_not_said_to_be_text_that_was():
    toy = load_toy("toy-audio-in")
    plan = toy.plan
    toy.plan = lambda request: replace(plan(request), max_frames=40)

    async def scenario():
        async with native(toy=toy) as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(options=LONG)
            await ask(client)
            done = await client.done()
            assert (done["status"], done["status_details"]["reason"]) == (
                "incomplete",
                "max_frames",
            )
            assert done["usage"]["output_tokens"] == 9

    run(scenario)


def test_tools_are_refused_without_advice_that_would_not_help():
    async def scenario():
        async with native() as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.send("session.update", session={"tools": [TOOL]})
            error = await client.until_error()
            assert (error["code"], error["param"]) == ("tools_not_supported", "session.tools")
            assert error["message"] == "toy-audio-in cannot call tools: it answers by itself"

    run(scenario)
