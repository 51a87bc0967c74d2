"""Results are made once, a bounded number of them is kept, and a failure is not."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from models.audio.cache import ContentCache

PATIENCE_S = 30.0


def test_what_was_not_asked_for_longest_goes_first():
    made: list[str] = []
    cache: ContentCache[str] = ContentCache(2)

    def ask(key: str) -> str:
        return cache.get(key, lambda: made.append(key) or key.upper())

    assert [ask(key) for key in ("a", "b", "a", "c", "a", "b")] == ["A", "B", "A", "C", "A", "B"]
    assert made == ["a", "b", "c", "b"]


def test_of_several_threads_one_works_and_the_others_wait():
    cache: ContentCache[object] = ContentCache(2)
    n_calls, is_going, may_end = [], threading.Event(), threading.Event()

    def make() -> object:
        n_calls.append(1)
        is_going.set()
        assert may_end.wait(PATIENCE_S)
        return object()

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(cache.get, "a", make)
        assert is_going.wait(PATIENCE_S)
        others = [pool.submit(cache.get, "a", make) for _ in range(2)]
        may_end.set()
        results = {id(one.result(PATIENCE_S)) for one in (first, *others)}
    assert len(results) == len(n_calls) == 1


def test_a_failure_is_told_and_not_kept():
    cache: ContentCache[int] = ContentCache(2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get("a", fail)
    assert cache.get("a", lambda: 3) == 3


def test_a_copy_makes_its_own():
    """Models are copied with what they hold; a lock cannot be."""
    cache: ContentCache[int] = ContentCache(1)
    assert cache.get("a", lambda: 3) == 3
    copied = copy.deepcopy(cache)
    assert [copied.get("a", lambda: 4), copied.get("b", lambda: 5)] == [4, 5]
    assert copied.get("a", lambda: 6) == 6, "as many are kept"
    assert cache.get("a", lambda: 7) == 3
