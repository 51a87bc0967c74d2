"""Clients that do not play by the rules of the socket: others do not notice, nothing is left."""

import asyncio
import contextlib
import json
import logging
import socket
from dataclasses import replace

import pytest

from realtime import sockets
from realtime.protocol import SPEECH_PATH
from tests.realtime.harness import FAST_CONFIG, gateway, run, until
from tests.realtime.test_flow import LONG, PCM, SLOW, connect_raw
from tests.realtime.test_http_lane import UPGRADE

FIRST_FRAGMENT = b"\x01\x80\0\0\0\0"
EMPTY_FRAMES = {
    "ping": b"\x89\x80\0\0\0\0",
    "pong": b"\x8a\x80\0\0\0\0",
    "fragment": b"\x00\x80\0\0\0\0",
}
NOT_JSON = b"\x81\x81\0\0\0\0x"


def connections(here):
    """Sockets that the server still holds."""
    return here.server._uvicorn.server_state.connections


async def upgraded(here):
    """A bare socket after its handshake."""
    raw = await connect_raw(here)
    loop = asyncio.get_running_loop()
    lines = [f"GET {SPEECH_PATH} HTTP/1.1", "Host: test"]
    lines += [f"{name}: {value}" for name, value in UPGRADE.items()]
    await loop.sock_sendall(raw, "\r\n".join([*lines, "", ""]).encode())
    head = b""
    while b"session.created" not in head:
        head += await loop.sock_recv(raw, 4096)
    return raw


def text_frame(text):
    data = text.encode()
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + b"\0\0\0\0" + data


async def ask_for_much(raw):
    """More audio than the buffers between us hold."""
    for event in (
        {"type": "session.update", "session": PCM},
        {"type": "input_text.append", "text": LONG},
        {"type": "input_text.end"},
    ):
        await asyncio.get_running_loop().sock_sendall(raw, text_frame(json.dumps(event)))


async def read_to_end(raw):
    """What comes until the server ends the connection, cleanly or not."""
    got = bytearray()
    try:
        while piece := await asyncio.get_running_loop().sock_recv(raw, 65_536):
            got += piece
    except ConnectionError:
        pass
    return bytes(got)


async def pour(raw, flood):
    """Send as much as is taken."""
    with contextlib.suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(raw, flood)


@pytest.mark.parametrize("kind", EMPTY_FRAMES)
def test_a_flood_of_frames_that_no_session_sees_is_ended(kind):
    """They count as no message: millions cost the loop seconds, and fragments memory."""

    async def scenario():
        async with gateway() as here, here.client() as other:
            raw = await upgraded(here)
            first = FIRST_FRAGMENT if kind == "fragment" else b""
            pouring = asyncio.create_task(pour(raw, first + EMPTY_FRAMES[kind] * 100_000))
            got = await read_to_end(raw)
            await pouring
            if kind != "ping":
                assert b"more than 500 frames per second" in got
            raw.close()
            assert (await other.say("Unharmed, all of it.")).status == "completed"

    run(scenario)


def test_a_few_pings_and_fragments_are_fine():
    async def scenario():
        async with gateway() as here:
            raw = await upgraded(here)
            whole = b'{"type":"nope","event_id":"in pieces"}'
            pieces = [b"\x00\x81\0\0\0\0" + whole[n : n + 1] for n in range(len(whole))]
            message = FIRST_FRAGMENT + EMPTY_FRAMES["ping"].join(pieces) + b"\x80\x80\0\0\0\0"
            await asyncio.get_running_loop().sock_sendall(raw, message)
            got = b""
            while b"in pieces" not in got:
                got += await asyncio.get_running_loop().sock_recv(raw, 4096)
            raw.close()

    run(scenario)


class Counting(sockets.SpeechSocketProtocol):
    """Notes how many pings are handled without a turn for anybody else."""

    most_at_once = 0

    def _read_slice(self):
        self.n_pings = 0
        super()._read_slice()
        Counting.most_at_once = max(Counting.most_at_once, self.n_pings)

    def handle_ping(self):
        self.n_pings += 1
        super().handle_ping()


def test_a_burst_is_handled_in_slices(monkeypatch):
    monkeypatch.setattr("realtime.server.SpeechSocketProtocol", Counting)

    async def scenario():
        async with gateway() as here:
            raw = await upgraded(here)
            burst = EMPTY_FRAMES["ping"] * 1_500 + NOT_JSON
            await asyncio.get_running_loop().sock_sendall(raw, burst)
            got = b""
            while b"invalid_event" not in got:
                got += await asyncio.get_running_loop().sock_recv(raw, 65_536)
            # 10 us a ping: the others wait for 10 ms at most.
            assert 0 < Counting.most_at_once < 1_000
            raw.close()

    run(scenario)


@pytest.mark.parametrize("is_flooding", [False, True])
def test_a_client_that_takes_no_part_in_the_close_is_cut_off(monkeypatch, is_flooding):
    """It was held, with all that waited for it, until the kernel gave up on the connection."""
    monkeypatch.setattr(sockets, "ABORT_AFTER_S", 0.2)
    config = replace(SLOW, send=replace(SLOW.send, blocked_s=0.2))

    async def scenario():
        async with gateway(config, step_s=0.001) as here:
            raw = await upgraded(here)
            await ask_for_much(raw)
            if is_flooding:
                await pour(raw, text_frame('{"type":"input_text.flush"}') * 4_000)
            await until(lambda: not here.sample("parley_sessions"))
            await until(lambda: not connections(here))
            raw.close()

    run(scenario)


def test_a_dead_client_with_audio_on_its_way_is_let_go(monkeypatch):
    """A transport that closes waits for its buffer; so the ping's timeout alone freed nothing."""
    monkeypatch.setattr(sockets, "ABORT_AFTER_S", 0.1)
    send = replace(SLOW.send, blocked_s=50.0, hard_blocked_s=50.0)
    config = replace(SLOW, send=send, ping_interval_s=0.2)

    async def scenario():
        async with gateway(config, step_s=0.001) as here:
            raw = await upgraded(here)
            await ask_for_much(raw)
            await until(lambda: here.engine.n_open)
            await until(lambda: not here.sample("parley_sessions"))
            await until(lambda: not connections(here))
            raw.close()

    run(scenario)


def test_what_is_sent_after_a_close_from_below_is_no_fault_of_ours(caplog):
    """The protocol may close while a session is about to send."""

    async def scenario():
        async with gateway() as here:
            raw = await upgraded(here)
            # An error to answer, and at once a frame with bits that mean nothing.
            await asyncio.get_running_loop().sock_sendall(raw, NOT_JSON + b"\xf1\x80\0\0\0\0")
            await read_to_end(raw)
            raw.close()
            await until(lambda: not here.sample("parley_sessions"))

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert not caplog.records


def test_a_refusal_before_the_upgrade_is_not_logged_as_an_error(caplog):
    config = replace(FAST_CONFIG, max_sessions=1)

    async def scenario():
        async with gateway(config) as here, here.client():
            with pytest.raises(Exception, match="503"):
                async with here.client():
                    pass

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert not caplog.records


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: te", b"GET / HTTP/1.1\r\n"])
def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch, sent):
    monkeypatch.setattr(sockets, "HEAD_TIMEOUT_S", 0.1)

    async def scenario():
        async with gateway() as here:
            with socket.socket() as raw:
                raw.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(raw, ("127.0.0.1", here.port))
                await loop.sock_sendall(raw, sent)
                assert await read_to_end(raw) == b""
            async with here.client() as client:
                await asyncio.sleep(0.3)
                assert (await client.say("An upgraded one stays.")).status == "completed"

    run(scenario)


@pytest.mark.parametrize("strange", [b"\xff\xfe", b"\xc3\xa9", b'"', b" a key", b"=="])
@pytest.mark.parametrize(
    ("path", "header"),
    [
        (b"", b"Sec-WebSocket-Protocol: parley.v1, openai-insecure-api-key.kept-to-ourselves%b"),
        (b"", b"Authorization: Bearer x%b"),
        (b"", b"Origin: http://x%b"),
        (b"", b"X-Forwarded-For: %b"),
        (b"?model=%b", b""),
        (b"/%b", b""),
    ],
)
def test_a_handshake_of_strange_bytes_is_answered_and_leaves_nothing(caplog, path, header, strange):
    """The layer below raised at some of them, held the connection, and failed at the stop."""
    with_bytes = [part.replace(b"%b", strange) for part in (path, header)]
    start = SPEECH_PATH.encode() + with_bytes[0].replace(b" ", b"")
    lines = [f"{name}: {value}".encode() for name, value in UPGRADE.items()]
    head = [b"GET " + start + b" HTTP/1.1", b"Host: test", *lines, with_bytes[1]]

    async def scenario():
        async with gateway() as here:
            raw = await connect_raw(here)
            request = b"\r\n".join([*filter(None, head), b"", b""])
            await asyncio.get_running_loop().sock_sendall(raw, request)
            answer = await asyncio.get_running_loop().sock_recv(raw, 4096)
            assert answer.split()[1] in (b"101", b"400", b"403", b"404"), answer
            assert b"kept-to-ourselves" not in answer
            raw.close()
            await until(lambda: not connections(here))

    run(scenario)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "messages", [b"\x81\x82\0\0\0\0\xc3\x28", b"\x01\x81\0\0\0\0\xc3\x80\x81\0\0\0\0x"]
)
def test_text_that_is_no_utf8_ends_the_socket_and_fills_no_log(messages, caplog):
    """The layer below logged a traceback for each such client."""

    async def scenario():
        async with gateway() as here:
            raw = await upgraded(here)
            await asyncio.get_running_loop().sock_sendall(raw, messages)
            got = await read_to_end(raw)
            raw.close()
            assert got.startswith(b"\x88")
            assert int.from_bytes(got[2:4], "big") == 1007
            await until(lambda: not here.sample("parley_sessions"))

    run(scenario)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
