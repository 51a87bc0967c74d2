"""A client that stops reading, and one that is lost; what load tests use of both clients."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from realtime.audio.opus import OpusEncoder
from realtime.client.speech import SpeechClient
from realtime.client.spoken import ConnectionLostError
from realtime.client.talk import TalkClient
from tests.realtime.client.test_speech import with_script
from tests.realtime.harness import run
from tests.realtime.talk_harness import LOUD, talk

RATE_HZ = 16_000


def test_what_is_unread_comes_after_the_pause():
    is_sent = asyncio.Event()

    async def script(side):
        await side.next("input_text.end")
        await side.created(1)
        await side.audio(1, [1, 2], [3])
        await side.done(1)
        # A pong shows that all before it lies at the client.
        await (await side.socket.ping())
        is_sent.set()

    async def client(url):
        async with SpeechClient(url) as speaker:
            speaker.inlet.pause()
            speech = await speaker.speak("Good day.")
            await is_sent.wait()
            assert not speech.is_over
            speaker.inlet.resume()
            arrivals = [(frame, received_s) async for frame, received_s in speech.arrivals()]
            assert [len(frame.payload) for frame, _ in arrivals] == [4, 2]
            assert speech.sent_s is not None
            assert speech.sent_s < arrivals[0][1] <= arrivals[1][1]
            assert speech.result.n_samples == 3

    with_script(script, client)


def test_a_dropped_connection_is_closed_without_a_word():
    closed = []
    is_asked = asyncio.Event()

    async def script(side):
        await side.next("input_text.end")
        is_asked.set()
        await side.socket.wait_closed()
        closed.append(side.socket.close_code)

    async def client(url):
        async with SpeechClient(url) as speaker:
            speech = await speaker.speak("Good day.")
            await is_asked.wait()
            speaker.inlet.drop()
            with pytest.raises(ConnectionLostError):
                await speech.wait()

    with_script(script, client)
    assert closed == [1006]


def test_a_conversation_can_be_heard_frame_by_frame_and_asked_in_opus():
    """Undecoded frames, each with the time of its arrival; what is sent may be Opus."""
    frames = []

    async def scenario() -> None:
        encoder = OpusEncoder(sample_rate_hz=24_000, bitrate_bps=24_000, complexity=5)
        noise = np.random.default_rng(0).uniform(-LOUD, LOUD, 480).astype(np.float32)
        async with (
            talk() as one,
            TalkClient(
                f"ws://127.0.0.1:{one.port}",
                rate_hz=24_000,
                sent_codec="opus",
                is_decoding=False,
                on_frame=lambda answer, frame, received_s: frames.append((frame, received_s)),
            ) as client,
        ):
            for _ in range(25):
                await client.send_payload(encoder.encode(noise), 480)
            for _ in range(50):
                await client.send_payload(encoder.encode(np.zeros(480, np.float32)), 480)
            await client.until(lambda: bool(client.answers) and client.answers[-1].is_done, 10.0)
            answer = client.answers[-1]
            assert answer.first_sound_s is None
            assert answer.audio.n_packets == len(frames) > 20
            assert [at for _, at in frames] == sorted(at for _, at in frames)

    run(scenario)
