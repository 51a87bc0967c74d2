"""`POST /v1/audio/speech`: forms, streaming, failures, clients that leave or do not read."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
from dataclasses import replace

import httpx
import numpy as np
import pytest

from realtime.config import SendLimits
from tests.fakes import fake_spec, tone
from tests.realtime.harness import FAST_CONFIG, gateway, pcm16_of, run, until
from tests.realtime.lanes.http_harness import (
    SPEECH,
    close,
    decoded,
    events_of,
    http_client,
    likeness,
    post_speech,
    refused,
)

TEXT = "One sentence that is spoken. And a second one, spoken after it without a gap."
UNITS = ("One sentence that is spoken.", "And a second one, spoken after it without a gap.")


def test_pcm_is_what_the_engine_says_unit_after_unit():
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input=TEXT, response_format="pcm")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "audio/pcm"
            assert answer.headers["transfer-encoding"] == "chunked"
            assert answer.content == pcm16_of(*UNITS)

    run(scenario)


@pytest.mark.parametrize(
    ("audio_format", "content_type", "most_longer"),
    [
        ("wav", "audio/wav", 0),
        ("flac", "audio/flac", 0),
        ("opus", "audio/ogg", 0),
        ("mp3", "audio/mpeg", 2400),
        ("aac", "audio/aac", 2400),
    ],
)
def test_every_form_decodes_to_the_same_sound(audio_format, content_type, most_longer):
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input=TEXT, response_format=audio_format)
            assert answer.headers["content-type"] == content_type
            return answer.content

    pcm = np.concatenate([tone(unit) for unit in UNITS])
    sound = decoded(run(scenario), audio_format)
    assert 0 <= len(sound) - len(pcm) <= most_longer
    assert likeness(sound, pcm) > 0.97


def test_mp3_is_the_default_as_in_the_published_api():
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input="Hello there.")
            assert answer.headers["content-type"] == "audio/mpeg"
            assert answer.content[0] == 0xFF

    run(scenario)


def test_sound_goes_out_while_the_rest_is_being_spoken():
    async def scenario():
        async with gateway(by_hand=True) as here, http_client(here) as client:
            order = {"input": TEXT, "response_format": "pcm"}
            request = client.build_request("POST", SPEECH, json=order)
            sending = asyncio.create_task(client.send(request, stream=True))
            await until(lambda: here.engine.n_open)
            here.engine.step()
            answer = await sending
            pieces = answer.aiter_raw()
            first = await anext(pieces)
            assert here.engine.n_open, "the engine is far from its end"
            rest = b""
            stepping = asyncio.create_task(until(lambda: here.engine.step() and False))
            async for piece in pieces:
                rest += piece
            stepping.cancel()
            await answer.aclose()
            assert first + rest == pcm16_of(*UNITS)

    run(scenario)


def test_the_first_unit_has_a_listeners_deadline_and_the_rest_takes_what_room_there_is():
    async def scenario():
        async with gateway() as here:
            await post_speech(here, input=" ".join([TEXT] * 8), response_format="pcm")
            paced = [stream.is_paced for stream in here.engine.streams]
            assert paced[0]
            assert not all(paced)
            assert here.engine.streams[0].play_from_s is None

    run(scenario)


def test_the_second_unit_does_not_wait_for_the_listener_of_the_first():
    """The first is held to a listener's pace. The rest of a file would have waited for it."""
    long = "A sentence without any marks that is spoken for a good while " * 3

    async def scenario():
        async with gateway(by_hand=True, chunk_samples=18_000) as here:
            asking = asyncio.create_task(
                post_speech(here, input=f"{long}. And the rest of it.", response_format="pcm")
            )
            await until(lambda: here.engine.n_open)
            here.engine.step()
            here.engine.step()
            await until(lambda: len(here.engine.streams) == 2)
            assert [stream.is_over for stream in here.engine.streams] == [False, False]
            assert [stream.is_paced for stream in here.engine.streams] == [True, False]
            here.engine.finish()
            await asking

    run(scenario)


def test_a_model_that_takes_streamed_text_gets_units_too():
    """As one stream for everything it would be held to a listener's pace from end to end."""

    async def scenario():
        async with gateway(spec=fake_spec(text_capacity=4096)) as here:
            answer = await post_speech(here, input=" ".join([TEXT] * 4), response_format="pcm")
            assert len(here.engine.streams) > 1
            assert all(stream.plan.is_text_final for stream in here.engine.streams)
            assert answer.content == pcm16_of(*(stream.text for stream in here.engine.streams))

    run(scenario)


def test_events_carry_the_same_bytes_and_the_usage():
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input=TEXT, response_format="pcm", stream_format="sse")
            assert answer.headers["content-type"].startswith("text/event-stream")
            *deltas, done = events_of(answer.content)
            assert {one["type"] for one in deltas} == {"speech.audio.delta"}
            sound = b"".join(base64.b64decode(one["audio"]) for one in deltas)
            assert sound == pcm16_of(*UNITS)
            n_frames = sum(len(tone(unit)) for unit in UNITS) // 240
            usage = {"input_tokens": 2, "output_tokens": n_frames, "total_tokens": n_frames + 2}
            assert done == {"type": "speech.audio.done", "status": "completed", "usage": usage}

    run(scenario)


# What is asked for.


@pytest.mark.parametrize(
    ("field", "value", "status", "code", "said"),
    [
        ("input", None, 400, "invalid_value", "input"),
        ("input", 5, 400, "invalid_value", "input"),
        ("input", "", 400, "empty_text", "letter"),
        ("input", " \n\t ", 400, "empty_text", "letter"),
        ("input", "?!... —", 400, "empty_text", "letter"),
        ("input", "🙂🎉", 400, "empty_text", "letter"),
        ("input", "a\0b", 400, "invalid_text", "U+0000 at character 1"),
        ("input", "a\ud800b", 400, "invalid_text", "lone surrogate"),
        ("input", "שלום עולם", 400, "unsupported_script", "Hebrew"),
        ("input", "x" * 20_001, 400, "text_too_long", "at most 20000 characters, not 20001"),
        ("input", "word " * 20_000, 400, "text_too_long", "not 100000"),
        ("model", "gpt-5", 404, "model_not_found", "served: fake"),
        ("model", "", 400, "invalid_value", "model"),
        ("voice", "eve", 400, "unknown_voice", "ada, bob"),
        ("voice", ["ada"], 400, "invalid_value", "voice"),
        ("speed", 4, 400, "invalid_value", "from 0.5 to 2 for fake"),
        ("speed", 0.25, 400, "invalid_value", "from 0.5 to 2 for fake"),
        ("speed", True, 400, "invalid_value", "speed"),
        ("speed", "fast", 400, "invalid_value", "speed"),
        ("response_format", "ogg", 400, "invalid_value", "'opus'"),
        ("stream_format", "ws", 400, "invalid_value", "'sse'"),
        ("language", "tlh", 400, "unsupported_language", "de"),
        ("seed", -1, 400, "invalid_value", "at least 0"),
        ("options", {"sped": 1}, 400, "unknown_option", "speed"),
        ("options", {"style": "odd"}, 400, "invalid_value", "calm"),
        ("options", {"max_seconds": 1e308}, 400, "invalid_value", "at most 86400"),
        ("stream", True, 400, "unknown_field", "stream"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(field, value, status, code, said):
    async def scenario():
        async with gateway() as here:
            body = json.dumps({"input": "Hello.", field: value})
            async with http_client(here) as client:
                headers = {"content-type": "application/json"}
                answer = await client.post(SPEECH, content=body, headers=headers)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (status, code)
            assert said in error["message"]
            option = next(iter(value)) if field == "options" else ""
            assert error["param"] == (f"options.{option}" if option else field)
            assert here.sample("parley_errors_total", code=code) == 1
            assert (await post_speech(here, input="Still here.")).status_code == 200

    run(scenario)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"", "application/json", 400, "invalid_json"),
        (b"{", "application/json", 400, "invalid_json"),
        (b"[]", "application/json", 400, "invalid_json"),
        (b"[" * 100_000, "application/json", 400, "invalid_json"),
        (b'{"input": NaN}', "application/json", 400, "invalid_json"),
        (b'{"input": "\xff"}', "application/json", 400, "invalid_json"),
        (b"{}", "application/json", 400, "missing_field"),
        (b"input=Hello", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"{" + b" " * 1_048_576, "application/json", 413, "request_too_large"),
    ],
)
def test_bodies_that_are_no_order_are_refused(body, content_type, status, code):
    async def scenario():
        async with gateway() as here, http_client(here) as client:
            headers = {"content-type": content_type}
            answer = await client.post(SPEECH, content=body, headers=headers)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (status, code)

    run(scenario)


def test_a_body_of_unknown_length_is_bounded_too():
    async def scenario():
        async with gateway() as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\n".encode())
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(17):
                writer.write(b"10000\r\n" + b" " * 65_536 + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
            await close(writer)

    run(scenario)


def test_a_body_that_does_not_come_is_not_waited_for():
    config = replace(FAST_CONFIG, first_message_timeout_s=0.2)

    async def scenario():
        async with gateway(config) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{"
            writer.write(head.encode())
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"request_timeout" in answer
            await close(writer)

    run(scenario)


@pytest.mark.parametrize("model", [None, "fake", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"])
@pytest.mark.parametrize("voice", [None, "alloy", "verse", {"id": "bob"}, "bob"])
def test_names_that_clients_send_unasked_mean_the_default(model, voice):
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input="Hello.", model=model, voice=voice)
            assert answer.status_code == 200
            expected = "bob" if voice in ("bob", {"id": "bob"}) else None
            assert here.engine.planned[0].voice == expected

    run(scenario)


def test_speed_seed_language_and_options_reach_the_model():
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(
                here,
                input="Hello.",
                speed=1.5,
                seed=7,
                language="de-AT",
                options={"style": "loud"},
                instructions="Speak like a pirate.",
            )
            assert answer.status_code == 200
            request = here.engine.planned[0]
            assert request.options == {"speed": 1.5, "style": "loud"}
            assert (request.language, here.engine.streams[0].seed) == ("de", 7)

    run(scenario)


def test_the_usual_speed_is_no_fault_where_a_model_has_but_one():
    async def scenario():
        async with gateway(spec=fake_spec(options=())) as here:
            assert (await post_speech(here, input="Hello.", speed=1)).status_code == 200
            status, error = await refused(here, input="Hello.", speed=1.1)
            assert (status, error["param"]) == (400, "speed")
            assert "from 1 to 1" in error["message"]

    run(scenario)


def test_a_field_that_is_given_twice_is_refused():
    async def scenario():
        async with gateway() as here:
            status, error = await refused(here, input="Hi.", speed=1, options={"speed": 2})
            assert (status, error["param"]) == (400, "options.speed")

    run(scenario)


def test_the_longest_text_is_spoken_whole():
    text = "This is one of many sentences, each of them spoken. " * 384

    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input=text, response_format="pcm")
            n_spoken = sum(len(stream.text) for stream in here.engine.streams)
            assert len(answer.content) == 2 * 240 * n_spoken
            assert n_spoken > 0.95 * len(text)

    run(scenario)


# Failures.


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("This will overload it.", 503, "overloaded"),
        ("This is a plancrash now.", 500, "model_error"),
        ("Весна идёт сюда.", 400, "unsupported_script"),
    ],
)
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_what_fails_before_the_first_sound_has_a_status(text, status, code, stream_format):
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input=text, stream_format=stream_format)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert answer.headers.get("retry-after") == ("2" if code == "overloaded" else None)
            assert here.sample("parley_response_failures_total", code=code) == 1

    run(scenario)


def test_what_fails_later_breaks_the_body_off(caplog):
    text = "A good first sentence of some length. Then a streamfail sentence, which fails."

    async def scenario():
        async with gateway() as here:
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                await post_speech(here, input=text, response_format="pcm")
            assert here.sample("parley_response_failures_total", code="numerical_error") == 1
            assert here.sample("parley_responses_total", status="failed") == 1
            await until(lambda: not here.server.gateway.count.n_sessions)
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]

    run(scenario)


def test_what_fails_later_is_an_event_where_there_are_events():
    text = "A good first sentence of some length. Then a streamfail sentence, which fails."

    async def scenario():
        async with gateway() as here:
            answer = await post_speech(here, input=text, stream_format="sse")
            *_, last = events_of(answer.content)
            assert last["type"] == "error"
            assert last["error"]["code"] == "numerical_error"

    run(scenario)


def test_limits_cut_the_sound_and_say_so_in_the_last_event():
    async def scenario():
        async with gateway() as here:
            answer = await post_speech(
                here,
                input=TEXT,
                response_format="pcm",
                stream_format="sse",
                options={"max_seconds": 0.2},
            )
            *deltas, done = events_of(answer.content)
            sound = b"".join(base64.b64decode(one["audio"]) for one in deltas)
            assert len(sound) == 2 * 4800
            assert done["status"] == "incomplete"
            await until(lambda: here.sample("parley_responses_total", status="incomplete"))

    run(scenario)


def test_a_dead_engine_and_a_full_server_say_when_to_come_again():
    config = replace(FAST_CONFIG, max_sessions=1, retry_after_s=7)

    async def scenario():
        async with gateway(config) as here:
            async with here.client():
                answer = await post_speech(here, input="Hello.")
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
                assert answer.json()["error"]["code"] == "server_full"
            await until(lambda: not here.server.gateway.count.n_sessions)
            assert (await post_speech(here, input="Hello.")).status_code == 200
            here.engine.crash()
            answer = await post_speech(here, input="Hello.")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
            assert answer.json()["error"]["code"] == "engine_stopped"

    run(scenario)


# Clients that leave, and clients that do not read.


@pytest.mark.parametrize("text", ["A silent engine.", TEXT])
def test_a_client_that_leaves_frees_the_engine_within_a_step(text):
    """Before the first sound (an engine that says nothing) as well as after it."""

    async def scenario():
        async with gateway(by_hand=True) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            body = json.dumps({"input": text, "response_format": "pcm"})
            head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write((head + body).encode())
            await until(lambda: here.engine.n_open)
            if text is TEXT:
                here.engine.step()
                assert (await reader.read(100)).startswith(b"HTTP/1.1 200")
            await close(writer)
            await until(lambda: all(stream.is_aborted for stream in here.engine.streams))
            here.engine.step()
            assert not here.engine.n_open
            await until(lambda: not here.server.gateway.count.n_sessions)
            assert here.sample("parley_responses_total", status="cancelled") == 1
            assert not here.sample("parley_sessions")

    run(scenario)


def small_buffers(port: int) -> socket.socket:
    """A connection of which the server notices at once that it is not read."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port))
    return one


def order_unread(here, text) -> socket.socket:
    """Ask for a long text and read nothing. Returns the connection."""
    one = small_buffers(here.port)
    body = json.dumps({"input": text, "response_format": "pcm"})
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    one.sendall((head + body).encode())
    return one


LONG = "This sentence is spoken to nobody who reads it, again and again. " * 200
SLOW = SendLimits(high_s=1.0, low_s=0.2, hard_s=10.0, socket_bytes=32_768, blocked_s=0.3)


def test_a_slow_reader_pauses_its_stream_and_gets_everything():
    config = replace(FAST_CONFIG, send=replace(SLOW, blocked_s=30.0))

    async def scenario():
        async with gateway(config) as here:
            one = order_unread(here, LONG)
            await until(lambda: here.sample("parley_pauses_total"))
            assert here.server.gateway.has_work
            assert 0 < here.sample("parley_queue_seconds") < config.send.hard_s
            assert len(here.engine.streams) < 100, "most of the text waits to be spoken"
            # Or it would take minutes: a full window is asked for anew only now and then.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_048_576)
            one.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=one)
            body = b""
            while not body.endswith(b"0\r\n\r\n"):
                body += await reader.read(65_536)
            await close(writer)
            one.close()
            n_spoken = sum(len(stream.text) for stream in here.engine.streams)
            assert len(body) > 2 * 240 * n_spoken

    run(scenario)


def test_silence_waits_for_a_slow_reader_too():
    text = '<break time="10s"/> x ' * 200

    async def scenario():
        async with gateway(replace(FAST_CONFIG, send=replace(SLOW, blocked_s=30.0))) as here:
            one = order_unread(here, text)
            await until(lambda: here.sample("parley_pauses_total"))
            # What an event loop does in so many turns would fill the queue if it could.
            for _ in range(200):
                await asyncio.sleep(0.001)
            assert here.sample("parley_queue_seconds") < 3
            one.close()
            await until(lambda: not here.server.gateway.count.n_sessions)

    run(scenario)


def test_a_client_that_reads_nothing_is_cut_once_it_would_have_heard_all_it_has():
    async def scenario():
        async with gateway(replace(FAST_CONFIG, send=SLOW)) as here:
            one = order_unread(here, LONG)
            code = "client_too_slow"
            await until(lambda: here.sample("parley_response_failures_total", code=code))
            await until(lambda: not here.engine.n_open)
            one.close()

    run(scenario)


# The server stops.


def test_a_stop_lets_the_sound_end():
    async def scenario():
        async with gateway(by_hand=True) as here:
            asking = asyncio.create_task(
                post_speech(here, input="Let it end.", response_format="pcm")
            )
            await until(lambda: here.engine.n_open)
            stopping = asyncio.create_task(here.server.gateway.drain())
            await until(lambda: here.server.gateway.is_stopping)
            status, error = await refused(here, input="Too late.")
            assert (status, error["code"]) == (503, "server_stopping")
            here.engine.finish()
            assert (await asking).content == pcm16_of("Let it end.")
            await stopping

    run(scenario)


def test_a_stop_waits_only_so_long():
    config = replace(FAST_CONFIG, drain_timeout_s=0.2)

    async def scenario():
        async with gateway(config, by_hand=True) as here:
            asking = asyncio.create_task(post_speech(here, input="A silent engine."))
            await until(lambda: here.engine.n_open)
            await here.server.gateway.drain()
            answer = await asking
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_stopping")

    run(scenario)


def test_what_is_served_is_counted_as_a_session():
    async def scenario():
        async with gateway() as here:
            await post_speech(here, input=TEXT, response_format="pcm")
            assert here.sample("parley_sessions_opened_total") == 1
            await until(lambda: not here.sample("parley_sessions"))
            assert here.sample("parley_responses_total", status="completed") == 1
            assert here.sample("parley_responses_total", status="cancelled") == 0
            assert here.sample("parley_ttfa_seconds_count") == 1
            n_bytes = len(pcm16_of(*UNITS))
            assert here.sample("parley_bytes_sent_total", kind="audio") == n_bytes
            seconds = here.sample("parley_audio_seconds_sent_total")
            assert seconds == pytest.approx(n_bytes / 48_000)

    run(scenario)
