"""The speech lane through a real socket: text in, audio out, order, settings, anything at all."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import tone
from tests.realtime.harness import (
    FAST_CONFIG,
    as_pcm,
    done_of,
    gateway,
    payload,
    pcm16_of,
    run,
    until,
)

HELLO = "Hello there, my good friend."
HOW = "How are you doing today?"


def test_text_goes_in_and_its_audio_comes_out_sample_for_sample():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            spoken = await client.say(f"{HELLO} ", HOW)
            assert payload(spoken) == pcm16_of(HELLO, HOW)
            assert spoken.status == "completed"
            assert spoken.created["number"] == 1
            assert spoken.started["response_id"] == spoken.done["id"] == spoken.created["id"]
            assert spoken.started["sample_rate_hz"] == 24000
            assert spoken.n_samples == len(payload(spoken)) // 2
            assert spoken.audio_done["n_samples"] == spoken.n_samples
            assert spoken.audio_done["n_packets"] == len(spoken.frames)
            assert spoken.done["usage"]["n_input_characters"] == len(HELLO) + 1 + len(HOW)
            assert spoken.done["usage"]["n_frames"] == spoken.n_samples // 240
            assert spoken.done["timing"]["ttfa_ms"] > 0

    run(scenario)


def test_media_time_counts_packets_of_20_ms():
    async def scenario():
        async with gateway() as here, here.client() as client:
            spoken = await client.say(HELLO)
            assert [frame.media_time_ms for frame in spoken.frames] == [
                20 * n for n in range(len(spoken.frames))
            ]

    run(scenario)


def test_opus_says_how_much_to_skip_and_to_keep():
    async def scenario():
        async with gateway() as here, here.client() as client:
            spoken = await client.say(HELLO)
            assert spoken.started["codec"] == "opus"
            pcm = spoken.pcm()
            assert len(pcm) == spoken.n_samples == len(tone(HELLO))
            error = np.sum((pcm - tone(HELLO)) ** 2)
            # 20 dB: see test_coder.
            assert 10 * np.log10(np.sum(tone(HELLO) ** 2) / error) > 20

    run(scenario)


@pytest.mark.parametrize(
    "pieces", [list(f"{HELLO} {HOW}"), [f"{HELLO} How", " are you doing today?"]]
)
def test_audio_does_not_depend_on_the_deltas(pieces):
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            assert payload(await client.say(*pieces)) == pcm16_of(HELLO, HOW)

    run(scenario)


def test_speech_starts_before_the_text_ends():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            await client.send("input_text.append", text=f"{HELLO} And then ")
            await client.event("response.created")
            await client.event("response.output_audio.started")
            await client.receive()
            await client.send("input_text.append", text="it ends here.")
            await client.send("input_text.end")
            spoken = await done_of(client)
            assert spoken["status"] == "completed"

    run(scenario)


def test_flush_speaks_without_a_sentence_end():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("input_text.append", text="no sentence end")
            await client.send("input_text.flush")
            await client.event("response.created")
            await client.event("response.output_audio.started")
            await client.send("input_text.end")
            await done_of(client)
            assert [stream.text for stream in here.engine.streams] == ["no sentence end"]

    run(scenario)


def test_responses_follow_one_another_on_a_socket():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            for number, text in enumerate((HELLO, HOW, HELLO), start=1):
                spoken = await client.say(text)
                assert payload(spoken) == pcm16_of(text)
                assert spoken.done["number"] == number

    run(scenario)


def test_text_after_the_end_belongs_to_the_next_response_which_waits():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await as_pcm(client)
            await client.text(HELLO)
            await client.text(HOW)
            created = [(await client.event("response.created"))["response"] for _ in range(2)]
            assert [one["number"] for one in created] == [1, 2]
            await until(lambda: here.engine.streams)
            assert [stream.text for stream in here.engine.streams] == [HELLO]
            here.engine.finish()
            assert payload(await client.spoken()) == pcm16_of(HELLO)
            await until(lambda: here.engine.n_open)
            here.engine.finish()
            assert payload(await client.spoken()) == pcm16_of(HOW)

    run(scenario)


def test_the_queue_of_responses_is_bounded_and_says_so():
    config = replace(FAST_CONFIG, max_queued_responses=1)

    async def scenario():
        async with gateway(config, by_hand=True) as here, here.client() as client:
            for text in (HELLO, HOW):
                await client.text(text)
                await client.event("response.created")
            await client.send("input_text.append", text="one too many", event_id="mine")
            error = await client.error()
            assert (error["code"], error["event_id"]) == ("too_many_responses", "mine")
            for _ in range(2):
                await until(lambda: here.engine.n_open)
                here.engine.finish()
                assert (await client.spoken()).status == "completed"
            await client.text("room again")
            await until(lambda: here.engine.n_open)
            here.engine.finish()
            assert (await client.spoken()).status == "completed"

    run(scenario)


def test_the_number_on_the_wire_wraps():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.say("one")
            session = next(iter(here.server.gateway._sessions))
            session._n_responses = 0xFFFF
            spoken = await client.say("two")
            assert spoken.done["number"] == 0x1_0000
            assert {frame.response_number for frame in spoken.frames} == {0}

    run(scenario)


def test_metadata_comes_back_and_overrides_hold_for_one_response():
    async def scenario():
        async with gateway() as here, here.client() as client:
            overrides = {
                "voice": "bob",
                "options": {"seed": 5, "speed": 2},
                "output": {"codec": "pcm16"},
            }
            await client.send("response.create", response={**overrides, "metadata": {"k": "v"}})
            spoken = await client.say(HELLO)
            assert spoken.created["metadata"] == spoken.done["metadata"] == {"k": "v"}
            assert spoken.started["codec"] == "pcm16"
            request = here.engine.planned[0]
            assert (request.voice, request.seed, request.options) == ("bob", 5, {"speed": 2})
            assert here.engine.streams[0].seed == 5
            assert (await client.say(HELLO)).started["codec"] == "opus"
            assert here.engine.planned[1].voice is None

    run(scenario)


def test_the_session_says_what_is_in_force():
    async def scenario():
        async with gateway() as here, here.client() as client:
            assert client.session["model"] == "fake"
            assert client.session["voice"] == "ada"
            assert client.session["output"]["codec"] == "opus"
            assert client.session["limits"]["max_text_characters"] == 20_000
            changed = {"voice": "bob", "language": "de-AT", "options": {"speed": 1.5}}
            await client.send("session.update", session=changed)
            session = (await client.event("session.updated"))["session"]
            assert (session["voice"], session["language"]) == ("bob", "de")
            assert session["options"] == {"speed": 1.5}

    run(scenario)


BAD_SESSIONS = (
    ({"voice": 17}, "invalid_value", "session.voice"),
    ({"voice": "zoe"}, "unknown_voice", "session.voice"),
    ({"language": "fr"}, "unsupported_language", "session.language"),
    ({"model": "gpt"}, "unknown_model", "session.model"),
    ({"speed": 2}, "unknown_field", "session.speed"),
    ({"options": {"pitch": 2}}, "unknown_option", "session.options.pitch"),
    ({"options": {"speed": "x"}}, "invalid_type", "session.options.speed"),
    ({"output": {"sample_rate_hz": 16000}}, "invalid_value", "session.output.sample_rate_hz"),
)


def test_a_bad_field_refuses_the_whole_update_and_keeps_the_socket():
    async def scenario():
        async with gateway() as here, here.client() as client:
            for session, code, param in BAD_SESSIONS:
                update = {"options": {"style": "loud"}, **session}
                await client.send("session.update", session=update, event_id="u1")
                error = await client.error()
                assert (error["code"], error["param"], error["event_id"]) == (code, param, "u1")
            await client.send("session.update", session={})
            assert (await client.event("session.updated"))["session"] == client.session
            assert (await client.say(HELLO)).status == "completed"

    run(scenario)


def test_two_sessions_do_not_touch_each_other():
    async def scenario():
        async with gateway() as here, here.client() as one, here.client() as other:
            await as_pcm(one)
            await one.send("session.update", session={"voice": "bob"})
            await one.event("session.updated")
            await as_pcm(other)
            await one.text(HELLO, " ", HOW)
            await other.text(HOW)
            mine, theirs = await asyncio.gather(one.spoken(), other.spoken())
            assert payload(mine) == pcm16_of(HELLO, HOW)
            assert payload(theirs) == pcm16_of(HOW)
            voices = {request.text: request.voice for request in here.engine.planned}
            assert voices[HELLO] == "bob"
            await one.send("response.cancel")
            assert (await one.error())["code"] == "response_cancel_not_active"
            assert other.session["id"] != one.session["id"]

    run(scenario)


@settings(deadline=None, max_examples=1)
@given(
    messages=st.lists(
        st.one_of(
            st.text(max_size=20),
            st.binary(max_size=20),
            st.builds(
                lambda kind, fields: json.dumps({"type": kind, **fields}),
                st.sampled_from(
                    [
                        *("session.update", "response.create", "input_text.append"),
                        *("input_text.flush", "input_text.end", "response.cancel"),
                        *("output_audio.playout", "nope"),
                    ]
                ),
                st.dictionaries(
                    st.sampled_from(["text", "session", "response", "response_id", "heard_ms"]),
                    st.one_of(st.text(max_size=12), st.integers(), st.none(), st.just({})),
                    max_size=2,
                ),
            ),
        ),
        min_size=150,
        max_size=150,
    )
)
def test_a_socket_survives_anything(messages):
    async def scenario():
        async with gateway() as here, here.client() as client:
            for message in messages:
                await client.socket.send(message)
            await client.send("input_text.end")
            await client.send("session.update", session={"voice": "bob"}, event_id="last")
            n_done = n_created = 0
            while True:
                event = await client.receive()
                kind = event["type"] if isinstance(event, dict) else "audio"
                n_created += kind == "response.created"
                n_done += kind == "response.done"
                if kind == "session.updated" and event["session"]["voice"] == "bob":
                    break
            while n_done < n_created:
                event = await client.receive()
                n_done += isinstance(event, dict) and event["type"] == "response.done"
            assert (await client.say(HELLO)).status == "completed"

    run(scenario)
