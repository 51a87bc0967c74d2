"""The gateway's clock leaps by an hour; the clock on the wall may do what it likes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from realtime.limits import TokenBucket
from realtime.playout import PlayoutClock
from tests.realtime.harness import FAST_CONFIG, run, until
from tests.realtime.stepped import stepped_house
from tests.realtime.test_wire_cases import closed

HOUR_S = 3600.0
CONFIG = replace(FAST_CONFIG, max_session_s=24 * HOUR_S, drain_timeout_s=30.0)
ROOT = Path(__file__).parents[2]
DATES_FOR_CLIENTS = {"realtime/lanes/client_secrets.py", "realtime/conversation/in_force.py"}
"""They tell the client until when something lasts, and decide nothing by it."""
WALL_CLOCK = re.compile(r"time\.time\b|time_ns|datetime\.now|utcnow|gmtime|localtime|today\(")


def test_over_a_leap_the_one_who_speaks_is_served_and_the_idle_one_is_sent_away():
    async def scenario():
        async with stepped_house(CONFIG) as here, here.client() as idle, here.client() as speaks:
            # Who has said something is idle; who never has is late with the first message.
            await idle.say("I have spoken.")
            options = {"frames": 100}
            await speaks.send("session.update", session={"options": options})
            await speaks.event("session.updated")
            await speaks.text("A speech over the leap.")
            await until(lambda: here.sample("parley_ttfa_seconds_count") == 2)
            here.clock.advance(HOUR_S)
            assert await closed(idle) == (1000, "idle for 60 s")
            spoken = await speaks.spoken()
            assert spoken.status == "completed"
            assert spoken.n_samples == 100 * 1920
            async with here.client() as after:
                assert (await after.say("And after it.")).status == "completed"
            # An hour in which a listener had nothing to play, once.
            assert HOUR_S - 60 < here.sample("parley_underrun_seconds_total") < HOUR_S + 60

    run(scenario)


def test_over_a_leap_one_that_never_spoke_is_told_so():
    async def scenario():
        async with stepped_house() as here, here.client() as client:
            here.clock.advance(HOUR_S)
            assert await closed(client) == (1008, "no message within 10 s")

    run(scenario)


def test_a_stop_over_a_leap_still_lets_the_speech_end():
    async def scenario():
        async with stepped_house(CONFIG) as here, here.client() as client:
            await client.send("session.update", session={"options": {"frames": 100}})
            await client.event("session.updated")
            await client.text("The last words.")
            await until(lambda: here.sample("parley_ttfa_seconds_count"))
            draining = asyncio.create_task(here.server.gateway.drain())
            here.clock.advance(HOUR_S)
            spoken = await client.spoken()
            assert (spoken.status, spoken.n_samples) == ("completed", 100 * 1920)
            assert await closed(client) == (1001, "server is stopping")
            await draining

    run(scenario)


def test_a_leap_fills_no_bucket_past_its_brim():
    bucket = TokenBucket(rate_per_s=10.0, burst=5.0, now_s=100.0)
    for _ in range(5):
        bucket.take(100.0)
    assert bucket.take(100.0 + HOUR_S) == 4.0


def test_after_a_leap_a_listener_has_heard_what_it_was_sent_and_no_more():
    playout = PlayoutClock()
    playout.on_sent(2.0, 100.0)
    assert (playout.heard_s(100.0 + HOUR_S), playout.ahead_s(100.0 + HOUR_S)) == (2.0, 0.0)
    playout.on_sent(1.0, 100.0 + HOUR_S)
    assert playout.ahead_s(100.0 + HOUR_S) == 1.0


def test_nothing_is_decided_by_the_clock_on_the_wall():
    """It jumps with the network's time; only the dates that clients are told come from it."""
    reads = {
        path.relative_to(ROOT).as_posix()
        for package in ("realtime", "engine", "models")
        for path in (ROOT / package).rglob("*.py")
        if WALL_CLOCK.search(path.read_text())
    }
    assert reads == DATES_FOR_CLIENTS
