"""Chat completions of an endpoint: what is asked, and all ways in which an answer can be wrong."""

import asyncio
from contextlib import aclosing

import pytest

from realtime.agent.base import FunctionCall, TextDelta, Tool
from realtime.agent.errors import StageError
from realtime.agent.openai_text import OpenAiTextModel, request_body
from realtime.agent.text_model import ChatMessage, TextDone, TextRequest
from tests.realtime.agent.fake_endpoint import Scripted, events, fake_endpoint, text_events
from tests.realtime.harness import run, until

WEATHER = Tool(name="weather", description="of a place", parameters={"type": "object"})
ASKED = TextRequest(
    messages=(ChatMessage(role="system", text="Be brief."), ChatMessage(role="user", text="Hi")),
    seed=3,
    asked_s=0.0,
)


async def written(model: OpenAiTextModel, request: TextRequest = ASKED) -> list[object]:
    async with aclosing(model.stream(request)) as stream:
        return [event async for event in stream]


def answer_of(answer: Scripted, **config) -> list[object] | StageError:
    async def scenario():
        async with fake_endpoint(answer, **config) as running:
            try:
                return await written(OpenAiTextModel(running.endpoint))
            except StageError as fault:
                return fault

    return run(scenario)


def choice(delta: dict, reason: str | None = None) -> dict:
    return {"choices": [{"delta": delta, "finish_reason": reason}]}


def called(idx: object = 0, call_id: str | None = None, **function: str) -> dict:
    piece = {"index": idx, "function": function}
    return choice({"tool_calls": [piece if call_id is None else {**piece, "id": call_id}]})


def test_text_comes_as_it_is_written():
    assert answer_of(text_events("Good ", "", "day.")) == [
        TextDelta(text="Good "),
        TextDelta(text="day."),
        TextDone(reason="stop", n_input_tokens=7, n_output_tokens=3),
    ]


def test_half_a_pair_of_utf_16_goes_no_further():
    """Clients could not be told of it, and waited for an end of the response for ever."""
    assert answer_of(text_events("Good \ud800 day \ud83d\ude42", "\udfff."))[:2] == [
        TextDelta(text="Good \ufffd day \N{SLIGHTLY SMILING FACE}"),
        TextDelta(text="\ufffd."),
    ]
    call = called(0, "c\ud800", name="weather\ud800", arguments="{}")
    assert answer_of(events(call, choice({}, "tool_calls")))[0] == FunctionCall(
        call_id="c\ufffd", name="weather\ufffd", arguments="{}"
    )


def test_each_piece_is_given_before_the_next_has_come():
    async def scenario():
        held = Scripted([*text_events("Good ").pieces[:1], None])
        async with fake_endpoint(held) as running:
            stream = OpenAiTextModel(running.endpoint).stream(ASKED)
            assert await anext(stream) == TextDelta(text="Good ")
            await stream.aclose()
            await running.app.has_left.wait()

    run(scenario)


def test_a_cancelled_writer_hangs_up():
    async def scenario():
        held = Scripted([*text_events("Good ").pieces[:1], None])
        async with fake_endpoint(held) as running:
            task = asyncio.create_task(written(OpenAiTextModel(running.endpoint)))
            await until(lambda: running.app.requests)
            task.cancel()
            await asyncio.wait([task])
            await running.app.has_left.wait()

    run(scenario)


@pytest.mark.parametrize(("said", "reason"), [("stop", "stop"), ("length", "length")])
def test_the_reason_of_the_end_is_told(said: str, reason: str):
    told = answer_of(text_events("Hm.", reason=said))
    assert isinstance(told, list)
    assert told[-1].reason == reason


def test_calls_are_put_together_from_their_pieces():
    told = answer_of(
        events(
            choice({"content": "Let me look."}),
            called(0, "c1", name="weather", arguments=""),
            called(1, "c2", name="time"),
            called(0, arguments='{"pla'),
            called(0, arguments='ce": 1}'),
            choice({}, "tool_calls"),
        )
    )
    assert told == [
        TextDelta(text="Let me look."),
        FunctionCall(call_id="c1", name="weather", arguments='{"place": 1}'),
        FunctionCall(call_id="c2", name="time", arguments="{}"),
        TextDone(reason="stop"),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        events(choice({"content": "Half a"})),
        events(choice({"content": 7})),
        events(choice([1])),
        events({"choices": ["text"]}),
        events({"object": "chat.completion.chunk"}),
        events(choice({"tool_calls": {"index": 0}}, "stop")),
        events(called(-1, "c1", name="x"), choice({}, "stop")),
        events(called("0", "c1", name="x"), choice({}, "stop")),
        events(called(0, None, name="x"), choice({}, "stop")),
        events(called(0, "c1", name="x", arguments="{"), choice({}, "stop")),
        events(called(0, "c1", name="x", arguments="9" * 70_000), choice({}, "stop")),
        Scripted([b'{"choices": []}'], kind="application/json"),
        events(),
    ],
)
def test_an_answer_that_breaks_the_api_is_a_bad_response(answer: Scripted):
    fault = answer_of(answer)
    assert isinstance(fault, StageError)
    assert fault.code == "bad_response"
    assert len(fault.message) < 300


def test_a_filtered_answer_says_so():
    fault = answer_of(text_events("I", reason="content_filter"))
    assert isinstance(fault, StageError)
    assert fault.code == "content_filter"


def test_odd_usage_is_no_reason_to_fail():
    usage = {"usage": {"prompt_tokens": "x"}}
    told = answer_of(events({**choice({"content": "Hi."}, "stop"), **usage}))
    assert isinstance(told, list)
    assert told[-1] == TextDone(reason="stop")


def test_the_request_has_what_the_api_wants():
    body = request_body(ASKED, "m")
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert body["stream"] is True
    assert not {"tools", "tool_choice", "max_tokens"} & body.keys()


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("weather", {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tools_and_past_calls_are_passed_through(asked: str, sent: object):
    call = FunctionCall(call_id="c1", name="weather", arguments="{}")
    request = TextRequest(
        messages=(
            ChatMessage(role="user", text="And in Rome?"),
            ChatMessage(role="assistant", text="", calls=(call,)),
            ChatMessage(role="tool", text="sunny", call_id="c1"),
        ),
        seed=0,
        asked_s=0.0,
        max_tokens=50,
        tools=(WEATHER,),
        tool_choice=asked,
    )
    body = request_body(request, "m")
    assert body["max_tokens"] == 50
    assert body["tool_choice"] == sent
    assert body["tools"][0]["function"]["name"] == "weather"
    assert body["messages"][1]["content"] is None
    assert body["messages"][1]["tool_calls"][0]["id"] == "c1"
    assert body["messages"][2] == {"role": "tool", "content": "sunny", "tool_call_id": "c1"}
