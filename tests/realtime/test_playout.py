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


def test_the_worst_lateness_is_that_of_a_client_that_makes_no_pause():
    """Two gaps of 0.3 s are 0.6 s late: who waited so long at the start would have heard none."""
    clock = PlayoutClock()
    clock.on_sent(1.0, 10.0)
    assert clock.worst_late_s == 0.0
    clock.on_sent(1.0, 10.5)
    assert clock.worst_late_s == 0.0
    clock.on_sent(1.0, 12.3)
    clock.on_sent(1.0, 13.6)
    assert clock.worst_late_s == pytest.approx(0.6)
    assert clock.underrun_s == pytest.approx(0.6)
    clock.on_sent(1.0, 14.0)
    assert clock.worst_late_s == pytest.approx(0.6)


def test_a_client_that_says_it_plays_later_hears_no_gap_where_we_feared_one():
    clock = PlayoutClock()
    clock.on_sent(1.0, 10.0)
    clock.report(0.3, 10.5)  # it waited 0.2 s before it played
    clock.on_sent(1.0, 11.15)
    assert (clock.worst_late_s, clock.underrun_s) == (0.0, 0.0)
    clock.on_sent(1.0, 12.3)
    assert clock.worst_late_s == pytest.approx(0.1)
    assert clock.underrun_s == pytest.approx(0.1)


def test_a_client_that_waits_for_us_says_nothing_of_how_late_it_plays():
    """Its word in a gap hid the gap: the time that it had waited so far counted as its own."""
    clock = PlayoutClock()
    clock.on_sent(1.0, 10.0)
    assert clock.report(1.0, 11.5) == 1.0
    clock.on_sent(1.0, 11.6)
    assert clock.underrun_s == pytest.approx(0.6)
    assert clock.worst_late_s == pytest.approx(0.6)


def test_a_report_after_a_gap_does_not_take_the_gap_back():
    clock = PlayoutClock()
    clock.on_sent(1.0, 10.0)
    clock.on_sent(1.0, 11.4)
    clock.report(1.2, 11.6)  # exactly as we thought
    clock.on_sent(1.0, 12.5)
    assert clock.worst_late_s == pytest.approx(0.5)
