"""The lane `parley.v1` of `/v1/realtime`: bad input and its outcomes, forms of audio, silence."""

import asyncio
import base64
import socket
import struct
from dataclasses import replace

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.agent.vad import SileroDetector, load_vad
from realtime.audio.coder import pcm16_bytes
from realtime.audio.g711 import G711
from realtime.audio.opus import OpusEncoder
from realtime.audio.resample import Resampler
from realtime.protocol import REALTIME_PATH, SUBPROTOCOL
from realtime.workers import Workers
from tests.cases import wire_cases
from tests.realtime.harness import FAST_CONFIG, gateway, http_get, run, until
from tests.realtime.sounds import noise, silence, speech_like, tones
from tests.realtime.talk_harness import HANDS_FREE, LOUD, PUSH_TO_TALK, ScriptedAgent, talk

CASES = wire_cases()
DEEP = "[" * 100_000 + "]" * 100_000
BAD_BASE64 = '{"type": "input_audio_buffer.append", "audio": "%%%"}'
COMPLETED = "conversation.item.input_audio_transcription.completed"
QUICK = replace(FAST_CONFIG, max_messages_per_s=1e6, message_burst=100_000)


def talk_at(rate_hz):
    """Push to talk with PCM16 at a rate."""
    form = {"type": "audio/pcm", "rate": rate_hz}
    return {"input": {"format": form, "turn_detection": None}}


async def append(client, payload):
    await client.send("input_audio_buffer.append", audio=base64.b64encode(payload).decode())


async def committed(client, here):
    """Commit, and the samples that reached the agent."""
    n_before = len(here.agent.transcriptions)
    await client.send("input_audio_buffer.commit")
    await client.until_event("input_audio_buffer.committed")
    await client.until_event(COMPLETED)
    assert len(here.agent.transcriptions) == n_before + 1
    return here.agent.transcriptions[-1].pcm


async def closed(client):
    """How the server closed the socket, whatever came before."""

    async def read_on():
        while True:
            await client.next()

    with pytest.raises(ConnectionClosed) as caught:
        await read_on()
    assert caught.value.rcvd is not None, "the connection broke without a close"
    return caught.value.rcvd.code, caught.value.rcvd.reason


# Messages that are wrong.


@pytest.mark.parametrize(
    ("case", "message", "code", "param"),
    [
        ("not JSON", CASES["not JSON"]["send"], "invalid_event", None),
        ("JSON array", CASES["JSON array"]["send"], "invalid_event", None),
        ("no type", CASES["no type"]["send"], "invalid_event", "type"),
        ("unknown type", CASES["unknown type"]["send"], "invalid_event", "type"),
        ("deep nesting", DEEP, "invalid_event", None),
        ("bad base64", BAD_BASE64, "invalid_audio", "audio"),
        ("binary frame, 3 bytes", b"\x01\x01\x00", "invalid_frame", None),
        ("binary frame, unknown kind", b"\xc8\x01\0\0\0\0\0\0x", "invalid_frame", None),
    ],
)
def test_an_error_and_an_open_socket(case, message, code, param):
    assert case in CASES

    async def scenario():
        async with talk() as here, here.client() as client:
            await client.socket.send(message)
            error = await client.until_error()
            assert (error["code"], error["param"]) == (code, param)
            if case == "unknown type":
                assert "nope" in error["message"]
            assert here.sample("parley_errors_total", code=code) == 1
            await client.turn()
            assert (await client.done())["status"] == "completed"

    run(scenario)


@pytest.mark.parametrize("packet", [b"\xff\xff garbage garbage", b"\x03", b"\x00" * 40])
def test_case_binary_frame_bad_opus(packet):
    """`error or concealed packet, socket open`."""

    async def scenario():
        async with talk() as here, here.client() as client:
            await client.send_frame("opus", packet)
            await client.turn()
            while True:
                message = await client.next()
                if isinstance(message, dict) and message["type"] == "response.done":
                    break
                if isinstance(message, dict) and message["type"] == "error":
                    assert message["error"]["code"] == "invalid_audio"

    run(scenario)


BAD_SESSIONS = [
    ({"audio": {"output": {"voice": 17}}}, "session.audio.output.voice"),
    ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice"),
    ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 12345}}}}, "rate"),
    (
        {"audio": {"output": {"format": {"type": "audio/opus", "rate": 16000}}}},
        "session.audio.output.format.rate",
    ),
    ({"audio": {"input": {"turn_detection": {"type": "magic"}}}}, "turn_detection"),
    ({"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}}, "threshold"),
    ({"model": "nothing"}, "session.model"),
    ({"options": {"speed": 9.0}}, "session.options.speed"),
    ({"nonsense": 1}, "session.nonsense"),
    ({"tool_choice": {"type": "function", "name": "nothing"}}, "session.tool_choice.name"),
    ({"output_modalities": ["audio", "text"]}, "session.output_modalities"),
]


@pytest.mark.parametrize(("session", "param"), BAD_SESSIONS)
def test_case_bad_session_field(session, param):
    """`whole update refused, field named, old session intact`."""

    async def scenario():
        async with talk() as here, here.client() as client:
            update = {"instructions": "Never this.", **session}
            await client.send("session.update", session=update, event_id="bad")
            error = await client.until_error()
            assert param in error["param"]
            assert error["event_id"] == "bad"
            assert await client.update() == client.session

    run(scenario)


# Audio.


def test_case_odd_bytes():
    """`carried: 2 samples in the buffer`."""

    async def scenario():
        async with talk() as here, here.client(audio=talk_at(16000)) as client:
            await append(client, b"\x01\x02\x03")
            await append(client, b"\x04")
            rest = np.full(1600, LOUD, np.float32)
            await append(client, pcm16_bytes(rest))
            pcm = await committed(client, here)
            assert len(pcm) == 1602
            expected = np.array([0x0201, 0x0403]) / 32768
            assert np.allclose(pcm[:2], expected)

    run(scenario)


def test_case_1_byte_appends():
    """`as one append of 4800 bytes`."""

    async def scenario():
        rng = np.random.default_rng(9)
        payload = pcm16_bytes((0.3 * rng.standard_normal(2400)).astype(np.float32))
        async with talk(config=QUICK) as here, here.client(audio=talk_at(24000)) as client:
            await append(client, payload)
            whole = await committed(client, here)
            for place in range(len(payload)):
                await append(client, payload[place : place + 1])
            single = await committed(client, here)
            assert len(whole) == len(single) == 1600
            # One stateful resampler: borders leave no mark beyond rounding.
            assert np.abs(whole - single).max() < 1e-6

    run(scenario)


def test_case_big_append():
    """`refused by size with the limit named; session goes on or closes 1009`."""

    async def scenario():
        async with talk() as here, here.client() as client:
            limit = client.session["limits"]["max_message_bytes"]
            assert limit == 8_388_608
            await append_big(client)
            code, reason = await closed(client)
            assert code == 1009
            assert str(limit) in reason

    async def append_big(client):
        try:
            await append(client, bytes(16 * 2**20))
        except ConnectionClosed:
            return

    run(scenario)


def test_case_short_commit():
    """`input_audio_buffer_commit_empty`; what was there is still there."""

    async def scenario():
        async with talk() as here, here.client(audio=PUSH_TO_TALK) as client:
            await client.hear((LOUD, 50))
            await client.send("input_audio_buffer.commit", event_id="soon")
            error = await client.until_error()
            assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "soon")
            assert "50.00 ms" in error["message"]
            await client.hear((LOUD, 100))
            assert len(await committed(client, here)) == 150 * 16

    run(scenario)


@pytest.mark.parametrize(
    ("case", "sound"),
    [("silence commit", silence(2.0)), ("noise commit", noise(2.0, level=0.005))],
)
def test_case_silence_and_noise_commit(case, sound):
    """`transcript empty, no invented words, no or empty response`."""
    assert case in CASES

    async def scenario():
        workers = Workers(1)
        detector = SileroDetector(load_vad(), workers)
        agent = ScriptedAgent(words="thanks for watching")
        ears = talk(agent, detector=detector)
        async with ears as here, here.client(audio=PUSH_TO_TALK) as client:
            await client.send_pcm(sound)
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            assert (await client.until_event(COMPLETED))["transcript"] == ""
            assert (await client.done())["output"] == []
            assert not agent.replies
        workers.close()

    run(scenario)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 24000, 44100, 48000])
def test_pcm16_of_any_rate(rate_hz):
    async def scenario():
        speech = speech_like(1.024)
        resampler = Resampler(16000, rate_hz)
        sent = np.concatenate([resampler.push(speech), resampler.finish()])
        async with talk() as here, here.client(audio=talk_at(rate_hz)) as client:
            step = rate_hz // 50
            for start in range(0, len(sent), step):
                await client.send_frame("pcm16", pcm16_bytes(sent[start : start + step]))
            pcm = await committed(client, here)
            assert abs(len(pcm) - len(speech)) <= 1
            n = min(len(pcm), len(speech))
            if rate_hz >= 16000:
                # Two conversions and int16: what was under 7 kHz is there again.
                assert np.corrcoef(pcm[:n], speech[:n])[0, 1] > 0.99

    run(scenario)


def test_opus_frames():
    async def scenario():
        speech = speech_like(1.024)
        up = Resampler(16000, 48000)
        sent = np.concatenate([up.push(speech), up.finish()])
        encoder = OpusEncoder(sample_rate_hz=48000, bitrate_bps=64_000, complexity=5)
        async with talk() as here, here.client(audio=PUSH_TO_TALK) as client:
            for start in range(0, len(sent) - 959, 960):
                await client.send_frame("opus", encoder.encode(sent[start : start + 960]))
            pcm = await committed(client, here)
            n_packets = len(sent) // 960
            assert len(pcm) == n_packets * 320
            lag = round(encoder.pre_skip_samples / 3)
            n = len(pcm) - lag
            assert np.corrcoef(pcm[lag:], speech[:n])[0, 1] > 0.9

    run(scenario)


# Turns.


def test_case_second_response():
    """`conversation_already_has_active_response, event_id echoed`."""

    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await client.send("response.create")
            await client.send("response.create", event_id="again")
            error = await client.until_error()
            assert error["code"] == "conversation_already_has_active_response"
            assert error["event_id"] == "again"
            await until(lambda: here.agent.replies)
            here.agent.replies[0].end()
            assert (await client.done())["status"] == "completed"
            assert len(here.agent.replies) == 1

    run(scenario)


@pytest.mark.parametrize("response_id", [None, "resp_none"])
def test_case_cancel_idle(response_id):
    """`response_cancel_not_active, message starts 'Cancellation failed'`."""

    async def scenario():
        async with talk() as here, here.client() as client:
            fields = {} if response_id is None else {"response_id": response_id}
            await client.send("response.cancel", event_id="c", **fields)
            error = await client.until_error()
            assert error["code"] == "response_cancel_not_active"
            assert error["message"].startswith("Cancellation failed")
            assert error["event_id"] == "c"
            await client.turn()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_case_truncate_beyond():
    """`clamped, conversation.item.truncated`."""

    async def scenario():
        async with talk() as here, here.client() as client:
            await client.turn()
            item = (await client.done())["output"][0]
            await client.send(
                "conversation.item.truncate",
                item_id=item["id"],
                content_index=0,
                audio_end_ms=99_999,
            )
            truncated = await client.until_event("conversation.item.truncated")
            assert truncated["audio_end_ms"] == 500
            await client.send("conversation.item.retrieve", item_id=item["id"])
            kept = (await client.until_event("conversation.item.retrieved"))["item"]
            assert kept == item

    run(scenario)


def test_case_truncate_zero():
    """`conversation.item.truncated, no audio and no transcript kept`."""

    async def scenario():
        async with talk(ScriptedAgent(answer=None)) as here, here.client() as client:
            await client.send("response.create")
            await until(lambda: here.agent.replies)
            reply = here.agent.replies[0]
            reply.say("nobody has heard this", 0)
            item_id = (await client.until_event("response.output_item.added"))["item"]["id"]
            await client.send("conversation.item.truncate", item_id=item_id, audio_end_ms=0)
            truncated = await client.until_event("conversation.item.truncated")
            assert truncated["audio_end_ms"] == 0
            assert reply.is_cancelled
            await client.send("conversation.item.retrieve", item_id=item_id)
            kept = (await client.until_event("conversation.item.retrieved"))["item"]
            assert kept["content"][0]["transcript"] == ""

    run(scenario)


@pytest.mark.parametrize("kind", ["delete", "retrieve", "truncate"])
def test_case_delete_unknown(kind):
    """`error, param item_id`."""

    async def scenario():
        async with talk() as here, here.client() as client:
            fields = {"audio_end_ms": 5} if kind == "truncate" else {}
            await client.send(f"conversation.item.{kind}", item_id="gone", event_id="d", **fields)
            error = await client.until_error()
            assert error["param"] == "item_id"
            assert error["event_id"] == "d"

    run(scenario)


def test_a_deleted_item_is_forgotten():
    async def scenario():
        async with talk() as here, here.client() as client:
            first = await client.write("Forget this.")
            await client.write("Keep this.")
            await client.send("conversation.item.delete", item_id=first["id"])
            assert (await client.until_event("conversation.item.deleted"))["item_id"] == first["id"]
            await client.send("response.create")
            await client.done()
            assert [one.text for one in here.agent.replies[0].request.items] == ["Keep this."]

    run(scenario)


def test_items_go_where_they_are_put():
    async def scenario():
        async with talk() as here, here.client() as client:
            second = await client.write("second")
            content = [{"type": "input_text", "text": "first"}]
            item = {"type": "message", "role": "system", "content": content}
            await client.send("conversation.item.create", item=item, previous_item_id="root")
            added = await client.until_event("conversation.item.added")
            assert added["previous_item_id"] is None
            await client.send("conversation.item.create", item={**item, "id": second["id"]})
            assert (await client.until_error())["param"] == "item.id"
            await client.send("response.create")
            await client.done()
            items = here.agent.replies[0].request.items
            assert [(one.role, one.text) for one in items] == [
                ("system", "first"),
                ("user", "second"),
            ]

    run(scenario)


BAD_ITEMS = [
    ({"type": "message", "role": "user"}, "item.content"),
    ({"type": "message", "content": [{"type": "input_text", "text": "x"}]}, "item.role"),
    (
        {"type": "message", "role": "user", "content": [{"type": "output_text", "text": "x"}]},
        "item.content.0.type",
    ),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_text"}]},
        "item.content.0.text",
    ),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "%"}]},
        "item.content.0.audio",
    ),
    ({"type": "function_call", "call_id": "c", "name": "f"}, "item.arguments"),
    ({"type": "function_call_output"}, "item.call_id"),
    ({"type": "picture"}, "item.type"),
]


@pytest.mark.parametrize(("item", "param"), BAD_ITEMS)
def test_items_that_are_wrong_are_refused_by_field(item, param):
    async def scenario():
        async with talk() as here, here.client() as client:
            await client.send("conversation.item.create", item=item)
            assert (await client.until_error())["param"] == param

    run(scenario)


def test_audio_inside_an_item_is_transcribed():
    async def scenario():
        async with talk() as here, here.client(audio=talk_at(24000)) as client:
            payload = pcm16_bytes(np.full(12_000, LOUD, np.float32))
            part = {"type": "input_audio", "audio": base64.b64encode(payload).decode()}
            item = {"type": "message", "role": "user", "content": [part]}
            await client.send("conversation.item.create", item=item)
            await client.send("response.create")
            await client.done()
            assert len(here.agent.transcriptions[0].pcm) == 8000
            assert here.agent.replies[0].request.items[0].text == "hello"

    run(scenario)


@pytest.mark.parametrize("make", [silence, noise, tones])
def test_60_s_of_no_voice_are_not_answered(make):
    async def scenario():
        workers = Workers(1)
        detector = SileroDetector(load_vad(), workers)
        async with talk(detector=detector) as here, here.client(audio=HANDS_FREE) as client:
            await client.send_pcm(make(60.0), piece_ms=500)
            await client.settle()
            assert client.types == ["error"], "which is the mark that all was heard"
            await client.send_pcm(np.concatenate([silence(1.5), speech_like(2.0), silence(1.0)]))
            assert (await client.done())["status"] == "completed"
        workers.close()

    run(scenario)


# Sockets.


def test_case_text_frame_flood():
    """`rate limit event or 1008, other sessions unharmed`."""
    config = replace(FAST_CONFIG, max_messages_per_s=50.0, message_burst=100)

    async def scenario():
        async with talk(config=config) as here, here.client() as client, here.client() as other:
            try:
                for _ in range(20_000):
                    await client.send("input_audio_buffer.clear")
            except ConnectionClosed:
                pass
            code, _ = await closed(client)
            assert code == 1008
            await other.write("Hello.")
            await other.send("response.create")
            assert (await other.done())["status"] == "completed"

    run(scenario)


def test_case_no_first_message():
    """`closed after the stated time with a reason`."""

    async def scenario():
        async with talk() as here:
            url = f"ws://127.0.0.1:{here.port}{REALTIME_PATH}"
            async with connect(url, proxy=None, subprotocols=[SUBPROTOCOL]) as raw:
                await raw.recv()
                here.clock.now_s += FAST_CONFIG.first_message_timeout_s + 1
                with pytest.raises(ConnectionClosed) as caught:
                    await raw.recv()
                assert caught.value.rcvd.code == 1008
                assert "no message within" in caught.value.rcvd.reason

    run(scenario)


def test_case_stop_reading():
    """`bounded memory, closed 1013, engine freed`."""
    limits = replace(FAST_CONFIG.send, high_s=0.5, low_s=0.2, blocked_s=2.0)
    config = replace(FAST_CONFIG, send=limits)
    pcm = {"output": {"format": {"type": "audio/pcm", "rate": 48000}}}

    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent, config=config) as here:
            async with here.client(max_queue=1, audio=pcm) as client:
                await client.send("response.create")
                await until(lambda: agent.replies)
                agent.replies[0].say("on and on", 60.0)
                await until(lambda: agent.replies[0].pauses)
                assert here.sample("parley_queue_seconds") < 1.0
                while not here.sample("parley_closes_total", code="1013"):
                    # More may fit into the kernel's buffers at first; then time passes in vain.
                    here.clock.now_s += 1.0
                    await asyncio.sleep(0.05)
                client.socket.transport.abort()
            assert agent.replies[0].is_cancelled

    run(scenario)


def test_case_vanish():
    """`engine stream freed within one step`: the agent is told at once."""

    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here:
            async with here.client() as client:
                await client.hear((LOUD, 500))
                await client.send("response.create")
                await until(lambda: agent.replies)
                await client.hear((LOUD, 100))
                raw = client.socket.transport.get_extra_info("socket")
                # Linger of zero: the close is a reset.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.socket.transport.abort()
            await until(lambda: agent.replies[0].is_cancelled)
            await until(lambda: not here.sample("parley_sessions"))

    run(scenario)


def test_another_subprotocol_is_refused_before_the_upgrade():
    async def scenario():
        async with talk() as here:
            url = f"ws://127.0.0.1:{here.port}{REALTIME_PATH}"
            with pytest.raises(InvalidStatus) as caught:
                await connect(url, proxy=None, subprotocols=["chat"])
            assert caught.value.response.status_code == 400

    run(scenario)


def test_without_an_agent_there_is_no_such_route():
    async def scenario():
        async with gateway() as here:
            status, _, _ = await http_get(here.port, REALTIME_PATH)
            assert status == 404

    run(scenario)


def test_a_stop_waits_for_the_answer_and_begins_none():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, here.client() as client:
            await client.send("response.create")
            await until(lambda: agent.replies)
            stopping = asyncio.create_task(here.server.gateway.drain())
            await client.settle()
            agent.replies[0].say("the last word", 0.2)
            agent.replies[0].end()
            assert (await client.done())["status"] == "completed"
            assert (await closed(client))[0] == 1001
            await stopping

    run(scenario)


def test_what_a_stop_cuts_off_is_told():
    """The answer in the conversation and the one aside of it; of it counts what was heard."""
    config = replace(FAST_CONFIG, drain_timeout_s=0.1)
    aside = {"conversation": "none", "input": []}

    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent, config=config) as here, here.client() as client:
            await client.send("response.create")
            await client.send("response.create", response=aside)
            await until(lambda: len(agent.replies) == 2)
            agent.replies[0].say("the last word", 0.2)
            await client.until_event("response.output_audio.mark")
            await here.server.gateway.drain()
            done = [await client.done(), await client.done()]
            assert [one["status"] for one in done] == ["cancelled", "cancelled"]
            assert done[0]["status_details"]["reason"] == "session_ended"
            assert client.events("conversation.item.done")[-1]["item"]["status"] == "incomplete"
            assert (await closed(client))[0] == 1001
            assert all(reply.is_cancelled for reply in agent.replies)

    run(scenario)


# G.711, and what else the openai lane has.


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_both_ways(law):
    async def scenario():
        form = {"type": f"audio/{law}"}
        audio = {"input": {"format": form, "turn_detection": None}, "output": {"format": form}}
        loud = np.full(4000, LOUD, np.float32)
        payload = G711[law].encode(np.frombuffer(pcm16_bytes(loud), "<i2"))
        async with talk() as here, here.client(audio=audio) as client:
            assert client.session["audio"]["output"]["format"]["rate"] == 8000
            await client.send_frame(law, payload[:2000])
            await append(client, payload[2000:])
            pcm = await committed(client, here)
            assert len(pcm) == 8000
            assert np.abs(pcm[100:-100] - LOUD).max() < 0.02
            await client.send("response.create")
            started = await client.until_event("response.output_audio.started")
            assert (started["codec"], started["sample_rate_hz"]) == (law, 8000)
            audio_done = await client.until_event("response.output_audio.done")
            frames = client.frames(1)
            assert {frame.codec for frame in frames} == {law}
            assert sum(len(frame.payload) for frame in frames) == audio_done["n_samples"] == 4000

    run(scenario)


def test_an_answer_aside_has_frames_of_its_own():
    async def scenario():
        agent = ScriptedAgent(answer=None)
        async with talk(agent) as here, here.client() as client:
            await client.send("response.create")
            await client.send("response.create", response={"conversation": "none", "input": []})
            await until(lambda: len(agent.replies) == 2)
            for reply in agent.replies:
                reply.say("One of two.", 0.3)
                reply.end()
            done = [await client.done(), await client.done()]
            assert {one["conversation_id"] is None for one in done} == {True, False}
            for response in done:
                assert len(client.frames(response["number"])) >= 15

    run(scenario)


def test_audio_right_behind_an_update_is_read_in_its_form():
    async def scenario():
        async with talk() as here, here.client(audio=talk_at(16000)) as client:
            await client.send("session.update", session={"audio": talk_at(48000)})
            await client.send_frame("pcm16", bytes(2 * 48_000))
            await client.until_event("session.updated")
            await client.hear((LOUD, 320))
            pcm = await committed(client, here)
            assert len(pcm) == 16_000 + round(16 * 320 / 3)

    run(scenario)
