"""Start, port, stop: by name, and clean."""

import asyncio
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from websockets.exceptions import ConnectionClosed

from realtime.access.config import AccessConfig
from realtime.bridge import EventRelay
from realtime.config import GatewayConfig
from realtime.errors import ConfigError, ServerStartError
from realtime.server import Server, build_app
from tests.fakes import FakeEngine, fake_spec
from tests.realtime.harness import FAST_CONFIG, done_of, gateway, run, until
from tests.realtime.test_wire_cases import closed

HELLO = "Hello there, my good friend."


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def scenario():
            relay = EventRelay()
            config = GatewayConfig(port=port)
            app = build_app({"fake": FakeEngine(relay)}, config, {"fake": relay})
            with pytest.raises(ServerStartError, match=f"port {port} is in use"):
                await Server(app).startup()

        run(scenario)


def test_a_host_that_is_not_ours_is_named():
    async def scenario():
        relay = EventRelay()
        access = AccessConfig(is_insecure=True)
        config = GatewayConfig(host="192.0.2.1", port=0, access=access)
        app = build_app({"fake": FakeEngine(relay)}, config, {"fake": relay})
        with pytest.raises(ServerStartError, match=r"192\.0\.2\.1"):
            await Server(app).startup()

    run(scenario)


def test_serve_ends_when_told_to():
    async def scenario():
        async with gateway() as here:
            serving = asyncio.create_task(here.server.serve())
            assert (await here.http("/healthz"))[0] == 200
            here.server.stop()
            await serving

    run(scenario)


def test_a_stop_lets_the_response_end_then_closes_1001():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client, here.client() as idle:
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            draining = asyncio.create_task(here.server.gateway.drain())
            assert await closed(idle) == (1001, "server is stopping")
            assert (await here.http("/readyz"))[0] == 503
            with pytest.raises(Exception, match="503"):
                async with here.client():
                    pass
            here.engine.finish()
            assert (await client.spoken()).status == "completed"
            assert await closed(client) == (1001, "server is stopping")
            await draining

    run(scenario)


def test_a_stop_does_not_wait_for_ever():
    config = replace(FAST_CONFIG, drain_timeout_s=0.2)

    async def scenario():
        async with gateway(config, by_hand=True) as here, here.client() as client:
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            await client.text("And this waits behind it.")
            for _ in range(2):
                await client.event("response.created")
            await here.server.gateway.drain()
            done = [await done_of(client), await done_of(client)]
            assert [one["status"] for one in done] == ["cancelled", "cancelled"]
            assert [one["number"] for one in done] == [1, 2]
            assert done[0]["status_details"]["reason"] == "session_ended"
            assert (await closed(client))[0] == 1001
            assert here.engine.streams[0].is_aborted

    run(scenario)


def test_a_second_stop_waits_for_nobody():
    config = replace(FAST_CONFIG, drain_timeout_s=600.0)

    async def scenario():
        async with gateway(config, by_hand=True) as here, here.client() as client:
            serving = asyncio.create_task(here.server.serve())
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            assert here.server.gateway.has_work
            here.server.stop()
            await serving
            draining = asyncio.create_task(here.server.gateway.drain())
            await asyncio.sleep(0)
            here.server.stop()
            await draining
            assert (await closed(client))[0] == 1001
            assert here.engine.streams[0].is_aborted

    run(scenario)


def test_nothing_new_begins_while_the_server_stops():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await client.text(HELLO)
            await until(lambda: here.engine.streams)
            draining = asyncio.create_task(here.server.gateway.drain())
            await asyncio.sleep(0)
            await client.send("input_text.append", text="More.")
            await client.event("response.created")
            assert (await client.error())["code"] == "server_stopping"
            here.engine.finish()
            assert (await client.spoken()).status == "completed"
            await draining

    run(scenario)


def test_a_fault_of_ours_closes_that_socket_alone(monkeypatch, caplog):
    async def scenario():
        async with gateway() as here, here.client() as client, here.client() as other:
            session = next(
                one
                for one in here.server.gateway._sessions
                if one.session_id == client.session["id"]
            )
            monkeypatch.setattr(session, "_perform", lambda event: 1 / 0)
            await client.send("input_text.end")
            assert (await closed(client))[0] == 1011
            assert (await other.say(HELLO)).status == "completed"

    run(scenario)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "fields",
    [
        {"port": 70_000},
        {"max_sessions": 0},
        {"idle_timeout_s": float("nan")},
        {"opus_bitrate_bps": 100},
        {"max_queued_responses": -1},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(fields):
    with pytest.raises(
        ConfigError, match=next(iter(fields)).split("_")[-1].replace("bps", "bitrate")
    ):
        GatewayConfig(**fields)


def test_the_gateway_runs_without_torch():
    """Its modules may not pull in the tensors: clients and the load generator share them."""
    code = "import sys, realtime.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import sys, realtime.protocol; sys.exit('engine' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_browser_that_goes_while_the_server_says_goodbye_is_no_fault(caplog):
    async def scenario():
        async with gateway() as here, here.client() as client:
            client.socket.transport.abort()
            await here.server.gateway.drain()
            with pytest.raises(ConnectionClosed):
                await client.socket.recv()

    run(scenario)
    assert "Traceback" not in caplog.text


def test_a_model_that_only_writes_is_not_asked_to_speak():
    relays = {"writer": EventRelay(), "speaker": EventRelay()}
    specs = {"writer": fake_spec(tasks=("text",)), "speaker": fake_spec()}
    engines = {name: FakeEngine(relays[name], spec=specs[name]) for name in relays}
    made = build_app(engines, GatewayConfig(port=0), relays).state.gateway
    assert list(made.speaking) == ["speaker"]
    assert list(made.specs) == ["writer", "speaker"]
