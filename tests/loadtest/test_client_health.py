"""A client that lagged makes no valid run."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.client_health import MAX_BUSY_PCT, MAX_LAG_P99_MS, ClientHealth, faults_of


@pytest.mark.parametrize("name", ["loop_lags_s", "schedule_lags_s", "microphone_lags_s"])
def test_one_late_moment_in_a_hundred_is_too_many(name):
    late_s = (MAX_LAG_P99_MS + 1) / 1000
    rarely, often = ClientHealth(), ClientHealth()
    getattr(rarely, name).extend([0.0] * 999 + [late_s])
    getattr(often, name).extend([0.0] * 97 + [late_s] * 3)
    assert faults_of(rarely.figures()) == []
    [fault] = faults_of(often.figures())
    assert name.split("_")[0] in fault


def test_a_busy_loop_is_a_fault():
    assert faults_of(ClientHealth(busy_share=MAX_BUSY_PCT / 100).figures()) == []
    assert "busy" in faults_of(ClientHealth(busy_share=(MAX_BUSY_PCT + 1) / 100).figures())[0]


def test_a_loop_that_is_held_up_is_noticed():
    """Every 20 ms somebody blocks the loop for 30: its own timers say so."""
    health = ClientHealth()

    async def scenario() -> None:
        async with health.watch():
            for _ in range(10):
                await asyncio.sleep(0.02)
                time.sleep(0.03)  # noqa: ASYNC251 - what is to be noticed

    asyncio.run(scenario())
    assert any("loop lag" in fault for fault in faults_of(health.figures()))


def test_warm_up_is_forgotten():
    health = ClientHealth(loop_lags_s=[9.0], schedule_lags_s=[9.0], microphone_lags_s=[9.0])
    health.begin()
    assert faults_of(health.figures()) == []
