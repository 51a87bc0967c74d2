"""The lines about sockets and frames that apply to a lane that takes text."""

import asyncio
import socket
import struct
from dataclasses import replace

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.access.config import AccessConfig
from realtime.access.keys import KeyRing
from tests.cases import wire_cases
from tests.realtime.harness import FAST_CONFIG, gateway, run, until
from tests.realtime.talk_harness import talk

CASES = wire_cases()
HELLO = "Hello there, my good friend."
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("case", "message", "code"),
    [
        ("not JSON", CASES["not JSON"]["send"], "invalid_event"),
        ("JSON array", CASES["JSON array"]["send"], "invalid_event"),
        ("no type", CASES["no type"]["send"], "invalid_event"),
        ("unknown type", CASES["unknown type"]["send"], "invalid_event"),
        ("deep nesting", DEEP, "invalid_event"),
        ("binary frame, 3 bytes", b"\x01\x01\x00", "invalid_frame"),
        ("binary frame, bad Opus", b"\x01\x01\0\0\0\0\0\0garbage", "unexpected_audio"),
        ("binary frame, unknown kind", b"\xc8\x01\0\0\0\0\0\0x", "invalid_frame"),
        ("empty binary frame", b"", "invalid_frame"),
    ],
)
def test_an_error_and_an_open_socket(case, message, code):
    assert case in CASES or case == "empty binary frame"

    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.socket.send(message)
            assert (await client.error())["code"] == code
            assert (await client.say("Still here.")).status == "completed"
            assert here.sample("parley_errors_total", code=code) == 1

    run(scenario)


def test_a_second_create_while_text_is_open():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("response.create")
            await client.send("response.create", event_id="again")
            await client.event("response.created")
            error = await client.error()
            assert error["code"] == "conversation_already_has_active_response"
            assert error["event_id"] == "again"
            assert (await client.say(HELLO)).status == "completed"

    run(scenario)


@pytest.mark.parametrize(
    ("case", "headers"),
    [
        ("wrong key", {"Authorization": "Bearer not-a-key-of-this-server"}),
        ("foreign origin", {"Origin": "https://evil.example"}),
    ],
)
def test_who_may_not_come_in_is_told_before_the_upgrade(case, headers):
    status = int(CASES[case]["expect"].split()[0])
    access = AccessConfig(keys=KeyRing(["a-key-of-this-server"]))

    async def scenario():
        async with gateway(replace(FAST_CONFIG, access=access)) as here:
            with pytest.raises(InvalidStatus) as caught:
                async with here.client(additional_headers=headers):
                    pass
            assert caught.value.response.status_code == status
            assert not here.sample("parley_sessions_opened_total")
            right = {"Authorization": "Bearer a-key-of-this-server"}
            async with here.client(additional_headers=right) as client:
                assert (await client.say(HELLO)).status == "completed"

    run(scenario)


async def closed(client):
    """How the server closed the socket, whatever came before."""

    async def read_on():
        while True:
            await client.socket.recv()

    with pytest.raises(ConnectionClosed) as caught:
        await read_on()
    assert caught.value.rcvd is not None, "the connection broke without a close"
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_a_message_over_the_limit_closes_1009_and_others_go_on():
    async def scenario():
        async with gateway() as here, here.client() as client, here.client() as other:
            await client.socket.send("x" * (client.session["limits"]["max_message_bytes"] + 1))
            code, _ = await closed(client)
            assert code == 1009
            assert (await other.say(HELLO)).status == "completed"

    run(scenario)


def test_a_flood_is_warned_of_then_closed_1008_and_others_go_on():
    config = replace(FAST_CONFIG, max_messages_per_s=1.0, message_burst=20)

    async def scenario():
        async with gateway(config) as here, here.client() as client, here.client() as other:
            for _ in range(30):
                await client.send("input_text.flush")
            assert (await client.error())["code"] == "rate_limited"
            for _ in range(30):
                await client.send("input_text.flush")
            code, reason = await closed(client)
            assert (code, reason) == (1008, "more than 1 messages per second")
            assert (await other.say(HELLO)).status == "completed"

    run(scenario)


def test_a_client_that_says_nothing_is_closed_with_a_reason():
    config = replace(FAST_CONFIG, first_message_timeout_s=0.05)

    async def scenario():
        async with gateway(config) as here, here.client() as client:
            assert await closed(client) == (1008, "no message within 0.05 s")
            await until(lambda: here.sample("parley_closes_total", code="1008") == 1)

    run(scenario)


@pytest.mark.parametrize("texts", [(), ("unfinished",)])
def test_an_idle_client_is_closed_with_a_reason(texts):
    config = replace(FAST_CONFIG, idle_timeout_s=0.3)

    async def scenario():
        async with gateway(config) as here, here.client() as client:
            assert (await client.say("Hello.")).status == "completed"
            for text in texts:
                await client.send("input_text.append", text=text)
            assert await closed(client) == (1000, "idle for 0.3 s")

    run(scenario)


def test_a_session_has_an_end_that_is_told_while_it_speaks():
    config = replace(FAST_CONFIG, max_session_s=0.2)

    async def scenario():
        async with gateway(config, by_hand=True) as here, here.client() as client:
            await client.text(HELLO)
            await client.event("response.created")
            assert (await client.error())["code"] == "session_expired"
            assert await closed(client) == (1001, "session expired after 0.2 s")

    run(scenario)


def test_a_conversation_has_an_end_that_is_told():
    async def scenario():
        async with talk() as here, here.client() as talker:
            here.clock.now_s += FAST_CONFIG.max_session_s + 1
            assert (await talker.until_error())["code"] == "session_expired"
            assert (await closed(talker))[0] == 1001

    run(scenario)


def test_a_client_that_listens_is_not_idle():
    config = replace(FAST_CONFIG, idle_timeout_s=0.3)

    async def scenario():
        async with gateway(config, by_hand=True) as here, here.client() as client:
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            await asyncio.sleep(0.6)
            here.engine.finish()
            assert (await client.spoken()).status == "completed"

    run(scenario)


@pytest.mark.parametrize("when", ["planned", "speaking", "queued"])
def test_a_tcp_reset_frees_the_engine(when):
    async def scenario():
        async with gateway(by_hand=True) as here:
            async with here.client() as client:
                await client.text(HELLO)
                await until(lambda: here.engine.streams)
                if when == "speaking":
                    here.engine.step()
                    await until(lambda: here.sample("parley_packets_sent_total", codec="opus"))
                if when == "queued":
                    await client.text("The next one.")
                raw = client.socket.transport.get_extra_info("socket")
                # Linger of zero: the close is a reset.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.socket.transport.abort()
            await until(lambda: here.engine.streams[0].is_aborted)
            here.engine.step()
            assert here.engine.n_open == 0
            await until(lambda: not here.sample("parley_sessions"))
            assert len(here.engine.streams) == 1

    run(scenario)


def test_a_clean_leave_frees_the_engine_too():
    async def scenario():
        async with gateway(by_hand=True) as here:
            async with here.client() as client:
                await client.text(HELLO)
                await until(lambda: here.engine.streams)
            await until(lambda: here.engine.streams[0].is_aborted)

    run(scenario)
