"""The thread pool for what would block the event loop: planning, resampling, encoding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Workers:
    """Threads shared by all sessions.

    Args:
        n_threads: of the pool.
    """

    def __init__(self, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=n_threads, thread_name_prefix="gateway")

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run `work` in a thread. A cancelled caller forgets the result; the work ends anyway."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """Start nothing any more, and wait for what runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
