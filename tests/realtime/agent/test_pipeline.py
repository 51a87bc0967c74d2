"""Replies through all stages: streaming, failing, and ending at any moment without a trace."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import PlanError
from realtime.agent.base import (
    AudioDelta,
    FunctionCall,
    Message,
    ReplyDone,
    ReplyRequest,
    StageFailed,
    TextDelta,
    Tool,
    TranscriptCompleted,
)
from realtime.agent.errors import StageError
from realtime.agent.outbox import MAX_WAITING_S
from realtime.agent.pipeline import PipelineAgent, PipelineReply, Stages
from realtime.agent.text_model import TextDone, TextFacts
from realtime.agent.transcriber import LocalTranscriber
from realtime.bridge import EngineBridge, EventRelay
from realtime.config import GatewayConfig
from realtime.playout import PlayoutClock
from realtime.workers import Workers
from tests.fakes import RATE_HZ, FakeEngine, fake_spec, tone
from tests.realtime.agent.fakes import SECOND, FakeEar, FakeTextModel, all_of
from tests.realtime.harness import run, until

HELLO = Message(item_id="u1", role="user", text="Hello?")
ASKED = ReplyRequest(items=(HELLO,), seed=5, asked_s=0.0)


def text(*pieces: str) -> list[TextDelta]:
    return [TextDelta(text=one) for one in pieces]


@dataclass
class Bench:
    """A pipeline on a fake engine and a scripted text model."""

    agent: PipelineAgent
    engine: FakeEngine
    relay: EventRelay
    text_model: FakeTextModel
    ear: FakeEar

    def reply(self, **changes) -> PipelineReply:
        return self.agent.reply(replace(ASKED, **changes), PlayoutClock())


@asynccontextmanager
async def bench(*events: object, by_hand: bool = False, **options) -> AsyncIterator[Bench]:
    """At its end nothing of any reply may be left: no task, no stream, no open text."""
    facts = options.pop("facts", None)
    config = GatewayConfig(**options.pop("config", {}))
    relay = EventRelay()
    relay.attach(asyncio.get_running_loop())
    engine = FakeEngine(relay, **options)
    text_model = FakeTextModel(*events, facts=facts)
    workers = Workers(1)
    ear = FakeEar()
    stages = Stages(
        transcriber=LocalTranscriber(ear),
        text_model=text_model,
        bridge=EngineBridge(engine, relay),
        workers=workers,
        config=config,
        clock=time.monotonic,
    )
    agent = PipelineAgent("talker", stages)
    if not by_hand:
        engine.start()
    try:
        yield Bench(agent, engine, relay, text_model, ear)
        if by_hand:
            await until(lambda: not engine.step())
        await until(lambda: not engine.n_open and not relay.n_streams)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert text_model.n_open == 0
    finally:
        await agent.close()
        engine.stop()
        workers.close()
    assert text_model.is_closed


async def read(reply: PipelineReply) -> list[object]:
    told = []
    while (event := await reply.next_event()) is not None:
        told.append(event)
    return told


def told_of(*events: object, request: dict | None = None, **options) -> tuple[list[object], Bench]:
    """All that a reply tells."""

    async def scenario():
        async with bench(*events, **options) as here:
            return await read(here.reply(**request or {})), here

    return run(scenario)


def written(told: list[object]) -> str:
    return "".join(event.text for event in told if isinstance(event, TextDelta))


def spoken(told: list[object]) -> np.ndarray:
    chunks = [event.pcm for event in told if isinstance(event, AudioDelta)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)


def tones(*units: str) -> np.ndarray:
    return np.concatenate([tone(unit) for unit in units])


def test_what_is_recited_is_spoken_as_an_answer_is_and_asks_no_text_model():
    async def scenario():
        async with bench() as here:
            reciting = here.agent.reciting("and four. Five, six.")
            told = await read(reciting.reply(ASKED, PlayoutClock()))
            assert written(told) == "and four. Five, six."
            assert np.array_equal(spoken(told), tones("and four.", "Five, six."))
            assert isinstance(told[-1], ReplyDone)
            assert told[-1].reason == "stop"
            assert here.text_model.n_opened == 0
            assert reciting.spec is here.agent.spec

    run(scenario)


def test_an_answer_is_written_and_spoken_unit_by_unit():
    told, here = told_of(*text("Good mor", "ning. How are", " you today?"))
    assert written(told) == "Good morning. How are you today?"
    assert np.array_equal(spoken(told), tones("Good morning.", "How are you today?"))
    done = told[-1]
    assert isinstance(done, ReplyDone)
    assert (done.reason, done.n_input_tokens, done.n_output_tokens) == ("stop", 5, 2)
    assert done.n_frames == len(spoken(told)) // 240
    assert list(done.stage_ms) == ["text_model", "first_clause", "speech_model"]
    assert list(done.stage_ms.values()) == sorted(done.stage_ms.values())
    assert here.text_model.n_opened == 1


def test_the_first_clause_is_spoken_while_the_rest_is_being_written():
    async def scenario():
        more = asyncio.Event()
        async with bench(*text("Well, of course, I "), more, *text("can.")) as here:
            reply = here.reply()
            assert await reply.next_event() == TextDelta(text="Well, of course, I ")
            pcm = np.zeros(0, np.float32)
            while len(pcm) < len(tone("Well, of course,")):
                event = await reply.next_event()
                assert isinstance(event, AudioDelta)
                pcm = np.concatenate([pcm, event.pcm])
            assert np.array_equal(pcm, tone("Well, of course,"))
            more.set()
            assert isinstance((await read(reply))[-1], ReplyDone)

    run(scenario)


def test_a_whole_first_sentence_is_spoken_while_the_second_is_being_written():
    async def scenario():
        more = asyncio.Event()
        said = [*text("Good morning. How ", "are"), more, *text(" you?")]
        async with bench(*said, facts=TextFacts(name="small", reply_tokens=40)) as here:
            reply = here.reply()
            while not isinstance(await reply.next_event(), AudioDelta):
                pass
            assert not more.is_set()
            more.set()
            told = await read(reply)
            assert len(here.engine.streams) == 2
            assert isinstance(told[-1], ReplyDone)

    run(scenario)


def test_audio_tells_how_much_of_the_text_it_speaks():
    said = "Good morning. How are you today?"
    told, _ = told_of(*text(said), chunk_samples=480)
    places = [event.text_end for event in told if isinstance(event, AudioDelta)]
    assert places == sorted(places)
    assert places[-1] == len(said)
    first = [event for event in told if isinstance(event, AudioDelta)]
    n_samples = np.cumsum([len(event.pcm) for event in first])
    at_break = int(np.searchsorted(n_samples, len(tone("Good morning."))))
    # Within the chunk in which the second unit begins, which speaks two characters.
    assert abs(places[at_break] - len("Good morning.")) <= 3


def test_a_unit_in_which_the_model_finds_nothing_leaves_the_places_right():
    """What was said to be spoken lagged behind by the length of what was passed over."""
    said = "Silent one here. How are you today?"

    async def scenario():
        async with bench(*text(said), chunk_samples=480) as here:
            plan = here.engine.plan

            def deaf(request):
                if "Silent" in request.text:
                    raise PlanError("empty_text", "nothing to speak", "text")
                return plan(request)

            here.engine.plan = deaf
            told = await read(here.reply())
            places = [event.text_end for event in told if isinstance(event, AudioDelta)]
            assert said.index("How") <= places[0] < said.index("are")
            assert places[-1] == len(said)

    run(scenario)


def test_a_reply_in_text_alone_asks_nothing_of_the_speech_model():
    told, here = told_of(*text("Good morning."), request={"wants_audio": False})
    assert written(told) == "Good morning."
    assert here.engine.planned == []
    assert list(told[-1].stage_ms) == ["text_model", "first_clause"]


def test_an_answer_without_words_is_complete_and_silent():
    told, here = told_of()
    assert told == [replace(ReplyDone(), n_input_tokens=5, n_output_tokens=2)]
    assert here.engine.streams == []


def test_voice_language_and_options_reach_the_speech_model():
    request = {"voice": "bob", "language": "de", "options": {"speed": 2.0}, "max_seconds": 3.0}
    _, here = told_of(*text("Good morning."), request=request)
    (plan,) = here.engine.planned
    assert (plan.voice, plan.language, plan.max_seconds) == ("bob", "de", 3.0)
    assert plan.options == {"speed": 2.0}


def test_the_prompt_is_the_conversation_under_the_instructions():
    facts = TextFacts(name="fake", instructions="By default.", reply_tokens=40)
    _, here = told_of(*text("Hi."), facts=facts)
    (request,) = here.text_model.requests
    assert [one.text for one in request.messages] == ["By default.", "Hello?"]
    assert (request.max_tokens, request.seed, request.tools) == (40, 5, ())
    asked = {"instructions": "Be rude.", "max_output_tokens": 7}
    _, here = told_of(*text("Hi."), facts=facts, request=asked)
    (request,) = here.text_model.requests
    assert [one.text for one in request.messages] == ["Be rude.", "Hello?"]
    assert request.max_tokens == 7


def test_calls_are_passed_on_by_a_model_that_makes_them():
    facts = TextFacts(name="fake", calls_tools=True)
    tool = Tool(name="weather")
    call = FunctionCall(call_id="c1", name="weather", arguments="{}")
    request = {"tools": (tool,), "tool_choice": "required"}
    told, here = told_of(*text("Let me see."), call, facts=facts, request=request)
    assert call in told
    assert isinstance(told[-1], ReplyDone)
    assert here.text_model.requests[0].tools == (tool,)
    assert here.agent.calls_tools


SMALL = TextFacts(name="small", reply_tokens=40)
LENGTH = TextDone(reason="length", n_input_tokens=1, n_output_tokens=40)


@pytest.mark.parametrize(
    ("said", "limit", "left", "reason"),
    [
        ("It is late. You should", None, "It is late. ", "stop"),
        ("It is late. You should.", None, "It is late. You should.", "stop"),
        ("It is so very late", None, "It is so very late", "length"),
        ("It is late. You should", 40, "It is late. You should", "length"),
    ],
)
def test_a_limit_of_ours_cuts_at_a_sentence_and_one_of_the_client_where_it_falls(
    said: str, limit: int | None, left: str, reason: str
):
    request = {"max_output_tokens": limit}
    told, _ = told_of(*text(said), LENGTH, facts=SMALL, request=request)
    assert written(told) == left
    assert told[-1].reason == reason


def test_a_small_model_that_says_the_same_again_is_stopped():
    never = asyncio.Event()
    said = text("I am glad. ", "So it is. ", "I am glad. ", "So it")
    told, here = told_of(*said, never, facts=SMALL)
    assert written(told) == "I am glad. So it is. "
    assert told[-1].reason == "stop"
    assert here.text_model.n_open == 0


def test_a_model_that_knows_when_to_stop_is_passed_on_as_it_writes():
    told, _ = told_of(*text("Yes. ", "It ", "is. ", "Yes. "))
    assert [one.text for one in told if isinstance(one, TextDelta)] == [
        "Yes. ",
        "It ",
        "is. ",
        "Yes. ",
    ]


def test_the_text_model_waits_for_the_first_sound_and_no_longer():
    said = text("Good morning. ", "How are you?", " I am fine.")
    _, here = told_of(*said)
    assert here.text_model.brakes == [True, False]
    _, here = told_of(*said, request={"wants_audio": False})
    assert here.text_model.brakes == []


# NOTE: real time, half a second: the first sound does not come, and the text goes on.
def test_a_sound_that_does_not_come_holds_the_text_model_for_a_moment_only():
    async def scenario():
        async with bench(*text("Good morning. And "), asyncio.Event(), by_hand=True) as here:
            reply = here.reply()
            await until(lambda: here.text_model.brakes == [True, False])
            reply.cancel()

    run(scenario)


def test_an_answer_is_bounded_however_much_is_written():
    told, here = told_of(*text(*["word. "] * 100), config={"max_text_characters": 100})
    assert len(written(told)) == 100
    assert told[-1].reason == "length"
    assert here.text_model.n_open == 0


def test_a_model_that_takes_a_stream_of_text_gets_it_as_it_is_written():
    told, here = told_of(*text("Good mor", "ning to", " you."), spec=fake_spec(text_capacity=64))
    assert [stream.text for stream in here.engine.streams] == ["Good morning to you."]
    assert len(spoken(told)) == len(tone("Good morning to you."))
    places = [event.text_end for event in told if isinstance(event, AudioDelta)]
    assert places == sorted(places)
    assert places[-1] <= len("Good morning to you.")


FAILURES = [
    ([StageError("endpoint_timeout", "too slow", 2.0)], "text_model", "endpoint_timeout"),
    ([*text("Good morning. "), StageError("bad_response", "no")], "text_model", "bad_response"),
    ([RuntimeError("a bug")], "text_model", "model_error"),
    (text("This is a streamfail."), "speech_model", "numerical_error"),
    (text("This is an overload."), "speech_model", "overloaded"),
    (text("This is a plancrash."), "speech_model", "model_error"),
    (text("Das ist \N{CJK UNIFIED IDEOGRAPH-4E2D}."), "speech_model", "unsupported_script"),
    (text("This must skipchunk, I am sure."), "speech_model", "model_error"),
]


@pytest.mark.parametrize(("events", "stage", "code"), FAILURES)
def test_a_failing_stage_is_named_and_ends_the_others(events, stage: str, code: str):
    async def scenario():
        never = asyncio.Event()
        held = events if stage == "text_model" else [*events, *text(" And more to come. "), never]
        async with bench(*held) as here:
            told = await read(here.reply())
            assert isinstance(told[-1], StageFailed)
            assert (told[-1].stage, told[-1].code) == (stage, code)
            assert not [one for one in told if isinstance(one, ReplyDone)]

    run(scenario)


def test_a_failure_says_when_to_come_again():
    told, _ = told_of(*text("This is an overload."))
    assert told[-1].retry_after_s == 1.5


def test_an_engine_that_dies_is_a_named_failure():
    async def scenario():
        async with bench(*text("Good morning. "), asyncio.Event(), by_hand=True) as here:
            reply = here.reply()
            await until(lambda: here.engine.streams)
            here.engine.crash("CUDA error")
            failed = (await read(reply))[-1]
            assert isinstance(failed, StageFailed)
            assert (failed.stage, failed.code) == ("speech_model", "engine_stopped")

    run(scenario)


def test_a_cancel_stops_all_stages_and_nothing_is_told_after():
    async def scenario():
        held = asyncio.Event()
        async with bench(*text("Good morning. And "), held, chunk_samples=240) as here:
            reply = here.reply()
            while not isinstance(await reply.next_event(), AudioDelta):
                pass
            reply.cancel()
            assert await reply.next_event() is None
            reply.cancel()
            held.set()
            assert await reply.next_event() is None
            await until(lambda: not here.engine.n_open and not here.text_model.n_open)

    run(scenario)


def test_a_cancel_after_the_end_changes_nothing():
    async def scenario():
        async with bench(*text("Good morning.")) as here:
            reply = here.reply()
            assert isinstance((await read(reply))[-1], ReplyDone)
            reply.cancel()
            assert await reply.next_event() is None

    run(scenario)


# Every moment: each step of the event loop, with the engine's step at every other one, from
# before the reply's first step to after its end.
@pytest.mark.parametrize("n_steps", [*range(40), 60, 90, 150])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_cancel_at_any_moment_leaves_nothing(n_steps: int, is_read: bool):
    async def scenario():
        pieces = text("Good mor", "ning to you. How ", "are you today? I", " am fine.")
        async with bench(*pieces, by_hand=True, chunk_samples=960) as here:
            reply = here.reply()
            reading = asyncio.create_task(read(reply)) if is_read else None
            for step in range(n_steps):
                await asyncio.sleep(0.001 if step % 8 == 7 else 0)
                if step % 2:
                    here.engine.step()
            reply.cancel()
            if reading is not None:
                await reading
            assert await reply.next_event() is None

    run(scenario)


@pytest.mark.parametrize("n_steps", range(0, 24, 3))
def test_a_failure_and_a_cancel_together_leave_nothing(n_steps: int):
    async def scenario():
        async with bench(*text("This is a streamfail. "), StageError("x", "y")) as here:
            reply = here.reply()
            for _ in range(n_steps):
                await asyncio.sleep(0)
            reply.cancel()
            assert await reply.next_event() is None

    run(scenario)


def test_a_reader_that_does_not_read_holds_the_audio_back():
    said = "This is a long sentence that goes on, " * 5 + "and on. "

    async def scenario():
        async with bench(*text(said * 4)) as here:
            reply = here.reply()
            await until(lambda: reply._outbox._n_samples >= MAX_WAITING_S * RATE_HZ)
            for _ in range(50):
                await asyncio.sleep(0)
            waiting_s = reply._outbox._n_samples / RATE_HZ
            # One chunk may pass the mark.
            assert waiting_s <= MAX_WAITING_S + 0.1
            told = await read(reply)
            assert written(told) == said * 4
            assert len(spoken(told)) > 4 * RATE_HZ

    run(scenario)


def test_pauses_and_playout_reach_the_engine():
    async def scenario():
        async with bench(*text("Good morning."), by_hand=True) as here:
            reply = here.reply()
            await until(lambda: here.engine.streams)
            (stream,) = here.engine.streams
            reply.set_paused(True)
            reply.set_paused(False)
            assert stream.pauses == [True, False]
            await until(lambda: here.engine.step())
            while not isinstance(await reply.next_event(), AudioDelta):
                pass
            reply.report_playout(0.01, 5.0)
            assert stream.playout[-1] == (0.01, 5.0)
            reply.cancel()

    run(scenario)


def test_what_the_user_says_is_transcribed_by_the_agents_own_stage():
    async def scenario():
        async with bench() as here:
            assert here.agent.needs_transcript
            assert here.agent.can_transcribe
            told = await all_of(here.agent.transcribe(SECOND, language="en"))
            assert told[-1] == TranscriptCompleted(text="Window 1.", seconds=1.0)

    run(scenario)


def test_many_replies_at_once_do_not_mix():
    async def scenario():
        async with bench(*text("Good morning. ", "How are you today?")) as here:
            replies = [here.reply(seed=n) for n in range(8)]
            told = await asyncio.gather(*map(read, replies))
            expected = tones("Good morning.", "How are you today?")
            assert all(np.array_equal(spoken(one), expected) for one in told)

    run(scenario)


WORDS = st.lists(
    st.sampled_from(["Yes", "no", ", ", ". ", "! ", " ", "well", "\n\n", "..."]), max_size=25
)


@settings(max_examples=40, deadline=None)
@given(WORDS, st.booleans())
def test_all_text_is_told_and_all_words_are_spoken(pieces: list[str], wants_audio: bool):
    told, here = told_of(*text(*pieces), request={"wants_audio": wants_audio})
    assert written(told) == "".join(pieces)
    assert isinstance(told[-1], ReplyDone)
    n_units = len(here.engine.streams)
    assert (n_units > 0) == (wants_audio and any(one.isalpha() for one in "".join(pieces)))
    # Marks may differ: a paragraph without one ends with a full stop when it is spoken.
    said = " ".join(stream.text for stream in here.engine.streams)
    assert not wants_audio or re.findall("[a-zA-Z]+", said) == re.findall(
        "[a-zA-Z]+", "".join(pieces)
    )
