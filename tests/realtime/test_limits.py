"""Rates and counts by a given clock."""

import pytest

from realtime.limits import SessionCount, TokenBucket


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
