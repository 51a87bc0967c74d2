"""What waits for an encoder goes in together, in turn, and a fault is of the one that has it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from models.audio.batches import Batcher

PATIENCE_S = 30.0


class Encoder:
    """Doubles numbers, and holds its first call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.is_going, self.may_go = threading.Event(), threading.Event()
        self.n_inside = 0

    def run(self, items: list[int]) -> list[int]:
        self.n_inside += 1
        assert self.n_inside == 1, "one call at a time"
        self.calls.append(items)
        self.is_going.set()
        assert self.may_go.wait(PATIENCE_S)
        self.n_inside -= 1
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]


class Counted(Batcher[int, int]):
    """Tells when a caller has brought its items."""

    def __init__(self, n_most: int, size: Callable[[int], int]) -> None:
        super().__init__(n_most, size)

    def n_waiting(self) -> int:
        with self._changed:
            return len(self._waiting)


def gathered(
    items: list[list[int]], n_most: int = 8, size: Callable[[int], int] = lambda item: 1
) -> tuple[list[list[int]], list[Future[list[int]]]]:
    """Calls that come of several threads, in order, while a first one with 0 is under way."""
    encoder, batcher = Encoder(), Counted(n_most, size)
    with ThreadPoolExecutor(len(items) + 1) as pool:
        first = pool.submit(batcher.results, [0], encoder.run)
        assert encoder.is_going.wait(PATIENCE_S)
        n_expected, futures = 0, []
        for one in items:
            futures.append(pool.submit(batcher.results, one, encoder.run))
            n_expected += len(one)
            waited = threading.Event()
            while batcher.n_waiting() < n_expected:
                waited.wait(0.001)
        encoder.may_go.set()
        assert first.result(PATIENCE_S) == [0]
        for future in futures:
            future.exception(PATIENCE_S)
    return encoder.calls, futures


def test_what_comes_meanwhile_is_the_next_call():
    calls, futures = gathered([[1], [2, 3], [4]])
    assert calls == [[0], [1, 2, 3, 4]]
    assert [future.result() for future in futures] == [[2], [4, 6], [8]]


def test_no_call_has_more_than_the_most():
    calls, futures = gathered([[1, 2, 3, 4, 5], [6]], n_most=4)
    assert calls == [[0], [1, 2, 3, 4], [5, 6]]
    assert [future.result() for future in futures] == [[2, 4, 6, 8, 10], [12]]


def test_the_next_in_turn_goes_with_those_of_about_its_size():
    calls, futures = gathered([[4], [1], [8], [9], [2]], size=lambda item: max(1, item))
    assert calls == [[0], [4, 8, 2], [1], [9]]
    assert [future.result() for future in futures] == [[8], [2], [16], [18], [4]]


def test_a_fault_is_told_to_the_one_that_brought_it():
    calls, (good, bad) = gathered([[1], [13]])
    assert calls == [[0], [1, 13], [1], [13]]
    assert good.result() == [2]
    with pytest.raises(ValueError, match="thirteen"):
        bad.result()


def test_nothing_and_alone():
    batcher: Batcher[int, int] = Batcher(4, lambda item: 1)
    assert batcher.results([], lambda items: items) == []
    assert batcher.results([3], lambda items: items) == [3]
    with pytest.raises(ValueError, match="shorter"):
        batcher.results([3], lambda items: [])
    assert copy.deepcopy(batcher).results([3], lambda items: items) == [3]
