"""The text family on our engine, as the agent uses it; the engine is a fake."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import EngineStoppedError
from engine.types import StreamFailed, StreamFinished, StreamId, TextDelta
from models.errors import PlanError
from models.spec import OptionSpec, PlanRequest
from realtime.agent.base import TextDelta as Written
from realtime.agent.errors import StageError
from realtime.agent.text_model import (
    Brake,
    ChatMessage,
    EngineTextModel,
    TextDone,
    TextFacts,
    TextRequest,
)
from realtime.bridge import EngineBridge, EventRelay
from realtime.workers import Workers
from tests.fakes import fake_spec
from tests.realtime.harness import run, until

SPEC = fake_spec(
    name="words",
    tasks=("text",),
    gives_text=True,
    options=(
        OptionSpec(
            name="max_tokens", kind="integer", default=96, description="", minimum=1, maximum=200
        ),
    ),
)
ASKED = TextRequest(
    messages=(
        ChatMessage(role="system", text="Be brief."),
        ChatMessage(role="user", text="Hi."),
        ChatMessage(role="assistant", text=""),
        ChatMessage(role="tool", text="sunny", call_id="c1"),
        ChatMessage(role="user", text="How are you?"),
    ),
    seed=11,
    asked_s=2.5,
)


class FakeTextEngine:
    """The door of an engine whose model takes messages; longest prompt: `n_most` characters."""

    def __init__(self) -> None:
        self.relay = EventRelay()
        self.relay.attach(asyncio.get_running_loop())
        self.spec = SPEC
        self.n_most = 10_000
        self.fault: Exception | None = None
        self.planned: list[PlanRequest] = []
        self.opened: list[dict[str, Any]] = []
        self.aborted: list[StreamId] = []
        self.pauses: list[bool] = []

    def plan(self, request: PlanRequest) -> Any:
        self.planned.append(request)
        if self.fault is not None:
            raise self.fault
        if sum(len(one.text) for one in request.messages) > self.n_most:
            raise PlanError("prompt_too_long", "leave out the oldest messages", "messages")
        return "plan"

    def open_stream(self, plan: Any, **asked: Any) -> StreamId:
        if isinstance(self.fault, EngineStoppedError):
            raise self.fault
        self.opened.append(asked)
        return StreamId(len(self.opened))

    def abort(self, stream_id: StreamId) -> None:
        self.aborted.append(stream_id)

    def set_paused(self, stream_id: StreamId, *, is_paused: bool) -> None:
        self.pauses.append(is_paused)

    def say(self, *events: Any) -> None:
        self.relay(events)


def delta(text: str) -> TextDelta:
    return TextDelta(stream_id=StreamId(1), text=text)


def finished(reason: Any = "stop") -> StreamFinished:
    return StreamFinished(
        stream_id=StreamId(1), reason=reason, n_prompt_rows=9, n_frames=4, n_samples=0
    )


def with_model(scenario, *, silence_s: float = 30.0, **options: Any):
    async def whole():
        workers = Workers(1)
        engine = FakeTextEngine()
        bridge = EngineBridge(engine, engine.relay)
        facts = TextFacts(name="words", reply_tokens=40)
        model = EngineTextModel(bridge, workers, facts, silence_s=silence_s, options=options)
        try:
            return await scenario(model, engine)
        finally:
            workers.close()

    return run(whole)


async def written(model: EngineTextModel, request: TextRequest = ASKED) -> list[object]:
    async with aclosing(model.stream(request)) as stream:
        return [event async for event in stream]


def test_text_comes_as_the_engine_gives_it():
    async def scenario(model, engine):
        stream = model.stream(ASKED)
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: engine.opened)
        engine.say(delta("I am "))
        assert await first == Written(text="I am ")
        engine.say(delta("fine."), finished())
        rest = [event async for event in stream]
        assert rest == [
            Written(text="fine."),
            TextDone(reason="stop", n_input_tokens=9, n_output_tokens=2),
        ]
        (opened,) = engine.opened
        assert (opened["seed"], opened["asked_s"], opened["play_from_s"]) == (11, 2.5, None)
        assert engine.relay.n_streams == 0

    with_model(scenario)


def test_the_readers_brake_pauses_the_stream():
    async def scenario(model, engine):
        request = replace(ASKED, brake=Brake())
        request.brake.set(True)
        task = asyncio.create_task(written(model, request))
        await until(lambda: engine.pauses == [True])
        request.brake.set(True)
        request.brake.set(False)
        assert engine.pauses == [True, False]
        engine.say(delta("Hi."), finished())
        await task
        request.brake.set(True)
        assert engine.pauses == [True, False]

    with_model(scenario)


def test_the_conversation_is_the_prompt():
    async def scenario(model, engine):
        engine.fault = PlanError("empty_text", "nothing", "text")
        with pytest.raises(StageError):
            await written(model)
        (request,) = engine.planned
        assert [(one.role, one.text) for one in request.messages] == [
            ("system", "Be brief."),
            ("user", "Hi."),
            ("user", "How are you?"),
        ]
        assert (request.seed, dict(request.options)) == (11, {"temperature": 0.5})

    with_model(scenario, temperature=0.5)


@pytest.mark.parametrize(("asked", "given"), [(40, 40), (4096, 200)])
def test_the_limit_of_tokens_stays_within_the_models_own(asked: int, given: int):
    async def scenario(model, engine):
        engine.fault = PlanError("empty_text", "nothing", "text")
        request = TextRequest(messages=ASKED.messages, seed=0, asked_s=0.0, max_tokens=asked)
        with pytest.raises(StageError):
            await written(model, request)
        assert engine.planned[0].options["max_tokens"] == given

    with_model(scenario)


def test_a_conversation_that_is_too_long_loses_its_oldest_messages():
    async def scenario(model, engine):
        engine.n_most = len("Be brief." + "How are you?")
        task = asyncio.create_task(written(model))
        await until(lambda: engine.opened)
        engine.say(finished())
        await task
        assert [one.text for one in engine.planned[-1].messages] == ["Be brief.", "How are you?"]

    with_model(scenario)


def test_a_message_that_is_too_long_alone_is_refused():
    async def scenario(model, engine):
        engine.n_most = 5
        with pytest.raises(StageError) as caught:
            await written(model)
        assert caught.value.code == "prompt_too_long"
        assert engine.opened == []

    with_model(scenario)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([StreamFailed(stream_id=StreamId(1), code="overloaded", message="full")], "overloaded"),
        ([delta("I"), finished("aborted")], "engine_aborted"),
    ],
)
def test_a_failing_stream_is_a_named_failure(events, code):
    async def scenario(model, engine):
        task = asyncio.create_task(written(model))
        await until(lambda: engine.opened)
        engine.say(*events)
        with pytest.raises(StageError) as caught:
            await task
        assert caught.value.code == code

    with_model(scenario)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (EngineStoppedError("gone"), "engine_stopped"),
        (PlanError("invalid_value", "no", "temperature"), "invalid_value"),
    ],
)
def test_what_planning_refuses_is_a_named_failure(fault, code):
    async def scenario(model, engine):
        engine.fault = fault
        with pytest.raises(StageError) as caught:
            await written(model)
        assert caught.value.code == code

    with_model(scenario)


# NOTE: real time, 0.05 s: the wait for an engine that says nothing.
def test_an_engine_that_says_nothing_is_a_named_failure():
    async def scenario(model, engine):
        with pytest.raises(StageError) as caught:
            await written(model)
        assert caught.value.code == "engine_timeout"
        assert engine.aborted == [StreamId(1)]

    with_model(scenario, silence_s=0.05)


@pytest.mark.parametrize("n_steps", [0, 1, 2, 5, 50])
def test_a_cancelled_writer_aborts_its_stream(n_steps: int):
    async def scenario(model, engine):
        task = asyncio.create_task(written(model))
        for _ in range(n_steps):
            await asyncio.sleep(0.001 if n_steps == 50 else 0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert len(engine.aborted) == len(engine.opened)

    with_model(scenario)
