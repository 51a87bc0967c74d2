"""Rates and counts by a given clock."""

import pytest

from realtime.limits import PlaceCount, SessionCount, TokenBucket, WrongTries


def test_a_burst_passes_and_the_next_message_does_not():
    bucket = TokenBucket(rate_per_s=10, burst=5, now_s=0.0)
    assert [bucket.take(0.0) for _ in range(6)] == [4, 3, 2, 1, 0, -1]


def test_tokens_come_back_with_time_up_to_the_burst():
    bucket = TokenBucket(rate_per_s=10, burst=5, now_s=0.0)
    for _ in range(5):
        bucket.take(0.0)
    assert bucket.take(0.2) == pytest.approx(1)
    assert bucket.take(100.0) == pytest.approx(4)


def test_debt_has_a_floor_so_that_a_flood_ends():
    bucket = TokenBucket(rate_per_s=10, burst=5, now_s=0.0)
    assert min(bucket.take(0.0) for _ in range(1000)) == -10


def test_sessions_are_counted_up_to_the_most():
    count = SessionCount(2)
    assert [count.enter() for _ in range(3)] == [True, True, False]
    count.leave()
    assert count.n_sessions == 1
    assert count.enter()


def test_places_are_counted_by_name_and_leave_nothing_behind():
    places = PlaceCount(2)
    assert [places.enter("a") for _ in range(3)] == [True, True, False]
    assert places.enter("b")
    places.leave("a")
    assert places.enter("a")
    for name in ("a", "a", "b"):
        places.leave(name)
    assert not places._taken, "names that are gone would fill the memory"


def test_places_without_a_bound_are_never_full():
    places = PlaceCount(None)
    assert all(places.enter("a") for _ in range(1000))


def test_wrong_tries_make_a_name_wait_and_time_forgives():
    tries = WrongTries(rate_per_s=0.5, burst=3)
    for _ in range(3):
        assert tries.wait_s("a", 0.0) == 0
        tries.add("a", 0.0)
    assert tries.wait_s("a", 0.0) == pytest.approx(2.0)
    assert tries.wait_s("b", 0.0) == 0
    assert tries.wait_s("a", 1.5) == pytest.approx(0.5)
    assert tries.wait_s("a", 2.0) == 0
    tries.add("a", 2.0)
    assert tries.wait_s("a", 2.0) == pytest.approx(2.0)


def test_the_memory_of_wrong_tries_is_bounded():
    tries = WrongTries(rate_per_s=1.0, burst=1, max_names=10)
    for n in range(10_000):
        tries.add(str(n), 0.0)
    assert len(tries._tries) == 10
    assert tries.wait_s("9999", 0.0) > 0
