"""What a server says of itself."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.server_state import NUMBERS, http_url, parse_state, read_models, read_state
from loadtest.target import Target
from realtime.client.spoken import ConnectError
from tests.realtime.harness import gateway, run

TEXT = """\
# HELP parley_sessions Open sockets
# TYPE parley_sessions gauge
parley_sessions 3.0
parley_sessions_opened_total 17.0
parley_engine_n_active{model="pico"} 2.0
parley_engine_n_active{model="smollm2-135m"} 1.0
process_resident_memory_bytes 5.1e+08
parley_underrun_seconds_total 0.25
"""


def test_numbers_are_read_by_name_and_added_over_engines():
    assert parse_state(TEXT) == {
        "n_sessions": 3.0,
        "n_active": 3.0,
        "rss_bytes": 5.1e8,
        "underrun_s": 0.25,
    }


def test_a_gateway_tells_all_that_is_read():
    async def scene():
        async with gateway() as server:
            target = Target(url=f"127.0.0.1:{server.port}")
            state = await asyncio.to_thread(read_state, target)
            return state, await asyncio.to_thread(read_models, target)

    state, models = run(scene)
    assert set(state) == set(NUMBERS.values())
    assert state["n_tasks"] >= 1
    assert state["rss_bytes"] > 1e6
    assert models == ["fake"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("127.0.0.1:8765", "http://127.0.0.1:8765/metrics"),
        ("ws://host:1", "http://host:1/metrics"),
        ("wss://host/v1/realtime", "https://host/metrics"),
        ("https://host", "https://host/metrics"),
    ],
)
def test_addresses(given, expected):
    assert http_url(given, "/metrics") == expected


def test_nobody_there_says_how_to_start_a_server():
    with pytest.raises(ConnectError, match="parley serve"):
        read_state(Target(url="127.0.0.1:1"))


def test_a_key_is_not_shown():
    assert "secret" not in repr(Target(url="x", api_key="secret"))
