"""Requests to an endpoint: retries, timeouts, and answers that are not what they should be."""

import asyncio
import json

import pytest

from realtime.agent.endpoint import Endpoint, EndpointConfig
from realtime.agent.errors import AgentSetupError, StageError
from tests.realtime.agent.fake_endpoint import (
    FakeEndpoint,
    Running,
    Scripted,
    events,
    fake_endpoint,
    refusal,
)
from tests.realtime.harness import run, until


async def ask(running: Running) -> list[dict]:
    """All events of one answer."""
    read = []
    async with running.endpoint.post("ask", body={"a": 1}) as answer:
        while (event := await answer.next_event()) is not None:
            read.append(event)
    return read


Outcome = list[dict] | StageError


def asked(*answers: Scripted, **config) -> tuple[Outcome, FakeEndpoint, list[float]]:
    """What one request leads to: the events or the fault, the endpoint, the waits."""

    async def scenario():
        async with fake_endpoint(*answers, **config) as running:
            try:
                read = await ask(running)
            except StageError as fault:
                read = fault
            return read, running.app, running.slept_s

    return run(scenario)


def test_events_are_read_whatever_the_pieces_they_come_in():
    whole = b': note\r\ndata: {"n": 1}\r\n\r\nevent: x\ndata: {"n":\ndata: 2}\n\n\n\ndata: [DONE]'
    for n_bytes in (1, 2, 7, len(whole)):
        pieces = [whole[at : at + n_bytes] for at in range(0, len(whole), n_bytes)]
        read, _, _ = asked(Scripted(pieces))
        assert read == [{"n": 1}, {"n": 2}]


def test_a_last_event_without_its_empty_line_counts():
    read, _, _ = asked(Scripted([b'data: {"n": 1}\n\ndata: {"n": 2}']))
    assert read == [{"n": 1}, {"n": 2}]


def test_nothing_is_read_past_the_end_mark():
    read, _, _ = asked(Scripted([b'data: [DONE]\n\ndata: {"n": 2}\n\n']))
    assert read == []


def test_the_key_is_sent_and_never_shown():
    _, app, _ = asked(events(), api_key="sk-secret")
    assert app.requests[0].headers["authorization"] == "Bearer sk-secret"
    assert app.requests[0].json == {"a": 1}
    config = EndpointConfig(url="http://127.0.0.1:1/v1", model="m", api_key="sk-secret")
    assert "sk-secret" not in repr(config)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_fault_is_tried_again_with_growing_waits(status: int):
    read, app, slept_s = asked(refusal(status, retry_after="0"), refusal(status), events({"n": 1}))
    assert read == [{"n": 1}]
    assert len(app.requests) == 3
    assert app.requests[0].body == app.requests[2].body
    assert slept_s[0] == 0.25
    assert slept_s[1] >= 0.5


def test_retries_end():
    fault, app, _ = asked(refusal(500, "on fire"), n_retries=2)
    assert isinstance(fault, StageError)
    assert fault.code == "endpoint_error"
    assert "HTTP 500" in fault.message
    assert "on fire" in fault.message
    assert len(app.requests) == 3


def test_an_endpoint_that_asks_for_much_patience_is_overloaded():
    fault, app, slept_s = asked(refusal(429, retry_after="30"))
    assert isinstance(fault, StageError)
    assert (fault.code, fault.retry_after_s) == ("endpoint_overloaded", 30.0)
    assert (len(app.requests), slept_s) == (1, [])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_final(status: int):
    fault, app, _ = asked(refusal(status, "bad key"))
    assert isinstance(fault, StageError)
    assert fault.code == "endpoint_refused"
    assert "bad key" in fault.message
    assert len(app.requests) == 1


def test_a_redirect_is_not_followed():
    fault, app, _ = asked(refusal(302, location="http://127.0.0.1:9/"))
    assert isinstance(fault, StageError)
    assert fault.code == "endpoint_error"
    assert len(app.requests) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: {\n\n"],
        [b"data: 7\n\n"],
        [b"data: \xff\n\n"],
        [b"data: " + b"[" * 100_000 + b"\n\n"],
        [b"x" * 1_100_000],
    ],
)
def test_what_is_no_json_object_is_a_bad_response(pieces: list[bytes]):
    fault, _, _ = asked(Scripted(pieces))
    assert isinstance(fault, StageError)
    assert fault.code == "bad_response"
    assert len(fault.message) < 300


def test_an_error_in_the_stream_is_reported():
    fault, _, _ = asked(events({"n": 1}, {"error": {"message": "the model crashed"}}))
    assert isinstance(fault, StageError)
    assert fault.code == "endpoint_error"
    assert "the model crashed" in fault.message


def test_an_answer_that_breaks_off_is_not_tried_again():
    broken = events({"n": 1}, done=False)
    broken.breaks_off = True
    fault, app, _ = asked(broken)
    assert isinstance(fault, StageError)
    assert fault.code == "bad_response"
    assert len(app.requests) == 1


# NOTE: real time, 0.1 s: the limit is the library's own. Anything longer than it passes too.
def test_an_answer_that_stops_midway_times_out():
    fault, app, _ = asked(Scripted([b"data: {}\n\n", None]), silence_s=0.1)
    assert isinstance(fault, StageError)
    assert (fault.code, fault.retry_after_s) == ("endpoint_timeout", 1.0)
    assert len(app.requests) == 1


def test_an_answer_that_drips_for_ever_times_out():
    async def scenario():
        async with fake_endpoint(Scripted([b": drip\n"] * 5 + [None])) as running:
            ticks = iter(range(0, 10_000, 40))
            running.endpoint._clock = lambda: float(next(ticks))
            with pytest.raises(StageError) as caught:
                await ask(running)
            assert caught.value.code == "endpoint_timeout"

    run(scenario)


def test_an_endpoint_that_is_not_there_is_named_without_its_secrets():
    async def scenario():
        waits = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        config = EndpointConfig(url="http://me:pass@127.0.0.1:9/v1?key=secret", model="m")
        endpoint = Endpoint(config, sleep=sleep)
        with pytest.raises(StageError) as caught:
            async with endpoint.post("ask", body={}):
                pass
        await endpoint.close()
        assert caught.value.code == "endpoint_unreachable"
        assert "127.0.0.1:9" in caught.value.message
        assert "pass" not in caught.value.message
        assert "secret" not in caught.value.message
        assert waits == [0.25, 0.5]

    run(scenario)


def test_a_reader_that_leaves_closes_the_connection():
    async def scenario():
        async with fake_endpoint(Scripted([b'data: {"n": 1}\n\n', None])) as running:
            async with running.endpoint.post("ask", body={}) as answer:
                assert await answer.next_event() == {"n": 1}
            await running.app.has_left.wait()

    run(scenario)


def test_a_cancelled_reader_closes_the_connection():
    async def scenario():
        async with fake_endpoint(Scripted([b'data: {"n": 1}\n\n', None])) as running:
            task = asyncio.create_task(ask(running))
            await until(lambda: running.app.requests)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await running.app.has_left.wait()

    run(scenario)


@pytest.mark.parametrize(
    "bad",
    [
        {"url": "127.0.0.1:8000"},
        {"url": "ftp://host/v1"},
        {"url": "http://"},
        {"url": "http://host:99999/v1"},
        {"url": "http://[::1/v1"},
        {"silence_s": 0.0},
        {"total_s": float("nan")},
        {"n_retries": -1},
        {"api_key": "schlüssel"},
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(bad: dict):
    with pytest.raises(AgentSetupError):
        EndpointConfig(**{"url": "http://host/v1", "model": "m", **bad})


def test_one_value_is_read_whole():
    async def scenario():
        answer = Scripted([b'{"a"', b": 1}"], kind="application/json; charset=utf-8")
        async with (
            fake_endpoint(answer) as running,
            running.endpoint.post("ask", form={"x": "y"}) as got,
        ):
            assert not got.is_event_stream
            assert await got.value() == json.loads('{"a": 1}')

    run(scenario)
