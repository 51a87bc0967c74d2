"""Engine events reach their own stream's feed, in order, one loop call a step."""

import asyncio

import numpy as np
import pytest

from engine.types import AudioChunk, StreamFailed, StreamFinished, StreamId
from realtime.bridge import EngineBridge, EventRelay, StreamFeed
from tests.fakes import FakeEngine


def chunk(stream_id, idx, n=10):
    return AudioChunk(stream_id=StreamId(stream_id), chunk_idx=idx, pcm=np.full(n, idx, np.float32))


def finished(stream_id):
    return StreamFinished(
        stream_id=StreamId(stream_id), reason="stop", n_prompt_rows=1, n_frames=1, n_samples=10
    )


class CountingLoop:
    """Counts the calls that cross the thread border."""

    def __init__(self, loop):
        self._loop = loop
        self.n_calls = 0

    def call_soon_threadsafe(self, *arguments):
        self.n_calls += 1
        return self._loop.call_soon_threadsafe(*arguments)


def test_one_call_a_step_whatever_the_number_of_streams():
    async def scenario():
        loop = CountingLoop(asyncio.get_running_loop())
        relay = EventRelay()
        relay.attach(loop)
        feeds = [StreamFeed(StreamId(n), 24000) for n in range(1, 6)]
        for feed in feeds:
            relay.register(feed)
        relay([chunk(n, 0) for n in range(1, 6)])
        for feed in feeds:
            assert (await feed.next_chunk(1.0)).tolist() == [0.0] * 10
        assert loop.n_calls == 1

    asyncio.run(scenario())


def test_events_without_a_loop_or_after_its_end_are_no_fault():
    relay = EventRelay()
    relay([chunk(1, 0)])
    loop = asyncio.new_event_loop()
    relay.attach(loop)
    loop.close()
    relay([chunk(1, 0)])


def test_a_feed_gives_its_chunks_then_its_end():
    async def scenario():
        feed = StreamFeed(StreamId(1), 24000)
        for one in (chunk(1, 0), chunk(1, 1, n=0), chunk(1, 2), finished(1)):
            feed.put(one)
        got = [await feed.next_chunk(1.0) for _ in range(3)]
        assert [None if pcm is None else pcm[0] for pcm in got] == [0.0, 2.0, None]
        assert feed.outcome == finished(1)
        assert feed.n_samples == 20

    asyncio.run(scenario())


@pytest.mark.parametrize("indices", [(0, 0), (1,), (0, 2)])
def test_a_doubled_or_lost_chunk_is_a_fault_and_not_audio(indices):
    """The reference system sent the last chunk twice."""

    async def scenario():
        feed = StreamFeed(StreamId(1), 24000)
        for idx in indices:
            feed.put(chunk(1, idx))
        feed.put(finished(1))
        while await feed.next_chunk(1.0) is not None:
            pass
        assert isinstance(feed.outcome, StreamFailed)
        assert feed.outcome.code == "model_error"
        assert feed.end == finished(1)

    asyncio.run(scenario())


def test_silence_of_the_engine_is_noticed():
    async def scenario():
        with pytest.raises(TimeoutError):
            await StreamFeed(StreamId(1), 24000).next_chunk(0.01)

    asyncio.run(scenario())


def test_an_aborted_stream_keeps_nothing_and_is_forgotten_at_its_end():
    async def scenario():
        relay = EventRelay()
        relay.attach(asyncio.get_running_loop())
        engine = FakeEngine(relay)
        bridge = EngineBridge(engine, relay)
        plan = engine.plan(request("a longer text"))
        feed = bridge.open_stream(plan, seed=1, asked_s=0.0, play_from_s=None)
        engine.step()
        await asyncio.sleep(0)
        bridge.abort(feed)
        assert relay.n_streams == 1
        engine.step()
        await asyncio.sleep(0)
        assert relay.n_streams == 0
        assert await feed.next_chunk(1.0) is None

    asyncio.run(scenario())


def request(text):
    from models.spec import PlanRequest

    return PlanRequest(text=text)
