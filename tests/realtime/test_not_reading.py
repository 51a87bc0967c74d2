"""Clients that stop reading for half a minute, and what the others hear meanwhile.

The engine is real and runs on a clock that its work moves, so a first sound is so many seconds of
work, whatever else the machine does. What is compared is the same day with and without them.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from tests.engine.harness import load_toy
from tests.realtime.harness import run, until
from tests.realtime.stepped import stepped_house
from tests.realtime.test_clock_jumps import CONFIG as LONG_SESSIONS
from tests.realtime.test_flow import SMALL, connect_raw
from tests.realtime.test_wire_cases import closed

STUCK_S = 30.0
N_STUCK = 4
N_OTHERS = 20
ENGINE = EngineConfig(max_streams=8, lead_s=2.0)
CONFIG = replace(LONG_SESSIONS, send=replace(SMALL, hard_s=20.0, blocked_s=STUCK_S + 30.0))
ENDLESS = {"options": {"frames": 3000}, "output": {"codec": "pcm16", "sample_rate_hz": 48000}}


async def speak_without_reading(here, stack):
    """Ask for minutes of speech, and take what the kernel takes."""
    raw = await connect_raw(here)
    client = await stack.enter_async_context(here.client(sock=raw, max_queue=1))
    await client.send("session.update", session=ENDLESS)
    await client.event("session.updated")
    await client.text("A long story that nobody hears.")
    return client


async def others_hear(here) -> list[float]:
    """First sounds of callers, one after another over half a minute, from their coming to it."""
    until_s = here.clock.now_s + STUCK_S
    first = len(here.engine.sounded_s)
    async with here.client() as client:
        await client.send("session.update", session={"options": {"frames": 4}})
        await client.event("session.updated")
        for n in range(N_OTHERS):
            assert (await client.say(f"This is caller {n}.")).status == "completed"
            here.clock.advance(max(0.0, (until_s - here.clock.now_s) / (N_OTHERS - n)))
    return sorted(list(here.engine.first_sounds_s().values())[first:])


def a_day(n_stuck: int) -> list[float]:
    """What the others hear beside so many that do not read."""

    async def scenario():
        model = load_toy("toy-interleaved")  # seven rows a frame: there is work to be delayed by
        async with stepped_house(CONFIG, model=model, engine_config=ENGINE) as here:
            async with AsyncExitStack() as stack:
                stuck = [await speak_without_reading(here, stack) for _ in range(n_stuck)]
                # All are held back before anybody else comes.
                await until(lambda: here.sample("parley_pauses_total") >= n_stuck)
                waits_s = await others_hear(here)
                # Memory is bounded by the marks, not by the half minute.
                longest_s = here.sample("parley_longest_queue_seconds")
                assert longest_s < CONFIG.send.high_s + ENGINE.lead_s
                here.clock.advance(CONFIG.send.blocked_s)
                # They are let go before they read again.
                name = "parley_closes_total"
                await until(lambda: here.sample(name, code="1013") == n_stuck)
                for client in stuck:
                    assert (await closed(client))[0] == 1013
            return waits_s

    return run(scenario)


def p95(values: list[float]) -> float:
    return values[math.ceil(0.95 * len(values)) - 1]


def test_clients_that_stop_reading_for_half_a_minute_delay_nobody_by_a_tenth():
    alone = a_day(0)
    beside = a_day(N_STUCK)
    assert len(alone) == len(beside) == N_OTHERS
    assert p95(beside) == pytest.approx(p95(alone), rel=0.1)
