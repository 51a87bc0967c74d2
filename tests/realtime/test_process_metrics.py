"""The process in `/metrics`: what a soak watches."""

from __future__ import annotations

import asyncio
import os

import pytest
from prometheus_client import CollectorRegistry

from realtime.process_metrics import watch_process


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    watch_process(registry)
    return registry


def test_tasks_of_the_running_loop_are_counted(registry):
    async def scenario() -> tuple[float, float]:
        before = registry.get_sample_value("parley_tasks")
        others = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
        during = registry.get_sample_value("parley_tasks")
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return before, during

    before, during = asyncio.run(scenario())
    assert during == before + 3


def test_a_thread_without_a_loop_may_read(registry):
    assert registry.get_sample_value("parley_tasks") == 0
    assert registry.get_sample_value("parley_threads") >= 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_descriptors_and_memory_are_told(registry):
    before = registry.get_sample_value("process_open_fds")
    reader, writer = os.pipe()
    try:
        assert registry.get_sample_value("process_open_fds") == before + 2
    finally:
        os.close(reader)
        os.close(writer)
    assert registry.get_sample_value("process_resident_memory_bytes") > 1_000_000
