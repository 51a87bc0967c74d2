"""A model that answers by itself, through the same session and turns as everybody else."""

import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.thread import EngineThread
from models.spec import PlanRequest
from realtime.agent.base import AudioDelta, Message, ReplyRequest, TextDelta
from realtime.agent.native import NativeAgent, _Memory
from realtime.bridge import EventRelay
from realtime.playout import PlayoutClock
from realtime.speech.speaker import GUESSED_S_PER_CHARACTER
from tests.engine.harness import load_toy
from tests.models.audio.test_reference import voice
from tests.realtime.harness import run, until
from tests.realtime.talk_harness import (
    HANDS_FREE,
    LOUD,
    PUSH_TO_TALK,
    ScriptedTranscription,
    talk,
)

CONFIG = EngineConfig(max_streams=4, lead_s=1000.0)
LONG = {"frames": 4000, "reply_letters": 9}


class Scribe:
    """Implements `Transcriber`: hears the same words in everything."""

    name, licence, languages = "scribe", "", ("en",)

    def __init__(self, words: str) -> None:
        self.words = words
        self.is_closed = False

    def transcribe(self, pcm, *, language) -> ScriptedTranscription:
        one = ScriptedTranscription(pcm, language)
        one.say(self.words)
        return one

    async def close(self) -> None:
        self.is_closed = True


class Watched:
    """A toy, and what it was asked."""

    def __init__(self, toy) -> None:
        self._toy = toy
        self.asked: list[PlanRequest] = []

    def __getattr__(self, name):
        return getattr(self._toy, name)

    def plan(self, request: PlanRequest):
        self.asked.append(request)
        return self._toy.plan(request)


@asynccontextmanager
async def native(*, toy=None, transcriber=None, config=CONFIG):
    """A server with a toy that answers, by default the one that hears, on a real engine thread."""
    relay = EventRelay()
    toy = toy or load_toy("toy-audio-in")
    thread = EngineThread([EngineLoop(toy, config, relay, time.monotonic)])
    thread.start()
    thread.wait_ready()

    def make(gateway):
        bridge, workers = gateway.bridges["fake"], gateway.workers
        return NativeAgent(toy.spec.name, bridge, workers, 30.0, transcriber)

    try:
        async with talk(
            make_agent=make, engine=thread.handles[0], relay=relay, clock=time.monotonic
        ) as here:
            yield here, thread.handles[0]
    finally:
        thread.stop()


def test_speech_is_answered_by_text_and_speech():
    async def scenario():
        async with native() as (here, _), here.client(audio=HANDS_FREE) as client:
            await client.turn()
            done = await client.done()
            assert done["status"] == "completed"
            (part,) = done["output"][0]["content"]
            assert len(part["transcript"]) == 6, "the toy says six letters"
            # One frame of 20 ms for each 80 ms heard, plus what the padding adds.
            assert done["usage"]["n_frames"] >= 640 / 80
            assert done["usage"]["audio_ms"] == done["usage"]["n_frames"] * 20
            assert client.frames(1)
            assert "conversation.item.input_audio_transcription.completed" not in client.types

    run(scenario)


def test_text_and_audio_come_interleaved():
    async def scenario():
        async with native() as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(options={"frames": 80, "reply_letters": 60})
            await client.hear((LOUD, 500))
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            await client.done()
            kinds = [
                one for one in client.types if one.endswith(("transcript.delta", "audio.mark"))
            ]
            assert kinds.index("response.output_audio.mark") < len(kinds) - 1
            last_text = len(kinds) - kinds[::-1].index("response.output_audio_transcript.delta")
            assert "response.output_audio.mark" in kinds[:last_text]

    run(scenario)


def test_barge_in_aborts_the_engine_stream():
    async def scenario():
        async with native() as (here, handle), here.client(audio=HANDS_FREE) as client:
            await client.update(options=LONG)
            await client.turn()
            while not client.frames(1):
                await client.next()
            await client.hear((LOUD, 256))
            done = await client.done()
            assert done["status"] == "cancelled"
            assert "output_audio_buffer.cleared" in client.types
            await until(lambda: handle.stats().n_aborted == 1 and not handle.stats().n_active)
            await client.update(options={"frames": 5, "reply_letters": 3})
            await client.hear((LOUD, 320), (0.0, 640))
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_a_turn_without_audio_fails_in_words_and_the_session_goes_on():
    async def scenario():
        async with native() as (here, _), here.client(audio=HANDS_FREE) as client:
            await client.write("Hello?")
            await client.send("response.create")
            done = await client.done()
            assert done["status_details"]["error"]["code"] == "missing_audio"
            await client.turn()
            assert (await client.done())["status"] == "completed"

    run(scenario)


def test_a_model_that_takes_no_audio_is_told_what_was_said():
    toy, scribe = Watched(load_toy("toy-mixed")), Scribe("hello there")

    async def scenario():
        async with (
            native(toy=toy, transcriber=scribe) as (here, _),
            here.client(audio=HANDS_FREE) as client,
        ):
            await client.update(instructions="Be kind.", options={"frames": 5, "reply_letters": 4})
            await client.turn()
            done = await client.done()
            assert (done["status"], done["usage"]["n_frames"]) == ("completed", 5)
            (part,) = done["output"][0]["content"]
            assert len(part["transcript"]) == 4
            await client.write("And now?")
            await client.send("response.create")
            assert (await client.done())["status"] == "completed"
            return part["transcript"]

    said = run(scenario)
    first, second = toy.asked
    assert (first.text, second.text) == ("hello there", "And now?")
    assert first.audio is None
    assert roles(first.messages) == [("system", "Be kind.")]
    before = [("system", "Be kind."), ("user", "hello there"), ("assistant", said)]
    assert roles(second.messages) == before
    assert scribe.is_closed


def test_an_answer_that_was_written_first_is_spoken_at_the_pace_of_speech():
    """All of its text is there before its first sound: what has been said of it must be guessed."""

    async def scenario():
        async with native(toy=load_toy("toy-mixed"), transcriber=Scribe("")) as (here, _):
            asked = ReplyRequest(
                items=(Message(item_id="u", role="user", text="Hello?"),),
                seed=1,
                asked_s=time.monotonic(),
                options={"frames": 100, "reply_letters": 40},
            )
            reply = here.agent.reply(asked, PlayoutClock())
            events = []
            while (event := await reply.next_event()) is not None:
                events.append(event)
            return events

    events = run(scenario)
    sounds = [one for one in events if isinstance(one, AudioDelta)]
    assert sum(len(one.text) for one in events if isinstance(one, TextDelta)) == 40
    n_samples = 0
    for sound in sounds:
        n_samples += len(sound.pcm)
        assert sound.text_end == min(40, round(n_samples / 16_000 / GUESSED_S_PER_CHARACTER))
    # Two seconds of sound: 31 characters.
    assert 0 < sounds[0].text_end < sounds[-1].text_end < 40


def roles(messages: Sequence) -> list[tuple[str, str]]:
    return [(one.role, one.text) for one in messages]


def test_an_engine_that_stops_fails_the_response():
    async def scenario():
        async with native() as (here, handle), here.client(audio=HANDS_FREE) as client:
            await client.update(options=LONG)
            await client.turn()
            while not client.frames(1):
                await client.next()
            handle._thread.stop()
            done = await client.done()
            assert done["status"] == "failed"
            assert done["status_details"]["error"]["code"] == "engine_stopped"

    run(scenario)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_seed_gives_the_same_answer_again(seed):
    async def scenario():
        async with native(config=replace(CONFIG, max_streams=1)) as (here, _):
            said = []
            for _ in range(2):
                async with here.client(audio=PUSH_TO_TALK) as client:
                    await client.update(options={"seed": seed})
                    await client.hear((LOUD, 500))
                    await client.send("input_audio_buffer.commit")
                    await client.send("response.create")
                    done = await client.done()
                    said.append(done["output"][0]["content"][0]["transcript"])
            assert said[0] == said[1]

    run(scenario)


def test_a_model_that_hears_is_told_what_was_said_before():
    """In words where there are some, and in the user's own voice."""
    toy = Watched(load_toy("toy-audio-in"))
    pcm = [voice(0.2 + n / 10) for n in range(3)]
    items = (
        Message(item_id="1", role="user", text=None, audio=pcm[0]),
        Message(item_id="2", role="assistant", text="I see."),
        Message(item_id="3", role="user", text=None, audio=pcm[1]),
        Message(item_id="4", role="system", text="Be quick."),
        Message(item_id="5", role="user", text=None, audio=pcm[2]),
    )

    async def scenario():
        async with native(toy=toy) as (here, _):
            asked = ReplyRequest(
                items=items, seed=1, asked_s=time.monotonic(), instructions="Be kind."
            )
            reply = here.agent.reply(asked, PlayoutClock())
            while await reply.next_event() is not None:
                pass

    run(scenario)
    (asked,) = toy.asked
    told = [("system", "Be kind."), ("user", ""), ("assistant", "I see."), ("system", "Be quick.")]
    assert roles(asked.messages) == told
    assert (asked.messages[1].audio == pcm[0]).all()
    assert (asked.audio == np.concatenate(pcm[1:])).all()


def test_a_model_that_also_reads_out_is_told_what_is_to_be_answered():
    """A text alone would be read out to the user who wrote it."""
    toy = Watched(load_toy("toy-audio-in"))
    toy.spec = replace(toy.spec, tasks=("speak", "converse"))

    async def scenario():
        async with native(toy=toy) as (here, _), here.client(audio=HANDS_FREE) as client:
            await client.write("And now?")
            await client.send("response.create")
            await client.done()

    run(scenario)
    (asked,) = toy.asked
    assert (asked.text, asked.audio) == ("", None)
    assert roles(asked.messages) == [("user", "And now?")]


def keeping_turns() -> Watched:
    toy = Watched(load_toy("toy-audio-in"))
    toy.spec = replace(toy.spec, keeps_turns=True)
    toy._toy.spec = toy.spec
    return toy


async def ask(client) -> None:
    await client.hear((LOUD, 500))
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")


def test_a_model_that_keeps_turns_goes_on_from_its_own_rows():
    """What it knows is not told again; the rows are those of all that was said so far."""
    toy = keeping_turns()

    async def scenario():
        async with native(toy=toy) as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            for _ in range(3):
                await ask(client)
                assert (await client.done())["status"] == "completed"

    run(scenario)
    first, second, third = toy.asked
    assert first.history is None
    plan = toy._toy.plan(first)
    assert len(second.history) > len(plan.ids)
    assert (second.history[: len(plan.ids)] == plan.ids.numpy()).all()
    assert third.history is not None
    assert not second.messages
    assert not third.messages
    assert second.audio is not None


def test_an_answer_that_was_stopped_is_not_among_the_rows():
    """Nothing was heard of it: both questions are open, behind the rows of the answer before."""
    toy = keeping_turns()

    async def scenario():
        async with native(toy=toy) as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(instructions="Be kind.", options={"frames": 5, "reply_letters": 3})
            await ask(client)
            await client.done()
            await client.update(options=LONG)
            await ask(client)
            while not client.frames(2):
                await client.next()
            await client.send("response.cancel")
            assert (await client.done())["status"] == "cancelled"
            await client.update(options={"frames": 5, "reply_letters": 3})
            await ask(client)
            assert (await client.done())["status"] == "completed"

    run(scenario)
    _, second, third = toy.asked
    assert (third.history == second.history).all()
    assert len(third.audio) == 2 * len(second.audio)
    assert roles(second.messages) == roles(third.messages) == [("system", "Be kind.")]


def test_rows_of_another_model_mean_nothing():
    toy = keeping_turns()
    other = _Memory(model="other", rows=np.zeros((3, 1), np.int64), item_ids=("1",))
    items = (
        Message(item_id="1", role="user", text="Hi."),
        Message(item_id="2", role="assistant", text="Yes?", memory=other),
        Message(item_id="3", role="user", text=None, audio=voice(0.3)),
    )

    async def scenario():
        async with native(toy=toy) as (here, _):
            reply = here.agent.reply(
                ReplyRequest(items=items, seed=1, asked_s=time.monotonic()), PlayoutClock()
            )
            while await reply.next_event() is not None:
                pass

    run(scenario)
    (asked,) = toy.asked
    assert asked.history is None
    assert roles(asked.messages) == [("user", "Hi."), ("assistant", "Yes?")]
