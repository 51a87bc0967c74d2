"""What has been heard, by send times and by the client's word."""

import pytest

from realtime.playout import PlayoutClock


def test_nothing_is_heard_before_anything_is_sent():
    clock = PlayoutClock()
    assert (clock.heard_s(5.0), clock.ahead_s(5.0), clock.underrun_s) == (0.0, 0.0, 0.0)


def test_audio_plays_from_the_moment_it_is_sent():
    clock = PlayoutClock()
    clock.on_sent(2.0, 10.0)
    assert clock.heard_s(10.5) == pytest.approx(0.5)
    assert clock.ahead_s(10.5) == pytest.approx(1.5)
    assert clock.heard_s(99.0) == pytest.approx(2.0)


def test_a_late_packet_is_an_underrun_and_moves_the_time_line():
    clock = PlayoutClock()
    clock.on_sent(1.0, 0.0)
    clock.on_sent(1.0, 1.5)
    assert clock.underrun_s == pytest.approx(0.5)
    assert clock.heard_s(2.0) == pytest.approx(1.5)


def test_the_clients_word_counts_more_than_the_estimate():
    clock = PlayoutClock()
    clock.on_sent(4.0, 0.0)
    assert clock.report(0.5, 1.0) == 0.5
    assert clock.heard_s(2.0) == pytest.approx(1.5)


@pytest.mark.parametrize(("said", "taken"), [(9.0, 4.0), (-1.0, 0.0), (4.0, 4.0)])
def test_a_report_is_kept_within_what_was_sent(said, taken):
    clock = PlayoutClock()
    clock.on_sent(4.0, 0.0)
    assert clock.report(said, 10.0) == taken


def test_nobody_has_heard_more_than_there_was_time_for():
    """Who claimed so was served before all others, and kept newcomers out of the engine."""
    clock = PlayoutClock()
    clock.on_sent(4.0, 5.0)
    assert clock.report(3.9, 6.0) == pytest.approx(1.0)
    assert clock.ahead_s(6.0) == pytest.approx(3.0)
