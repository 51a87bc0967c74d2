"""Every text that is hard, where texts are written: conversations of our clients, and HTTP.

`tests.realtime.test_texts` has the speech lane, `test_openai_bad_input` that of OpenAI clients.
"""

import json

import pytest

from tests.cases import text_cases
from tests.realtime.harness import gateway, run
from tests.realtime.lanes.http_harness import SPEECH, http_client
from tests.realtime.talk_harness import talk

CASES = text_cases()
REFUSED = {
    "nul and lone surrogate": "invalid_text",
    "100k characters": "text_too_long",
    "empty": "empty_text",
    "spaces": "empty_text",
    "punctuation only": "empty_text",
    "emoji only": "empty_text",
    "other script": "unsupported_script",
    "right to left": "unsupported_script",
}
"""By HTTP; a conversation takes what it can keep."""
KEPT_OUT = ("nul and lone surrogate", "100k characters")


def text_of(case):
    text = CASES[case]["input"]
    return text if isinstance(text, str) else "".join(text)


@pytest.mark.parametrize("case", list(CASES))
def test_a_conversation_keeps_it_or_refuses_it_in_words(case):
    content = [{"type": "input_text", "text": text_of(case)}]
    item = {"type": "message", "role": "user", "content": content}

    async def scenario():
        async with talk() as here, here.client() as client:
            await client.send("conversation.item.create", item=item, event_id="mine")
            if case in KEPT_OUT:
                error = await client.until_error()
                assert (error["code"], error["event_id"]) == (REFUSED[case], "mine")
            else:
                done = await client.until_event("conversation.item.done")
                assert done["item"]["content"][0]["text"] == text_of(case)
            await client.write("Still there?")
            await client.send("response.create")
            assert (await client.done())["status"] == "completed"

    run(scenario)


@pytest.mark.parametrize("case", ["empty", "spaces"])
def test_a_user_who_writes_nothing_is_answered_by_nothing(case):
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.write(text_of(case))
            await client.send("response.create")
            done = await client.done()
            assert (done["status"], done["output"]) == ("completed", [])
            assert not here.agent.replies
            assert "audio" not in client.types

    run(scenario)


def test_200_items_are_replayed_and_deleted_again():
    async def scenario():
        async with talk() as here, here.client() as client:
            for number in range(200):
                await client.write(f"item {number}", id=f"i{number}")
            for number in range(199):
                await client.send("conversation.item.delete", item_id=f"i{number}")
                deleted = await client.until_event("conversation.item.deleted")
                assert deleted["item_id"] == f"i{number}"
            await client.send("response.create")
            await client.done()
            assert [one.text for one in here.agent.replies[0].request.items] == ["item 199"]

    run(scenario)


@pytest.mark.parametrize("case", list(CASES))
def test_http_speaks_it_or_refuses_it_by_name(case):
    # As JSON escapes, which HTTP clients do not write by themselves.
    body = json.dumps({"input": text_of(case), "response_format": "pcm"})

    async def scenario():
        async with gateway() as here, http_client(here) as client:
            headers = {"content-type": "application/json"}
            answer = await client.post(SPEECH, content=body, headers=headers)
            if case in REFUSED:
                error = answer.json()["error"]
                assert answer.status_code == 400
                assert (error["code"], error["param"]) == (REFUSED[case], "input")
            else:
                assert answer.status_code == 200
                assert answer.content
            assert (await client.post(SPEECH, json={"input": "Still here."})).status_code == 200

    run(scenario)
