"""Text on its way to the engine: to models that take it whole, and to those that take a stream."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest

from models.errors import PlanError
from models.spec import OptionSpec, SamplingParams
from realtime.bridge import EngineBridge, EventRelay
from realtime.playout import PlayoutClock
from realtime.settings import SpeechSettings
from realtime.speech.segments import speech_budget_s
from realtime.speech.speaker import Speaker
from realtime.workers import Workers
from tests.fakes import RATE_HZ, FakeEngine, fake_spec, tone
from tests.realtime.harness import FAST_CONFIG, gateway, run, until
from tests.realtime.test_wire_cases import closed

STREAMING = fake_spec(text_capacity=64)
PCM = {"output": {"codec": "pcm16"}}


async def say(here, *pieces):
    async with here.client() as client:
        await client.send("response.create", response=PCM)
        return await client.say(*pieces)


def test_a_streaming_model_gets_words_as_they_come_in_one_stream():
    async def scenario():
        async with gateway(spec=STREAMING) as here, here.client() as client:
            await client.send("response.create", response=PCM)
            await client.send("input_text.append", text="Streamed wor")
            await until(lambda: here.engine.streams)
            stream = here.engine.streams[0]
            assert (stream.text, stream.is_text_final) == ("Streamed", False)
            await client.send("input_text.append", text="ds are who")
            await until(lambda: stream.text == "Streamed words are")
            await client.send("input_text.append", text="le.")
            await client.send("input_text.end")
            spoken = await client.spoken()
            assert (stream.text, stream.is_text_final) == ("Streamed words are whole.", True)
            assert spoken.n_samples == len(tone("Streamed words are whole."))
            assert len(here.engine.streams) == 1

    run(scenario)


def test_a_streaming_model_is_never_given_more_than_it_holds():
    async def scenario():
        async with gateway(spec=STREAMING) as here:
            text = "words and more words " * 20
            spoken = await say(here, text)
            texts = [stream.text for stream in here.engine.streams]
            assert max(map(len, texts)) <= 64
            assert "".join(texts).split() == text.split()
            assert spoken.status == "completed"
            assert spoken.n_samples == sum(len(tone(one)) for one in texts)

    run(scenario)


def test_a_streaming_model_waits_for_words_that_are_slow_to_come():
    """Its silence is not the engine's: a language model may think for longer than that."""
    config = replace(FAST_CONFIG, engine_silence_s=0.5)

    async def scenario():
        async with gateway(config, spec=STREAMING) as here, here.client() as client:
            await client.send("response.create", response=PCM)
            await client.send("input_text.append", text="Well, ")
            await until(lambda: here.engine.streams)
            await asyncio.sleep(1.2)
            await client.send("input_text.append", text="here I am.")
            await client.send("input_text.end")
            spoken = await client.spoken()
            assert (spoken.status, len(here.engine.streams)) == ("completed", 1)

    run(scenario)


def test_a_streaming_model_that_is_silent_with_all_its_words_fails_the_response():
    config = replace(FAST_CONFIG, engine_silence_s=0.1)

    async def scenario():
        async with gateway(config, spec=STREAMING) as here:
            spoken = await say(here, "All of it, silent.")
            assert spoken.done["status_details"]["reason"] == "engine_timeout"

    run(scenario)


def test_text_that_never_ends_holds_no_stream_for_ever():
    """The open stream of a streaming model counted as work: its socket was never idle."""
    config = replace(FAST_CONFIG, engine_silence_s=0.1, idle_timeout_s=0.5)

    async def scenario():
        async with gateway(config, spec=STREAMING) as here, here.client() as client:
            await client.send("input_text.append", text="Well, ")
            await until(lambda: here.engine.streams)
            assert await closed(client) == (1000, "idle for 0.5 s")
            await until(lambda: here.engine.streams[0].is_over)

    run(scenario)


def test_a_break_ends_a_stream_of_a_streaming_model():
    async def scenario():
        async with gateway(spec=STREAMING) as here:
            spoken = await say(here, "Wait <bre", 'ak time="100ms"/>n', "ow.")
            assert [stream.text.strip() for stream in here.engine.streams] == ["Wait", "now."]
            assert all(stream.is_text_final for stream in here.engine.streams)
            n_spoken = sum(len(tone(stream.text)) for stream in here.engine.streams)
            assert spoken.n_samples == n_spoken + 2400

    run(scenario)


def test_nothing_to_speak_opens_no_stream_of_a_streaming_model():
    async def scenario():
        async with gateway(spec=STREAMING) as here:
            assert (await say(here, "... ", "!")).n_samples == 0
            assert here.engine.streams == []

    run(scenario)


def test_units_draw_from_their_own_seeds_and_the_same_again():
    async def scenario():
        async with gateway() as here, here.client() as client:
            seeds = []
            for _ in range(2):
                await client.send("response.create", response={"options": {"seed": 2**63 - 1}})
                await client.say("This is a sentence. ", "This is another one.")
                seeds.append([stream.seed for stream in here.engine.streams])
                here.engine.streams.clear()
            assert seeds[0] == seeds[1]
            assert len(set(seeds[0])) == 2
            assert all(0 <= seed < 2**63 for seed in seeds[0])

    run(scenario)


def test_a_unit_in_which_the_model_finds_nothing_is_passed_over():
    async def scenario():
        async with gateway() as here:
            # A letter to us, nothing to the model: the fake's rule is `isalnum`.
            spoken = await say(here, "\N{COMBINING CYRILLIC MILLIONS SIGN}. Then something real.")
            assert spoken.status == "completed"

    run(scenario)


def test_a_unit_that_the_model_finds_too_long_is_spoken_in_parts(monkeypatch):
    """Thirty Roman numerals failed the response: a spelled letter has three sounds."""

    async def scenario():
        async with gateway() as here:
            plan = here.engine.plan

            def narrow(request):
                if len(request.text) > 12:
                    raise PlanError("prompt_too_long", "at most 12 characters", "text")
                return plan(request)

            monkeypatch.setattr(here.engine, "plan", narrow)
            spoken = await say(here, "MCMXC MDCCC and CDXLIV, unbrokenandlong.")
            texts = [stream.text for stream in here.engine.streams]
            assert spoken.status == "completed"
            assert "".join(" ".join(texts).split()) == "MCMXCMDCCCandCDXLIV,unbrokenandlong."
            assert max(map(len, texts)) <= 12
            assert spoken.n_samples == sum(len(tone(one)) for one in texts)

    run(scenario)


def test_a_unit_that_is_too_long_at_any_length_fails_the_response(monkeypatch):
    async def scenario():
        async with gateway() as here:

            def never(request):
                raise PlanError("prompt_too_long", "at most 0 characters", "text")

            monkeypatch.setattr(here.engine, "plan", never)
            spoken = await say(here, "Some words.")
            assert spoken.done["status_details"]["reason"] == "prompt_too_long"

    run(scenario)


@pytest.mark.parametrize(
    ("languages", "language", "given_"),
    [
        (("en",), None, "It costs four dollars."),
        (("en", "de"), "en", "It costs four dollars."),
        (("en", "de"), "de", "It costs $4."),
        (("en", "de"), None, "It costs $4."),
        ((), None, "It costs $4."),
    ],
)
def test_figures_are_read_where_the_language_is_known(languages, language, given_):
    async def scenario():
        async with gateway(spec=fake_spec(languages=languages)) as here, here.client() as client:
            patch = {} if language is None else {"language": language}
            await client.send("response.create", response=patch)
            assert (await client.say("It costs $4.")).status == "completed"
            assert [request.text for request in here.engine.planned] == [given_]

    run(scenario)


def test_streamed_words_are_given_as_they_are_written():
    async def scenario():
        spec = fake_spec(languages=("en",), text_capacity=64)
        async with gateway(spec=spec) as here:
            await say(here, "$4 or $5", ".50 now.")
            assert here.engine.streams[0].text == "$4 or $5.50 now."

    run(scenario)


def test_with_an_option_that_wants_it_whole_the_text_goes_in_units():
    words = OptionSpec(name="words", kind="string", default=None, description="")
    spec = fake_spec(text_capacity=64, options=(words,), whole_text_options=("words",))

    async def scenario():
        async with gateway(spec=spec) as here, here.client() as client:
            await client.send("response.create", response={"options": {"words": "mine"}})
            await client.say("One long sentence here. And another one there.")
            assert [(one.text, one.is_text_final) for one in here.engine.planned] == [
                ("One long sentence here.", True),
                ("And another one there.", True),
            ]

    run(scenario)


@pytest.mark.parametrize("capacity", [0, 64], ids=["units", "stream"])
def test_a_model_is_given_the_tags_that_it_makes_sounds_of_and_no_others(capacity):
    async def scenario():
        async with gateway(spec=fake_spec(sound_tags=("laugh",), text_capacity=capacity)) as here:
            await say(here, "Well <laugh> it is <em>late</em>.")
            assert here.engine.streams[0].text == "Well <laugh> it is late."

    run(scenario)


def test_a_setting_that_the_sampler_cannot_take_is_the_callers_fault_and_is_named(monkeypatch):
    """A repetition window of 257 rows failed the stream as an error of the model."""

    async def scenario():
        async with gateway() as here:
            plan = here.engine.plan

            def trusting(request):
                if "wide" in request.text:
                    SamplingParams(repetition_window=257)
                return plan(request)

            monkeypatch.setattr(here.engine, "plan", trusting)
            spoken = await say(here, "Look wide back.")
            error = spoken.done["status_details"]["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
            assert "repetition_window is 257, must be between 0 and 256" in error["message"]
            assert (await say(here, "Fine.")).status == "completed"

    run(scenario)


def test_a_long_pause_waits_for_its_reader_and_can_be_cancelled():
    text = '<break time="10s"/>' * 100

    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.text(text)
            await until(lambda: here.sample("parley_packets_sent_total", codec="opus") > 50)
            await client.send("response.cancel")
            spoken = await client.spoken()
            assert spoken.status == "cancelled"
            assert spoken.n_samples < 24_000 * 1000

    run(scenario)


def test_audio_is_bounded_however_much_is_asked():
    async def scenario():
        async with gateway(replace(FAST_CONFIG, max_audio_s=1.0)) as here:
            spoken = await say(here, '<break time="10s"/>' * 3)
            assert (spoken.status, spoken.n_samples) == ("incomplete", 24_000)

    run(scenario)


@pytest.mark.parametrize("spec", [fake_spec(), STREAMING], ids=["units", "stream"])
def test_a_model_that_never_stops_is_cut_and_the_next_unit_is_spoken(spec, monkeypatch):
    """A minute of gibberish was sent for three words, as long as the model said more."""
    first, second = "This one is lost.", "This one is not."

    async def scenario():
        async with gateway(spec=spec, chunk_samples=RATE_HZ // 10, step_s=0.001) as here:
            endless = np.zeros(600 * RATE_HZ, np.float32)
            monkeypatch.setattr(
                here.engine, "tone", lambda text: endless if first in text else tone(text)
            )
            spoken = await say(here, f"{first}<break time='0.1s'/>{second}")
            assert spoken.done["status"] == "incomplete"
            assert spoken.done["status_details"]["reason"] == "max_frames"
            n_rest = len(tone(second)) + RATE_HZ // 10
            lasted_s = (spoken.n_samples - n_rest) / RATE_HZ
            assert 0 <= lasted_s - speech_budget_s(first, 1.0) < 0.2
            lost = here.engine.streams[0]
            await until(lambda: lost.is_over)
            assert lost.is_aborted

    run(scenario)


def test_an_answer_is_not_cut_by_the_length_of_what_it_answers(monkeypatch):
    async def scenario():
        async with gateway(spec=fake_spec(tasks=("converse",))) as here:
            n_samples = round(3 * speech_budget_s("Why?", 1.0) * RATE_HZ)
            monkeypatch.setattr(here.engine, "tone", lambda text: np.zeros(n_samples, np.float32))
            spoken = await say(here, "Why?")
            assert (spoken.status, spoken.n_samples) == ("completed", n_samples)

    run(scenario)


def test_a_model_that_waits_for_words_is_not_cut_before_it_has_them_all(monkeypatch):
    async def scenario():
        async with gateway(spec=STREAMING) as here:
            n_samples = round(speech_budget_s("Well,", 1.0) * RATE_HZ) + RATE_HZ // 2
            monkeypatch.setattr(here.engine, "tone", lambda text: np.zeros(n_samples, np.float32))
            spoken = await say(here, "Well, ", "here I am.")
            assert (spoken.status, spoken.n_samples) == ("completed", n_samples)

    run(scenario)


def test_a_stream_that_ends_as_its_response_is_aborted_ends_once():
    """The listener had its last chunk in hand; it then failed, and the log called it a bug."""

    async def scenario():
        relay = EventRelay()
        relay.attach(asyncio.get_running_loop())
        engine, workers = FakeEngine(relay), Workers(1)
        speaker = Speaker(
            bridge=EngineBridge(engine, relay),
            settings=SpeechSettings(model="fake"),
            seed=1,
            workers=workers,
            config=FAST_CONFIG,
            clock=time.monotonic,
            playout=PlayoutClock(),
        )
        speaker.append("Hello there.")
        speaker.end()
        running = asyncio.create_task(speaker.run())
        segment = await speaker.next_segment()
        speaker.abort()
        speaker.on_ended(segment)
        speaker.cut(segment)
        await running
        workers.close()

    run(scenario)
