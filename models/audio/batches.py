"""Encoders that several requests wait for: what is waiting goes in together. Worker threads.

Prompts are planned in threads that know nothing of one another. Here those that want the same
encoder meet: one of them runs it, on what all of them brought, while the others wait; what comes
meanwhile makes the next batch. Nobody waits for company: a call that finds the encoder idle runs
alone. So an encoder has one thread's work at a time, however many requests there are, and on a GPU
its device stream few and full calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Job(Generic[Item, Result]):
    """One item on its way."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.is_done = False
        self.results: list[Result] = []
        self.error: Exception | None = None


class Batcher(Generic[Item, Result]):
    """Runs items of several threads together, in the order in which they came.

    Args:
        n_most: items of a call.
        size: of an item. A shorter one is filled up to the longest: only what is at least half as
            long as the one whose turn it is, and at most twice as long, goes with it.
    """

    def __init__(self, n_most: int, size: Callable[[Item], int]) -> None:
        self._n_most = n_most
        self._size = size
        self._changed = threading.Condition()
        self._waiting: deque[_Job[Item, Result]] = deque()
        self._is_running = False

    def __deepcopy__(self, memo: dict[int, object]) -> Batcher[Item, Result]:
        """An idle one: a copied model runs its own encoder."""
        return Batcher(self._n_most, self._size)

    def results(
        self, items: Sequence[Item], run: Callable[[list[Item]], Sequence[Result]]
    ) -> list[Result]:
        """The results of `items`. Blocks. Raises: what running them raises.

        Args:
            items: any number.
            run: the encoder, the same in all calls: results of items, one each, independent of what
                else is among them. It is never called by two threads at once.
        """
        jobs: list[_Job[Item, Result]] = [_Job(item) for item in items]
        with self._changed:
            self._waiting.extend(jobs)
            while not all(job.is_done for job in jobs):
                if self._is_running:
                    self._changed.wait()
                else:
                    self._run_next(run)
        for job in jobs:
            if job.error is not None:
                raise job.error
        return [job.results[0] for job in jobs]

    def _run_next(self, run: Callable[[list[Item]], Sequence[Result]]) -> None:
        """Run a batch, with the lock given back meanwhile."""
        batch = self._next_batch()
        self._is_running = True
        self._changed.release()
        try:
            _run_jobs(batch, run)
        finally:
            self._changed.acquire()
            self._is_running = False
            for job in batch:
                job.is_done = True
            self._changed.notify_all()

    def _next_batch(self) -> list[_Job[Item, Result]]:
        n = self._size(self._waiting[0].item)
        fitting = [job for job in self._waiting if n <= 2 * self._size(job.item) <= 4 * n]
        batch = fitting[: self._n_most]
        for job in batch:
            self._waiting.remove(job)
        return batch


def _run_jobs(
    batch: Sequence[_Job[Item, Result]], run: Callable[[list[Item]], Sequence[Result]]
) -> None:
    try:
        results = run([job.item for job in batch])
        for job, result in zip(batch, results, strict=True):
            job.results.append(result)
    except Exception as error:  # noqa: BLE001  told to those who brought it
        if len(batch) == 1:
            batch[0].error = error
            return
        # One of them may be at fault, or all together too much.
        for job in batch:
            job.results.clear()
            _run_jobs([job], run)
