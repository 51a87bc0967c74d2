"""The client against a scripted server: order, cancel, faults of either side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from realtime.client.speech import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    RefusedError,
    SpeechClient,
    SyncSpeechClient,
    speech_url,
)
from realtime.events import OutputPatch, ResponsePatch, SessionPatch
from realtime.frames import AudioFrame, encode_audio_frame
from realtime.protocol import SUBPROTOCOL

SESSION = {
    "id": "s",
    "model": "m",
    "voice": None,
    "language": None,
    "options": {},
    "output": {"codec": "pcm16", "sample_rate_hz": 1000},
    "limits": {
        "max_message_bytes": 1,
        "max_messages_per_s": 1,
        "max_text_characters": 1,
        "max_queued_responses": 1,
        "first_message_timeout_s": 1,
        "idle_timeout_s": 1,
    },
}


class Script:
    """The server's end of one socket; says only what the test tells it to."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.seen: list[dict] = []

    async def next(self, kind: str) -> dict:
        """The next client event of `kind`; earlier ones are passed over and kept in `seen`."""
        while True:
            event = json.loads(await self.socket.recv())
            self.seen.append(event)
            if event["type"] == kind:
                return event

    async def say(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, "event_id": "e", **fields}))

    async def created(self, number: int, **fields: object) -> None:
        response = {"id": f"r{number}", "number": number, "status": "in_progress", **fields}
        await self.say("response.created", response=response)

    async def audio(self, number: int, *blocks: list[int]) -> None:
        await self.say(
            "response.output_audio.started",
            response_id=f"r{number}",
            response_number=number,
            codec="pcm16",
            sample_rate_hz=1000,
            packet_ms=20,
            pre_skip_samples=0,
        )
        for block in blocks:
            await self.frame(number, block)
        await self.say(
            "response.output_audio.done",
            response_id=f"r{number}",
            n_samples=sum(map(len, blocks)),
            duration_ms=0,
            n_packets=len(blocks),
        )

    async def frame(self, number: int, samples: list[int]) -> None:
        payload = np.array(samples, "<i2").tobytes()
        frame = AudioFrame(codec="pcm16", response_number=number, media_time_ms=0, payload=payload)
        await self.socket.send(encode_audio_frame(frame))

    async def done(self, number: int, status: str = "completed", **fields: object) -> None:
        response = {"id": f"r{number}", "number": number, "status": status, **fields}
        await self.say("response.done", response=response)

    async def error(self, event_id: str | None, code: str = "invalid_value") -> None:
        detail = {"type": "invalid_request_error", "code": code, "message": f"bad: {code}"}
        await self.say("error", error={**detail, "param": "voice", "event_id": event_id})


def with_script(
    script: Callable[[Script], Awaitable[None]], client: Callable[[str], Awaitable[None]]
) -> None:
    """Run a scripted server and a client against it; a fault of either fails the test."""

    async def run() -> None:
        faults: list[BaseException] = []

        async def handle(socket: ServerConnection) -> None:
            side = Script(socket)
            try:
                await side.say("session.created", session=SESSION)
                await script(side)
                await socket.wait_closed()
            except Exception as error:  # noqa: BLE001 - reported by the test itself
                faults.append(error)

        async with serve(handle, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
            port = server.sockets[0].getsockname()[1]
            await asyncio.wait_for(client(f"127.0.0.1:{port}"), 20)
        assert not faults, faults

    asyncio.run(run())


def test_text_goes_out_and_samples_come_back():
    async def script(side):
        await side.next("input_text.end")
        assert [event["type"] for event in side.seen] == [
            "response.create",
            "input_text.append",
            "input_text.append",
            "input_text.end",
        ]
        assert [e["text"] for e in side.seen if "text" in e] == ["Good ", "day."]
        await side.created(1)
        await side.audio(1, [0, 16384], [-32768])
        await side.done(1)

    async def deltas():
        for delta in ("Good ", "day."):
            yield delta

    async def use(url):
        async with SpeechClient(url) as client:
            speech = await client.speak(deltas())
            assert (await speech.pcm()).tolist() == [0.0, 0.5, -1.0]
            assert (speech.result.n_samples, speech.result.n_packets) == (3, 2)
            assert speech.result.audio_s == pytest.approx(0.003)
            assert speech.result.ttfa_s is not None
            assert speech.result.total_s >= speech.result.ttfa_s >= 0

    with_script(script, use)


def test_two_responses_keep_their_texts_apart_and_their_order():
    """The second text waits for the first one's last delta, else both would be one response."""
    gate = asyncio.Event()

    async def script(side):
        await side.next("input_text.append")
        gate.set()
        await side.next("input_text.end")
        await side.next("input_text.end")
        texts = [e.get("text", e["type"]) for e in side.seen]
        assert texts == [
            "response.create", "one", "more", "input_text.end",
            "response.create", "two", "input_text.end",
        ]  # fmt: skip
        for number in (1, 2):
            await side.created(number)
        for number in (1, 2):
            await side.audio(number, [number * 1024])
            await side.done(number)

    async def slow():
        yield "one"
        await gate.wait()
        yield "more"

    async def use(url):
        async with SpeechClient(url) as client:
            first, second = await client.speak(slow()), await client.speak("two")
            assert (await second.pcm()).tolist() == [0.0625]
            assert (await first.pcm()).tolist() == [0.03125]

    with_script(script, use)


def test_frames_of_an_ended_response_are_dropped_in_one_place():
    async def script(side):
        await side.next("input_text.end")
        await side.created(1)
        await side.frame(7, [1, 1])
        await side.audio(1, [1024])
        await side.done(1)
        await side.frame(1, [9, 9])
        await side.next("input_text.end")
        await side.created(2)
        await side.audio(2, [2048])
        await side.done(2)

    async def use(url):
        async with SpeechClient(url) as client:
            for expected in ([0.03125], [0.0625]):
                speech = await client.speak("x")
                assert (await speech.pcm()).tolist() == expected
            assert client.n_stale_frames == 2

    with_script(script, use)


def test_cancel_names_the_response_and_ends_the_iteration():
    async def script(side):
        await side.created(1)
        await side.say(
            "response.output_audio.started", response_id="r1", response_number=1, codec="pcm16",
            sample_rate_hz=1000, packet_ms=20, pre_skip_samples=0,
        )  # fmt: skip
        await side.frame(1, [1024])
        assert (await side.next("response.cancel"))["response_id"] == "r1"
        await side.done(1, "cancelled", status_details={"type": "cancelled", "reason": "client"})

    async def endless():
        while True:
            yield "word "
            await asyncio.sleep(0.001)

    async def use(url):
        async with SpeechClient(url) as client:
            speech = await client.speak(endless())
            blocks = []
            async for block in speech:
                blocks.append(block)
                await speech.cancel()
            assert len(blocks) == 1
            assert speech.result.response.status == "cancelled"

    # The script says `created` before it has read a word: the client must not mind.
    async def wait_for_text(side):
        await side.next("input_text.append")
        await script(side)

    with_script(wait_for_text, use)


def test_overrides_that_are_refused_send_no_text():
    async def script(side):
        create = await side.next("response.create")
        assert create["response"] == {"voice": "nobody"}
        await side.error(create["event_id"], "unknown_voice")
        await side.next("input_text.end")
        assert [e["text"] for e in side.seen if "text" in e] == ["good"]
        await side.created(1)
        await side.audio(1, [1024])
        await side.done(1)

    async def use(url):
        async with SpeechClient(url) as client:
            bad = await client.speak("bad", overrides=ResponsePatch(voice="nobody"))
            with pytest.raises(RefusedError, match="unknown_voice") as caught:
                await bad.pcm()
            assert (caught.value.code, caught.value.param) == ("unknown_voice", "voice")
            good = await client.speak("good")
            assert len(await good.pcm()) == 1

    with_script(script, use)


def test_a_text_that_is_refused_half_way_is_not_spoken_as_a_whole():
    async def script(side):
        append = await side.next("input_text.append")
        await side.created(1)
        await side.error(append["event_id"], "text_too_long")
        assert (await side.next("response.cancel"))["response_id"] == "r1"
        await side.done(1, "cancelled")

    async def use(url):
        async with SpeechClient(url) as client:
            speech = await client.speak("x" * 100)
            with pytest.raises(RefusedError, match="text_too_long"):
                await speech.wait()

    with_script(script, use)


def test_a_failed_response_raises_with_the_retry_hint():
    details = {
        "type": "failed",
        "reason": "overloaded",
        "error": {"code": "overloaded", "message": "too many streams"},
        "retry_after_s": 1.5,
    }

    async def script(side):
        await side.next("input_text.end")
        await side.created(1)
        await side.done(1, "failed", status_details=details)

    async def use(url):
        async with SpeechClient(url) as client:
            speech = await client.speak("x")
            with pytest.raises(RefusedError, match="too many streams") as caught:
                await speech.wait()
            assert (caught.value.code, caught.value.retry_after_s) == ("overloaded", 1.5)

    with_script(script, use)


def test_session_settings_are_sent_and_a_refusal_closes():
    async def script(side):
        update = await side.next("session.update")
        assert update["session"] == {"output": {"codec": "pcm16"}}
        await side.error(update["event_id"])

    async def use(url):
        patch = SessionPatch(output=OutputPatch(codec="pcm16"))
        with pytest.raises(RefusedError, match="invalid_value"):
            await SpeechClient(url, session=patch).connect()

    with_script(script, use)


@pytest.mark.parametrize("code", [1000, 1001, 1013])
def test_a_lost_connection_ends_every_response_with_the_reason(code):
    async def script(side):
        await side.next("input_text.end")
        await side.created(1)
        await side.socket.close(code, "of the server's own")

    async def use(url):
        async with SpeechClient(url) as client:
            first, second = await client.speak("x"), await client.speak("y")
            for speech in (first, second):
                with pytest.raises(ConnectionLostError, match=rf"of the server's own \({code}\)"):
                    await speech.pcm()
            with pytest.raises(ConnectionLostError):
                await (await client.speak("z")).pcm()

    with_script(script, use)


def test_a_server_that_breaks_the_protocol_is_named():
    async def script(side):
        await side.next("input_text.end")
        await side.created(1)
        await side.socket.send("not JSON")

    async def use(url):
        async with SpeechClient(url) as client:
            with pytest.raises(ClientError, match="does not keep to the protocol"):
                await (await client.speak("x")).pcm()

    with_script(script, use)


def test_unknown_events_of_a_newer_server_are_passed_over():
    async def script(side):
        await side.next("input_text.end")
        await side.say("rate_limits.updated", rate_limits=[])
        await side.created(1, colour="green")
        await side.audio(1, [1024])
        await side.done(1)

    async def use(url):
        async with SpeechClient(url) as client:
            assert len(await (await client.speak("x")).pcm()) == 1

    with_script(script, use)


def test_the_blocking_form_does_the_same():
    async def script(side):
        await side.next("input_text.end")
        assert [e["text"] for e in side.seen if "text" in e] == ["a ", "b"]
        await side.created(1)
        await side.audio(1, [0, 16384], [-32768])
        await side.done(1)

    def use_blocking(url):
        with SyncSpeechClient(url) as client:
            speech = client.speak(iter(["a ", "b"]))
            assert np.concatenate(list(speech)).tolist() == [0.0, 0.5, -1.0]
            assert speech.result.n_packets == 2

    async def use(url):
        await asyncio.to_thread(use_blocking, url)

    with_script(script, use)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost:9000", "ws://localhost:9000/v1/audio/speech/stream"),
        ("http://host:1/", "ws://host:1/v1/audio/speech/stream"),
        ("wss://host/own/path?x=1", "wss://host/own/path?x=1"),
        ("ws://[::1]:8765", "ws://[::1]:8765/v1/audio/speech/stream"),
    ],
)
def test_addresses(given, expected):
    assert speech_url(given) == expected


@pytest.mark.parametrize("given", ["", "ftp://host", "ws://", "host:port", "host:99999"])
def test_bad_addresses_are_refused(given):
    with pytest.raises(ConnectError, match="no server address"):
        speech_url(given)


def test_nobody_there_says_how_to_start_a_server():
    async def run():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectError, match="parley serve"):
            await SpeechClient(f"127.0.0.1:{port}").connect()

    asyncio.run(run())


def test_another_kind_of_server_is_named():
    async def run():
        async def handle(socket):
            await socket.wait_closed()

        async with serve(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectError, match=r"not a Parley|no Parley|does not speak"):
                await SpeechClient(f"127.0.0.1:{port}").connect()

    asyncio.run(run())
