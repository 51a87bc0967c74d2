"""How a response ends: cancelled at any stage, failed by name, cut, or whole to the sample."""

from dataclasses import replace

import pytest

from tests.fakes import fake_spec
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


def test_cancel_while_the_engine_works():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await as_pcm(client)
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            here.engine.step()
            await client.event("response.created")
            await client.event("response.output_audio.started")
            frame = await client.receive()
            assert len(frame.payload) == 960
            await client.send("response.cancel")
            await until(lambda: here.engine.streams[0].is_aborted)
            done = await done_of(client)
            assert done["status"] == "cancelled"
            assert done["status_details"]["reason"] == "client_cancelled"
            here.engine.step()
            assert here.engine.n_open == 0

    run(scenario)


def test_a_cancelled_response_counts_exactly_what_was_sent():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await as_pcm(client)
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            here.engine.step()
            await until(lambda: here.sample("parley_packets_sent_total", codec="pcm16") == 4)
            await client.send("response.cancel")
            spoken = await client.spoken()
            assert spoken.status == "cancelled"
            assert spoken.n_samples == len(payload(spoken)) // 2 == 4 * 480
            assert spoken.audio_done["n_packets"] == len(spoken.frames) == 4

    run(scenario)


def test_cancel_before_any_sound_and_before_any_text():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await client.send("response.create")
            await client.send("response.cancel")
            assert (await client.spoken()).status == "cancelled"
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            await client.send("response.cancel")
            spoken = await client.spoken()
            assert (spoken.status, spoken.frames, spoken.n_samples) == ("cancelled", [], 0)

    run(scenario)


def test_a_waiting_response_can_be_cancelled_by_its_id():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await client.text(HELLO)
            await client.event("response.created")
            await client.text(HOW)
            second = (await client.event("response.created"))["response"]
            await client.send("response.cancel", response_id=second["id"])
            assert (await client.event("response.done"))["response"]["status"] == "cancelled"
            await until(lambda: here.engine.streams)
            here.engine.finish()
            spoken = await client.spoken()
            assert (spoken.status, spoken.done["number"]) == ("completed", 1)
            assert len(here.engine.streams) == 1

    run(scenario)


def test_text_after_a_cancel_starts_anew():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            await client.send("input_text.append", text="This is dropped")
            await client.send("response.cancel")
            assert (await client.spoken()).status == "cancelled"
            assert payload(await client.say(HELLO)) == pcm16_of(HELLO)

    run(scenario)


@pytest.mark.parametrize("fields", [{}, {"response_id": "resp_x"}])
def test_cancel_with_nothing_active_is_an_error_that_harms_nothing(fields):
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("response.cancel", event_id="c1", **fields)
            error = await client.error()
            assert error["code"] == "response_cancel_not_active"
            assert error["message"].startswith("Cancellation failed")
            assert error["event_id"] == "c1"
            assert (await client.say(HELLO)).status == "completed"

    run(scenario)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Please plancrash now.", "model_error"),
        ("This will streamfail soon.", "numerical_error"),
        ("An overload is here.", "overloaded"),
        ("Now skipchunk one of them.", "model_error"),
        ("Привет, как дела?", "unsupported_script"),
    ],
)
def test_a_failure_ends_the_response_by_name_and_keeps_the_socket(text, code):
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            spoken = await client.say(f"{HELLO} ", f"{text} ", HOW)
            assert spoken.status == "failed"
            assert spoken.done["status_details"]["error"]["code"] == code
            if code == "overloaded":
                assert spoken.done["status_details"]["retry_after_s"] == 1.5
            if code == "unsupported_script":
                assert "Cyrillic" in spoken.done["status_details"]["error"]["message"]
            assert spoken.n_samples == len(payload(spoken)) // 2
            assert payload(await client.say(HOW)) == pcm16_of(HOW)

    run(scenario)


def test_text_of_a_response_that_failed_falls_until_its_end():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("input_text.append", text="An overload is here. ")
            assert (await client.spoken()).status == "failed"
            await client.send("input_text.append", text="More of the same. ")
            assert (await client.error())["code"] == "response_ended"
            await client.send("input_text.append", text="And more. ")
            await client.send("input_text.end")
            assert (await client.say(HELLO)).status == "completed"
            assert [stream.text for stream in here.engine.streams][-1] == HELLO

    run(scenario)


def test_a_silent_engine_fails_the_response_in_time():
    config = replace(FAST_CONFIG, engine_silence_s=0.05)

    async def scenario():
        async with gateway(config) as here, here.client() as client:
            spoken = await client.say("This stays silent for ever.")
            assert spoken.done["status_details"]["error"]["code"] == "engine_timeout"

    run(scenario)


def test_an_engine_crash_is_told_and_readiness_turns_red():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            here.engine.crash("CUDA error")
            spoken = await client.spoken()
            assert spoken.done["status_details"]["error"]["code"] == "engine_stopped"
            assert (await here.http("/healthz"))[0] == 503
            assert (await here.http("/readyz"))[0] == 503
            spoken = await client.say(HOW)
            assert spoken.done["status_details"]["error"]["code"] == "engine_stopped"

    run(scenario)


def test_a_stream_cut_by_length_makes_the_response_incomplete_and_the_rest_is_spoken():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            spoken = await client.say("This goes on toolong here. ", HOW)
            assert spoken.status == "incomplete"
            assert spoken.done["status_details"]["reason"] == "max_frames"
            assert payload(spoken).endswith(pcm16_of(HOW))

    run(scenario)


@pytest.mark.parametrize("codec", ["pcm16", "opus"])
def test_max_seconds_cuts_to_the_sample(codec):
    async def scenario():
        async with gateway() as here, here.client() as client:
            response = {"options": {"max_seconds": 0.1}, "output": {"codec": codec}}
            await client.send("response.create", response=response)
            spoken = await client.say(HELLO)
            assert spoken.done["status_details"]["reason"] == "max_seconds"
            assert spoken.n_samples == len(spoken.pcm()) == 2_400
            assert here.engine.planned[0].max_seconds == 0.1
            assert spoken.done["usage"]["n_frames"] >= 10, "of the unit that was broken off"

    run(scenario)


def test_a_break_is_silence_of_its_length():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await as_pcm(client)
            spoken = await client.say('Wait<break time="500ms"/>now.')
            assert payload(spoken) == pcm16_of("Wait") + bytes(24_000) + pcm16_of("now.")

    run(scenario)


def test_resampled_output_has_the_announced_length():
    async def scenario():
        spec = fake_spec(rate_hz=22050, frame_samples=210)
        async with gateway(spec=spec) as here, here.client() as client:
            spoken = await client.say(HELLO)
            n_model = len(here.engine.tone(HELLO))
            assert spoken.started["sample_rate_hz"] == 24000
            assert spoken.n_samples == len(spoken.pcm()) == round(n_model * 24000 / 22050)
            response = {"output": {"codec": "pcm16", "sample_rate_hz": 8000}}
            await client.send("response.create", response=response)
            spoken = await client.say(HELLO)
            assert spoken.n_samples == len(spoken.pcm()) == round(n_model * 8000 / 22050)

    run(scenario)
