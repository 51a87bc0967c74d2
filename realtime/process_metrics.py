"""What the process holds: memory, descriptors, threads, tasks. Read at scrape time, event loop.

Memory, descriptors and processor time are read from `/proc`; elsewhere than on Linux they are not
there.
"""

from __future__ import annotations

import asyncio
import threading

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector


def watch_process(registry: CollectorRegistry) -> None:
    """Have `registry` tell of this process."""
    ProcessCollector(registry=registry)
    threads = Gauge("parley_threads", "Python threads", registry=registry)
    threads.set_function(threading.active_count)
    tasks = Gauge("parley_tasks", "Tasks of the event loop", registry=registry)
    tasks.set_function(_n_tasks)


def _n_tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # read by a thread that runs no loop
