"""A client that reads slowly, or not at all, costs others nothing and is let go in the end."""

import asyncio
import socket
from dataclasses import replace

import pytest

from realtime.config import SendLimits, TextLimits
from realtime.protocol import SPEECH_PATH
from tests.fakes import tone
from tests.realtime.harness import FAST_CONFIG, gateway, run, until
from tests.realtime.test_http_lane import UPGRADE
from tests.realtime.test_wire_cases import closed

LONG = "And then we went on and on over the hills and far away " * 60
SMALL = SendLimits(
    high_s=1.0,
    low_s=0.25,
    hard_s=30.0,
    high_bytes=65_536,
    low_bytes=16_384,
    blocked_s=0.5,
    socket_bytes=8_192,
)
SLOW = replace(
    FAST_CONFIG,
    send=SMALL,
    # One long stream, so that there is one to pause whenever the client falls behind.
    text=TextLimits(first_clause=5000, max_unit=5000),
)
PATIENT = replace(SLOW, send=replace(SMALL, blocked_s=30.0))
STEP_S = 0.001
PCM = {"output": {"codec": "pcm16", "sample_rate_hz": 48000}}


def not_reading():
    """A client that takes little: small kernel buffer, no read ahead."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    return raw


async def connect_raw(here):
    raw = not_reading()
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", here.port))
    return raw


def test_a_client_that_never_reads_is_paused_then_closed_1013_and_the_engine_freed():
    async def scenario():
        async with gateway(SLOW, step_s=STEP_S) as here:
            raw = await connect_raw(here)
            async with here.client(sock=raw, max_queue=1) as client:
                await client.send("session.update", session=PCM)
                await client.event("session.updated")
                await client.text(LONG)
                await until(lambda: any(one.pauses for one in here.engine.streams))
                paused = next(one for one in here.engine.streams if one.pauses)
                assert paused.pauses[0] is True
                # Bounded: the marks, the kernel's buffers, and the chunk that was on its way.
                assert here.sample("parley_queue_seconds") < 3.0
                await until(lambda: here.sample("parley_closes_total", code="1013") == 1)
                # The last word is said before the client reads: it must not wait for that.
                await until(lambda: not here.sample("parley_sessions"))
                await until(lambda: not here.engine.n_open)
                assert sum(one.n_sent for one in here.engine.streams) < 24000 * 30
                assert await closed(client) == (1013, "client took nothing for 0.5 s")

    run(scenario)


def test_past_the_hard_mark_patience_is_short():
    """An engine that gives much at once, or does not heed a pause, may not fill our memory."""
    hard = replace(SMALL, hard_s=2.0, blocked_s=60.0, hard_blocked_s=0.2)
    config = replace(SLOW, send=hard)

    async def scenario():
        async with gateway(config, chunk_samples=24_000 * 5) as here:
            raw = await connect_raw(here)
            async with here.client(sock=raw, max_queue=1) as client:
                await client.send("session.update", session=PCM)
                await client.event("session.updated")
                await client.text(LONG)
                await until(lambda: here.sample("parley_closes_total", code="1013") == 1)
                assert await closed(client) == (1013, "client took nothing for 0.2 s")

    run(scenario)


def test_a_client_that_reads_again_goes_on_without_a_hole():
    async def scenario():
        async with gateway(PATIENT, step_s=STEP_S) as here:
            raw = await connect_raw(here)
            async with here.client(sock=raw, max_queue=1) as client:
                await client.send("session.update", session={"output": {"codec": "pcm16"}})
                await client.event("session.updated")
                await client.text(LONG)
                await until(lambda: here.sample("parley_pauses_total") >= 1)
                spoken = await client.spoken()
                assert spoken.status == "completed"
                units = [stream.text for stream in here.engine.streams]
                assert spoken.n_samples == sum(len(tone(unit)) for unit in units)
                assert any(False in stream.pauses for stream in here.engine.streams)

    run(scenario)


def test_a_slow_client_can_still_cancel_and_its_audio_is_dropped():
    async def scenario():
        async with gateway(PATIENT, step_s=STEP_S) as here:
            raw = await connect_raw(here)
            async with here.client(sock=raw, max_queue=1) as client:
                await client.send("session.update", session=PCM)
                await client.event("session.updated")
                await client.text(LONG)
                await until(lambda: here.sample("parley_pauses_total") >= 1)
                n_taken = here.sample("parley_packets_sent_total", codec="pcm16")
                await client.send("response.cancel")
                await until(lambda: not here.engine.n_open)
                spoken = await client.spoken()
                assert spoken.status == "cancelled"
                # One frame was in the socket's hands; those that waited are never heard.
                assert len(spoken.frames) <= n_taken + 1
                assert spoken.audio_done["n_packets"] == len(spoken.frames)
                assert spoken.n_samples == sum(len(frame.payload) for frame in spoken.frames) // 2

    run(scenario)


def test_others_are_served_while_one_does_not_read():
    async def scenario():
        async with gateway(PATIENT, step_s=STEP_S) as here:
            raw = await connect_raw(here)
            async with here.client(sock=raw, max_queue=1) as slow, here.client() as other:
                await slow.send("session.update", session=PCM)
                await slow.event("session.updated")
                await slow.text(LONG)
                await until(lambda: here.sample("parley_pauses_total") >= 1)
                assert (await other.say("I am served.")).status == "completed"
                await slow.send("response.cancel")
                assert (await slow.spoken()).status == "cancelled"

    run(scenario)


def test_a_client_that_pings_and_never_reads_is_cut_off():
    """Answers to pings go past every queue: unread, they would grow without end."""
    ping = b"\x89\xfd\0\0\0\0" + bytes(125)

    async def ping_on(raw):
        while True:
            await asyncio.get_running_loop().sock_sendall(raw, ping * 100)

    async def scenario():
        async with gateway(SLOW) as here:
            raw = await connect_raw(here)
            head = [f"GET {SPEECH_PATH} HTTP/1.1", "Host: test"]
            head += [f"{name}: {value}" for name, value in UPGRADE.items()]
            await asyncio.get_running_loop().sock_sendall(
                raw, "\r\n".join([*head, "", ""]).encode()
            )
            await until(lambda: here.sample("parley_sessions"))
            with pytest.raises(ConnectionError):
                await ping_on(raw)
            raw.close()
            await until(lambda: not here.sample("parley_sessions"))

    run(scenario)


def test_playout_reports_reach_the_stream_that_is_heard():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await client.text("word " * 40)
            created = (await client.event("response.created"))["response"]
            await until(lambda: here.engine.streams)
            for _ in range(4):
                here.engine.step()
            await until(lambda: here.sample("parley_packets_sent_total", codec="opus") > 10)
            await client.send("output_audio.playout", response_id=created["id"], heard_ms=100)
            stream = here.engine.streams[0]
            # No more than there was time to hear; the opening report is of nothing.
            await until(lambda: any(0 < heard_s <= 0.1 for heard_s, _ in stream.playout))
            here.engine.finish()
            assert (await client.spoken()).status == "completed"
            # Late words about a response that is done are no error.
            await client.send("output_audio.playout", response_id=created["id"], heard_ms=9e9)
            await client.send("output_audio.playout", response_id="resp_x", heard_ms=1)
            error = await client.error()
            assert (error["code"], error["param"]) == ("unknown_response", "response_id")

    run(scenario)


def test_at_the_fast_pace_a_unit_waits_for_the_one_before_it_and_for_no_listener():
    text = "This is a sentence of some length. And this one is another. The third is the last."

    async def scenario():
        # So far ahead, a listener's next unit would be opened at once.
        config = replace(FAST_CONFIG, open_ahead_s=10.0)
        async with gateway(config, by_hand=True) as here, here.client() as client:
            output = {"codec": "pcm16", "pace": "fast"}
            await client.send("response.create", response={"output": output})
            await client.text(text)
            for n_streams in (1, 2, 3):
                await until(lambda n=n_streams: len(here.engine.streams) == n)
                await asyncio.sleep(0.05)
                assert len(here.engine.streams) == n_streams, "one slot at a time"
                here.engine.finish()
            spoken = await client.spoken()
            streams = here.engine.streams
            assert not any(stream.is_paced for stream in streams)
            # Later units are parts of what was admitted, not new callers.
            assert [stream.play_from_s is None for stream in streams] == [True, False, False]
            assert spoken.status == "completed"
            assert spoken.n_samples == sum(len(tone(stream.text)) for stream in streams)

    run(scenario)


def test_the_pace_is_that_of_playback_unless_another_is_asked_for():
    async def scenario():
        async with gateway() as here, here.client() as client:
            assert client.session["output"]["pace"] == "playback"
            await client.say("Heard while it comes.")
            await client.send("session.update", session={"output": {"pace": "fast"}})
            session = (await client.event("session.updated"))["session"]
            assert session["output"]["pace"] == "fast"
            n_heard = here.sample("parley_ttfa_seconds_count")
            await client.say("Written to a file.")
            assert here.sample("parley_ttfa_seconds_count") == n_heard, "nobody waited for a sound"
            await client.send("response.create", response={"output": {"pace": None}})
            await client.say("Heard again.")
            assert [stream.is_paced for stream in here.engine.streams] == [True, False, True]

    run(scenario)


@pytest.mark.parametrize("opens_ahead", [True, False])
def test_the_next_unit_is_opened_before_the_last_is_heard_with_its_time(opens_ahead):
    """No gap between sentences, and no startup priority for those that are not waited for."""
    first = "This is the first sentence, and it is quite long for a sentence here."
    config = replace(FAST_CONFIG, open_ahead_s=10.0 if opens_ahead else 0.001)

    async def scenario():
        async with gateway(config, by_hand=True) as here, here.client() as client:
            await client.text(f"{first} ", "And this is the second.")
            await until(lambda: here.engine.streams)
            if opens_ahead:
                await until(lambda: len(here.engine.streams) == 2)
            else:
                here.engine.step()
                await asyncio.sleep(0.1)
                assert len(here.engine.streams) == 1
            here.engine.finish()
            await until(lambda: len(here.engine.streams) == 2)
            one, other = here.engine.streams
            here.engine.finish()
            spoken = await client.spoken()
            assert one.play_from_s is None
            assert other.play_from_s > one.asked_s
            if not opens_ahead:
                # All of the first was sent by then: its length is known.
                expected_s = one.asked_s + len(tone(first)) / 24000
                # Slack for what a loaded machine does between asking and sending.
                assert expected_s - 0.1 < other.play_from_s < expected_s + 5.0
            assert spoken.n_samples == len(tone(first)) + len(tone("And this is the second."))

    run(scenario)
