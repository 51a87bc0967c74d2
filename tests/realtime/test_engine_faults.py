"""What goes wrong in the engine, as clients see it; afterwards nothing of it is left.

The parts are tested one by one in tests/engine; here is what reaches who.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.thread import EngineThread
from models.toy.faulty import FaultyModel
from realtime.bridge import EventRelay
from realtime.server import Server, build_app
from tests.engine.harness import load_toy
from tests.realtime import harness
from tests.realtime.harness import FAST_CONFIG, run, until
from tests.realtime.stepped import ENGINE, stepped_house
from tests.realtime.test_http_lane import UPGRADE
from tests.realtime.test_wire_cases import closed

N_FRAMES = 12
TEXT = "One of several who speak at once."
PATIENCE_S = 60.0


async def speak(client, **options):
    """Say it with these options of the model; PCM16, so that samples are counted exactly."""
    output = {"codec": "pcm16"}
    await client.send("session.update", session={"options": options, "output": output})
    await client.event("session.updated")
    return await client.say(TEXT)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("plan", "model_error"),
        ("nan", "numerical_error"),
        ("step", "model_error"),
        ("decode", "model_error"),
    ],
)
def test_a_model_or_codec_that_fails_for_one_of_a_batch_fails_one_response(fault, code):
    async def scenario():
        model = FaultyModel(load_toy("toy-depth"))
        async with stepped_house(model=model) as here, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(here.client()) for _ in range(4)]
            faults = [{"fault": fault, "fault_at": 5}, {}, {}, {}]
            options = [{"frames": N_FRAMES, **each} for each in faults]
            bad, *others = await asyncio.gather(*map_speak(clients, options))
            assert bad.status == "failed"
            assert bad.done["status_details"]["error"]["code"] == code
            for other in others:
                assert other.status == "completed"
                assert other.n_samples == N_FRAMES * 1920
            # The socket stays, and so does everybody's place.
            assert (await speak(clients[0], fault="none")).status == "completed"

    run(scenario)


def map_speak(clients, options):
    return [speak(client, **each) for client, each in zip(clients, options, strict=True)]


def test_a_model_that_never_stops_is_cut_at_its_most_and_others_are_served():
    async def scenario():
        model = FaultyModel(load_toy("toy-depth"))
        async with (
            stepped_house(model=model) as here,
            here.client() as endless,
            here.client() as other,
        ):
            cut, whole = await asyncio.gather(
                speak(endless, fault="endless", max_seconds=8), speak(other, frames=N_FRAMES)
            )
            assert (cut.status, cut.n_samples) == ("incomplete", 8 * 24_000)
            assert whole.status == "completed"
            # The engine itself ended it: the gateway had nothing to cut.
            assert here.sample("parley_engine_n_finished_total", model="toy") == 2
            assert here.sample("parley_engine_n_aborted_total", model="toy") == 0

    run(scenario)


def test_short_of_kv_pages_callers_wait_and_all_are_served():
    """Room for two at a time; an empty pool once ended the engine."""

    async def scenario():
        config = replace(ENGINE, page_size=8, n_pages=22)
        async with stepped_house(engine_config=config) as here, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(here.client()) for _ in range(6)]
            here.engine.is_held = True
            speaking = asyncio.gather(
                *(speak(client, frames=70, max_seconds=6) for client in clients)
            )
            await until(lambda: here.sample("parley_streams") == len(clients))
            here.engine.step()
            assert here.sample("parley_engine_n_active", model="toy") == 2
            assert here.sample("parley_engine_n_queued", model="toy") == 4
            here.engine.is_held = False
            for spoken in await speaking:
                assert (spoken.status, spoken.n_samples) == ("completed", 70 * 1920)
            assert here.sample("parley_engine_n_refused_total", model="toy") == 0

    run(scenario)


def test_a_server_that_stops_lets_the_speech_end_and_says_goodbye():
    async def scenario():
        config = replace(FAST_CONFIG, drain_timeout_s=60.0)
        async with (
            stepped_house(config) as here,
            here.client() as client,
            here.client() as idle,
        ):
            speaking = asyncio.create_task(speak(client, frames=60))
            await until(lambda: here.engine.sounded_s)
            draining = asyncio.create_task(here.server.gateway.drain())
            assert await closed(idle) == (1001, "server is stopping")
            spoken = await speaking
            assert (spoken.status, spoken.n_samples) == ("completed", 60 * 1920)
            assert await closed(client) == (1001, "server is stopping")
            await draining

    run(scenario)


def test_when_the_engine_thread_dies_all_are_told_and_the_server_turns_red(caplog):
    """Fault 13: with a dead engine, health stayed green and requests waited for ever."""

    def broken(*, stands_back: bool) -> None:
        raise RuntimeError("a broken invariant")

    async def scenario():
        relay = EventRelay()
        loop = EngineLoop(load_toy("toy-tone"), EngineConfig(max_streams=4), relay, time.monotonic)
        thread = EngineThread([loop])
        thread.start()
        assert await asyncio.to_thread(thread.wait_ready, PATIENCE_S)
        server = Server(build_app({"toy": thread.handles[0]}, FAST_CONFIG, {"toy": relay}))
        here = harness.Gateway(server, None, relay, await server.startup())
        try:
            assert (await here.http("/readyz"))[0] == 200
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(here.client()) for _ in range(6)]
                speaking = [
                    asyncio.create_task(speak(client, frames=100_000)) for client in clients
                ]
                # Some speak, some wait for admission.
                await until(lambda: here.sample("parley_streams") == len(clients))
                await until(lambda: here.sample("parley_ttfa_seconds_count"))
                loop.step = broken
                for spoken in await asyncio.gather(*speaking):
                    assert spoken.status == "failed"
                    assert spoken.done["status_details"]["error"]["code"] == "engine_stopped"
                assert (await here.http("/readyz"))[0] == 503
                status, _, body = await here.http("/healthz")
                assert (status, "a broken invariant" in body.decode()) == (503, True)
                status, headers, _ = await harness.http_get(
                    here.port, "/v1/audio/speech/stream", UPGRADE
                )
                assert (status, "retry-after" in headers) == (503, True)
                assert here.sample("parley_engine_is_alive", model="toy") == 0
            await until(lambda: not here.sample("parley_sessions"))
            assert here.sample("parley_streams") == 0
        finally:
            await server.shutdown()
            await asyncio.to_thread(thread.stop, PATIENCE_S)

    run(scenario)
    assert "a broken invariant" in caplog.text
