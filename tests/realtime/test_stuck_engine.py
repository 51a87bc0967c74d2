"""An engine that hangs, seen from outside: red, refusing, and green again when it moves."""

import asyncio
import json
import time

from engine.watchdog import STUCK_AFTER_S
from realtime.bridge import EventRelay
from realtime.server import Server, build_app
from tests.engine.test_thread import PATIENCE_S
from tests.engine.test_watchdog import Hung
from tests.realtime.harness import FAST_CONFIG, http_get, run, until
from tests.realtime.test_http_lane import UPGRADE


def test_a_hung_engine_turns_the_server_red_and_refuses_sockets():
    async def scenario():
        hung = await asyncio.to_thread(Hung)
        server = Server(build_app({"toy": hung.handle}, FAST_CONFIG, {"toy": EventRelay()}))
        port = await server.startup()
        try:
            assert (await http_get(port, "/readyz"))[0] == 200
            hung.clock.advance(STUCK_AFTER_S + 1)
            assert (await http_get(port, "/readyz"))[0] == 503
            status, _, body = await http_get(port, "/healthz")
            assert status == 503
            assert "in one step for 11 s" in json.loads(body)["failures"]["toy"]
            status, headers, _ = await http_get(port, "/v1/audio/speech/stream", UPGRADE)
            assert (status, "retry-after" in headers) == (503, True)
            hung.free()
            deadline_s = time.monotonic() + PATIENCE_S
            await until(lambda: hung.handle.stats().is_ready or time.monotonic() > deadline_s)
            assert (await http_get(port, "/readyz"))[0] == 200
        finally:
            await server.shutdown()
            hung.free()
            await asyncio.to_thread(hung.thread.stop, PATIENCE_S)

    run(scenario)
