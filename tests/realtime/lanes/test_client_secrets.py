"""Short-lived keys over HTTP, and the sessions that they open."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import openai
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from realtime.access.config import AccessConfig
from realtime.access.keys import KeyRing
from realtime.protocol import REALTIME_PATH, SPEECH_PATH
from tests.realtime.harness import FAST_CONFIG, run
from tests.realtime.lanes.http_harness import http_client
from tests.realtime.talk_harness import ScriptedAgent, talk

KEY = "k3y-" + "a" * 28
BEARER = {"Authorization": f"Bearer {KEY}"}
PATH = f"{REALTIME_PATH}/client_secrets"


def with_access(**settings):
    return replace(FAST_CONFIG, access=AccessConfig(keys=KeyRing([KEY]), **settings))


async def asked(here, headers=BEARER, **body):
    async with http_client(here) as client:
        return await client.post(PATH, json=body, headers=headers)


async def secret_of(here, **body) -> str:
    answer = await asked(here, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


@asynccontextmanager
async def opened(here, value, *, path=REALTIME_PATH, subprotocol="realtime"):
    """A socket, as a browser opens it; and the session that it begins with."""
    offers = [subprotocol, f"openai-insecure-api-key.{value}"]
    url = f"ws://127.0.0.1:{here.port}{path}"
    async with connect(url, subprotocols=offers, compression=None, proxy=None) as socket:
        assert socket.subprotocol == subprotocol
        created = json.loads(await socket.recv())
        assert created["type"] == "session.created"
        yield socket, created["session"]


def test_a_secret_is_given_with_its_end_and_the_session_it_will_open():
    session = {"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"speed": 1.0}}}

    async def scenario():
        async with talk(config=with_access()) as here:
            now_s = datetime.now(UTC).timestamp()
            lifetime = {"anchor": "created_at", "seconds": 7200}
            answer = await asked(here, expires_after=lifetime, session=session)
            assert answer.headers["cache-control"] == "no-store"
            told = answer.json()
            assert told["value"].startswith("ek_")
            assert told["expires_at"] == pytest.approx(now_s + 7200, abs=30)
            shown = told["session"]
            assert (shown["type"], shown["object"]) == ("realtime", "realtime.session")
            assert shown["instructions"] == "Be brief."
            assert shown["model"] == "scripted"
            assert shown["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"session":null,"expires_after":null}'])
def test_nothing_need_be_said(body):
    async def scenario():
        async with talk(config=with_access()) as here, http_client(here) as client:
            headers = {**BEARER, "Content-Type": "application/json"}
            answer = await client.post(PATH, content=body, headers=headers)
            now_s = datetime.now(UTC).timestamp()
            assert answer.json()["expires_at"] == pytest.approx(now_s + 600, abs=30)

    run(scenario)


def test_the_session_begins_with_the_settings_of_its_secret():
    async def scenario():
        async with talk(config=with_access()) as here:
            turn_detection = {"type": "server_vad", "silence_duration_ms": 900}
            session = {
                "type": "realtime",
                "model": "scripted",
                "instructions": "Speak like a sailor.",
                "output_modalities": ["text"],
                "audio": {"input": {"turn_detection": turn_detection}, "output": {"voice": "bob"}},
            }
            value = await secret_of(here, session=session)
            async with opened(here, value) as (socket, begun):
                assert begun["instructions"] == "Speak like a sailor."
                assert begun["output_modalities"] == ["text"]
                assert begun["audio"]["output"]["voice"] == "bob"
                assert begun["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 900
                # It is where the session begins, and no bound on where it may go.
                change = {"type": "realtime", "instructions": "Speak plainly."}
                await socket.send(json.dumps({"type": "session.update", "session": change}))
                updated = json.loads(await socket.recv())["session"]
                assert updated["instructions"] == "Speak plainly."
                assert updated["audio"]["output"]["voice"] == "bob"
            async with opened(here, value, subprotocol="parley.v1") as (_, begun):
                assert begun["instructions"] == "Speak like a sailor."
                assert begun["audio"]["output"]["voice"] == "bob"
            async with opened(here, value, path=SPEECH_PATH, subprotocol="parley.v1"):
                pass

    run(scenario)


def test_settings_reach_the_agent():
    agent = ScriptedAgent()

    async def scenario():
        async with talk(agent, config=with_access()) as here:
            value = await secret_of(here, session={"instructions": "Speak like a sailor."})
            async with opened(here, value) as (socket, _):
                item = {"type": "message", "role": "user"}
                item["content"] = [{"type": "input_text", "text": "Hello."}]
                created = {"type": "conversation.item.create", "item": item}
                await socket.send(json.dumps(created))
                await socket.send(json.dumps({"type": "response.create"}))
                while json.loads(await socket.recv())["type"] != "response.done":
                    pass
            assert agent.replies[0].request.instructions == "Speak like a sailor."

    run(scenario)


def test_an_expired_secret_opens_nothing_and_what_it_opened_goes_on():
    async def scenario():
        async with talk(config=with_access()) as here:
            value = await secret_of(here, expires_after={"seconds": 10})
            async with opened(here, value) as (socket, _):
                here.clock.now_s += 10
                with pytest.raises(InvalidStatus, match="401") as caught:
                    async with opened(here, value):
                        pass
                error = json.loads(caught.value.response.body)["error"]
                assert "expired" in error["message"]
                assert value not in error["message"]
                await socket.send("[]")
                assert json.loads(await socket.recv())["type"] == "error"

    run(scenario)


def test_a_secret_opens_sockets_only_and_makes_no_more_of_its_kind():
    async def scenario():
        async with talk(config=with_access()) as here:
            value = await secret_of(here)
            headers = {"Authorization": f"Bearer {value}"}
            assert (await asked(here, headers=headers)).status_code == 401
            async with http_client(here) as client:
                answer = await client.get("/v1/models", headers=headers)
                assert answer.status_code == 401
            assert (await asked(here, headers={})).status_code == 401

    run(scenario)


def test_a_secret_shares_the_bounds_of_the_key_that_asked_for_it():
    async def scenario():
        async with talk(config=with_access(max_open_per_key=1)) as here:
            value = await secret_of(here)
            async with opened(here, value):
                assert (await asked(here)).status_code == 429

    run(scenario)


def test_their_number_is_bounded():
    async def scenario():
        async with talk(config=with_access(max_client_secrets=2)) as here:
            for _ in range(2):
                await secret_of(here, expires_after={"seconds": 30})
            answer = await asked(here)
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "too_many_client_secrets"
            assert answer.headers["retry-after"] == "30"
            here.clock.now_s += 30
            await secret_of(here)

    run(scenario)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"audio": {"output": {"voice": 17}}}}, "session.audio.output.voice"),
        ({"session": {"audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice"),
        ({"session": {"humour": "dry"}}, "session.humour"),
        ({"lifetime": 5}, "lifetime"),
    ],
)
def test_bad_fields_are_refused_by_name_when_the_secret_is_asked_for(body, param):
    async def scenario():
        async with talk(config=with_access()) as here:
            answer = await asked(here, **body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith(param)

    run(scenario)


def test_a_body_that_is_too_large_is_not_kept():
    async def scenario():
        async with talk(config=with_access()) as here:
            assert (await asked(here, session={"instructions": "x" * 70_000})).status_code == 413

    run(scenario)


def test_without_keys_secrets_work_the_same():
    """A page that is written for keys needs no other way on a developer's machine."""

    async def scenario():
        async with talk() as here:
            answer = await asked(here, headers={}, session={"instructions": "Be brief."})
            async with opened(here, answer.json()["value"]) as (_, begun):
                assert begun["instructions"] == "Be brief."
            async with opened(here, "ek_made-up") as (_, begun):
                assert begun["instructions"] == ""

    run(scenario)


def test_the_official_client_asks_and_opens():
    async def scenario():
        async with talk(config=with_access()) as here:
            base_url = f"http://127.0.0.1:{here.port}/v1"
            async with openai.AsyncOpenAI(api_key=KEY, base_url=base_url) as client:
                made = await client.realtime.client_secrets.create(
                    expires_after={"anchor": "created_at", "seconds": 60},
                    session={"type": "realtime", "instructions": "Be brief."},
                )
            assert made.session.instructions == "Be brief."
            async with (
                openai.AsyncOpenAI(api_key=made.value, base_url=base_url) as browser,
                browser.realtime.connect(model="scripted") as connection,
            ):
                begun = await connection.recv()
                assert begun.type == "session.created"
                assert begun.session.instructions == "Be brief."

    run(scenario)
