"""When audio is due: from what was sent, when it began, and what the client says."""

from __future__ import annotations

import math

import pytest

from engine.deadlines import (
    generated_slack_s,
    is_startup,
    next_chunk_deadline,
    record_playout,
    record_sent,
    slack_s,
)
from tests.engine.policy_streams import RATE_HZ, playing, startup


def test_a_stream_is_in_startup_until_its_first_sound():
    stream = startup(asked_s=3.0)
    assert is_startup(stream)
    assert next_chunk_deadline(stream) == 3.0
    record_sent(stream, 0, RATE_HZ, 3.5)
    assert is_startup(stream), "an empty chunk is no sound"
    record_sent(stream, RATE_HZ, RATE_HZ, 4.0)
    assert not is_startup(stream)
    assert next_chunk_deadline(stream) == 5.0
    assert stream.n_late_chunks == 0


def test_slack_counts_what_was_sent_and_generated_slack_what_waits_too():
    stream = startup()
    record_sent(stream, 2 * RATE_HZ, RATE_HZ, 10.0)
    stream.frames_ready, stream.frames_decoded = 25, 20
    assert slack_s(stream, 11.5) == pytest.approx(0.5)
    assert generated_slack_s(stream, 11.5, 0.1) == pytest.approx(1.0)


def test_a_late_chunk_is_counted_once_and_moves_the_time_line():
    stream = startup()
    record_sent(stream, RATE_HZ, RATE_HZ, 10.0)
    record_sent(stream, RATE_HZ, RATE_HZ, 11.25)
    assert (stream.n_late_chunks, stream.late_s) == (1, 0.25)
    assert next_chunk_deadline(stream) == 12.25
    record_sent(stream, RATE_HZ, RATE_HZ, 12.0)
    assert stream.n_late_chunks == 1


def test_a_later_part_of_a_reply_is_due_when_the_part_before_it_ends():
    stream = startup(play_from_s=20.0)
    assert not is_startup(stream)
    assert next_chunk_deadline(stream) == 20.0
    record_sent(stream, RATE_HZ, RATE_HZ, 15.0)
    assert next_chunk_deadline(stream) == 21.0


def test_nothing_is_due_in_a_stream_that_is_not_paced():
    stream = startup(is_paced=False)
    assert not is_startup(stream)
    record_sent(stream, RATE_HZ, RATE_HZ, 10.0)
    record_sent(stream, RATE_HZ, RATE_HZ, 50.0)
    assert next_chunk_deadline(stream) == math.inf
    assert slack_s(stream, 60.0) == math.inf
    assert stream.n_late_chunks == 0


def test_a_later_part_that_comes_too_late_is_a_gap():
    stream = startup(play_from_s=20.0)
    record_sent(stream, RATE_HZ, RATE_HZ, 20.5)
    assert (stream.n_late_chunks, stream.late_s) == (1, 0.5)
    assert next_chunk_deadline(stream) == 21.5


def test_the_clients_own_report_corrects_the_slack():
    stream = startup()
    record_sent(stream, 4 * RATE_HZ, RATE_HZ, 10.0)
    record_playout(stream, 1.0, 11.3)
    assert slack_s(stream, 11.3) == pytest.approx(3.0)
    record_playout(stream, 2.0, 12.1)
    assert slack_s(stream, 12.1) == pytest.approx(2.0)


@pytest.mark.parametrize("heard_s", [4.0, 9.0, math.nan, math.inf])
def test_a_report_that_cannot_be_right_or_says_nothing_is_ignored(heard_s):
    stream = startup()
    record_sent(stream, 4 * RATE_HZ, RATE_HZ, 10.0)
    record_playout(stream, heard_s, 12.0)
    assert slack_s(stream, 12.0) == 2.0


def test_a_report_before_the_first_sound_is_ignored():
    stream = startup(asked_s=1.0)
    record_playout(stream, 0.0, 5.0)
    assert next_chunk_deadline(stream) == 1.0


def test_text_is_always_due_and_never_late():
    stream = playing(1, slack_s=-50.0, wants_pcm=False)
    assert slack_s(stream, 100.0) == 0.0


def test_the_rate_is_the_models_own():
    """The reference assumed 24 kHz: deadlines of a 22.05 kHz model drifted by 9 %."""
    stream = startup()
    record_sent(stream, 22_050, 22_050, 0.0)
    assert stream.sent_s == 1.0


def test_audio_that_the_gateway_may_hold_makes_chunks_due_earlier_but_not_late():
    """Half a packet of what was sent had not left: listeners had gaps that the engine never saw."""
    stream = playing(1, slack_s=0.2)
    stream.held_s = 0.03
    assert slack_s(stream, 100.0) == pytest.approx(0.17)
    record_sent(stream, RATE_HZ // 10, RATE_HZ, 100.19)
    assert stream.n_late_chunks == 0
