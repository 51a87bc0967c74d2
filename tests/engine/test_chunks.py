"""Chunks: small first, then as large as the slack allows; no frame lost, none twice."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine import chunks, deadlines
from models.spec import CodecSpec
from tests.engine.policy_streams import (
    CODEC,
    FRAME,
    RATE_HZ,
    fast_costs,
    limits,
    playing,
    startup,
)

NOW_S = 100.0


def _ramp(codec: CodecSpec = CODEC, step_s: float = 5e-3, **settings) -> chunks.Ramp:
    return chunks.ramp(limits(codec, **settings), fast_costs(), step_s, step_s)


def _begun(**fields):
    return startup(n_prefilled=[4], **fields)


def test_the_first_chunk_is_the_smallest_that_is_ready():
    stream = _begun()
    assert chunks.next_chunk(stream, NOW_S, _ramp()) is None
    stream.frames_ready = 3
    work = chunks.next_chunk(stream, NOW_S, _ramp())
    assert work is not None
    assert (work.n_frames, work.n_valid, work.n_context) == (1, 1, 0)
    assert work.is_first
    assert not work.is_last


def test_the_first_chunk_is_larger_where_the_second_would_come_too_late():
    """A frame plays 100 ms; at 80 ms a step one frame ends before the next has been decoded."""
    stream = _begun(frames_ready=1)
    assert chunks.next_chunk(stream, NOW_S, _ramp(step_s=0.08)) is None
    stream.frames_ready = 2
    work = chunks.next_chunk(stream, NOW_S, _ramp(step_s=0.08))
    assert work is not None
    assert work.n_frames == 2


def test_the_first_chunk_makes_up_for_audio_that_the_gateway_holds():
    """One frame of 100 ms would last until the next, but not less what has not left yet."""
    stream = _begun(frames_ready=1)
    for held_s, is_sent in ((0.0, True), (0.05, False)):
        ramp = chunks.ramp(limits(held_s=held_s), fast_costs(), 0.035, 0.035)
        assert (chunks.next_chunk(stream, NOW_S, ramp) is not None) == is_sent


def test_the_first_chunk_gives_sound_despite_the_look_ahead():
    codec = CodecSpec(chunk_frames=(1, 2, 4), lookahead_frames=2)
    stream = _begun(frames_ready=3)
    assert chunks.next_chunk(stream, NOW_S, _ramp(codec)) is None
    stream.frames_ready = 4
    work = chunks.next_chunk(stream, NOW_S, _ramp(codec))
    assert work is not None
    assert work.n_frames == 4


@pytest.mark.parametrize(
    ("slack_s", "n_waiting", "size"),
    [
        (0.05, 1, 1),
        (0.05, 3, 2),  # ready frames need no waiting: the largest size among them
        (0.45, 1, None),  # time for a second frame, and the mark
        (0.35, 1, None),  # the same, at the pace of this device
        (0.3, 1, 1),
        (2.0, 7, None),
        (2.0, 8, 8),
        (-1.0, 8, 1),  # late already: the soonest that there is
    ],
)
def test_sizes_grow_with_slack(slack_s, n_waiting, size):
    stream = playing(1, slack_s=slack_s, frames_ready=50 + n_waiting)
    work = chunks.next_chunk(stream, NOW_S, _ramp(urgent_s=0.3))
    assert (work and work.n_frames) == size


def test_a_size_whose_own_decoding_would_come_too_late_is_not_taken():
    costs = fast_costs()
    costs.chunk.calibrate([(1, 0.03), (11, 0.33)])
    ramp = chunks.ramp(limits(), costs, 5e-3, 5e-3)
    stream = playing(1, slack_s=0.2, frames_ready=58)
    work = chunks.next_chunk(stream, NOW_S, ramp)
    assert work is not None
    assert work.n_frames == 4


def test_nothing_is_sent_to_a_client_that_cannot_take_it_or_wants_only_text():
    ready = {"slack_s": 0.1, "frames_ready": 58}
    assert chunks.next_chunk(playing(1, is_paused=True, **ready), NOW_S, _ramp()) is None
    assert chunks.next_chunk(playing(1, wants_pcm=False, **ready), NOW_S, _ramp()) is None


def test_the_throughput_policy_takes_only_the_largest():
    ramp = _ramp(policy="throughput")
    assert chunks.next_chunk(_begun(frames_ready=7), NOW_S, ramp) is None
    work = chunks.next_chunk(_begun(frames_ready=9), NOW_S, ramp)
    assert work is not None
    assert work.n_frames == 8


def test_a_stream_without_a_frame_ends_without_a_chunk():
    stream = _begun(is_generation_done=True)
    assert chunks.next_chunk(stream, NOW_S, _ramp()) is None
    assert chunks.is_delivered(stream, CODEC)


def test_a_chunk_is_launched_once():
    stream = _begun(frames_ready=2)
    work = chunks.next_chunk(stream, NOW_S, _ramp())
    assert work is not None
    chunks.take(stream, work)
    with pytest.raises(AssertionError, match="in order"):
        chunks.take(stream, work)


GRID = CodecSpec(
    chunk_frames=(25, 50), first_frames=(13, 38), lookahead_frames=8, last_room_frames=3
)


def test_a_first_call_has_a_ramp_of_its_own():
    stream = _begun(frames_ready=12)
    assert chunks.next_chunk(stream, NOW_S, _ramp(GRID)) is None
    stream.frames_ready = 30
    work = chunks.next_chunk(stream, NOW_S, _ramp(GRID))
    assert work is not None
    assert work.n_frames == 13
    chunks.take(stream, work)
    assert chunks.next_chunk(stream, NOW_S, _ramp(GRID)) is None, "17 frames wait for 25"
    stream.frames_ready = 38
    work = chunks.next_chunk(stream, NOW_S, _ramp(GRID))
    assert work is not None
    assert work.n_frames == 25


def test_a_first_chunk_that_nobody_waits_for_is_the_largest_of_its_ramp():
    stream = startup(n_prefilled=[4], is_paced=False, frames_ready=40)
    work = chunks.next_chunk(stream, NOW_S, _ramp(GRID))
    assert work is not None
    assert work.n_frames == 38


def test_a_stream_joins_no_call_of_a_size_that_is_not_its_own():
    stream = _begun(frames_ready=60)
    assert chunks.chunk_of_size(stream, 25, _ramp(GRID)) is None
    work = chunks.chunk_of_size(stream, 13, _ramp(GRID))
    assert work is not None
    chunks.take(stream, work)
    assert chunks.chunk_of_size(stream, 13, _ramp(GRID)) is None
    assert chunks.chunk_of_size(stream, 25, _ramp(GRID)) is not None


@pytest.mark.parametrize(
    ("n_waiting", "size", "n_valid", "is_last"),
    [
        (0, 25, 0, True),
        (22, 25, 22, True),
        (23, 50, 23, True),  # 25 have no room for what was held back
        (25, 50, 25, True),
        (47, 50, 47, True),
        (48, 25, 25, False),  # and 23 in the next
        (60, 50, 50, False),
    ],
)
def test_a_last_call_has_room_for_what_was_held_back(n_waiting, size, n_valid, is_last):
    stream = playing(1, slack_s=0.1, frames_ready=50 + n_waiting, is_generation_done=True)
    work = chunks.next_chunk(stream, NOW_S, _ramp(GRID))
    assert work is not None
    assert (work.n_frames, work.n_valid, work.is_last) == (size, n_valid, is_last)


def test_the_last_of_a_stream_joins_only_a_call_with_room():
    stream = playing(1, slack_s=0.1, frames_ready=50 + 23, is_generation_done=True)
    assert chunks.chunk_of_size(stream, 25, _ramp(GRID)) is None
    work = chunks.chunk_of_size(stream, 50, _ramp(GRID))
    assert work is not None
    assert work.is_last


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(sorted)


@given(
    sizes=SIZES,
    first=st.just([]) | SIZES,
    lookahead=st.integers(0, 6),
    room=st.integers(0, 3),
    context=st.integers(0, 5),
    n_frames=st.integers(0, 60),
    pace=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    step_s=st.floats(1e-3, 0.5),
    n_tail=st.integers(0, 9),
    policy=st.sampled_from(["latency", "throughput"]),
)
def test_every_frame_goes_to_the_codec_once_and_in_order(
    sizes, first, lookahead, room, context, n_frames, pace, step_s, n_tail, policy
):
    """For every length and pace: the reference sent the last chunk twice at whole intervals.

    The end is known `n_tail` steps after the last frame: an end row gives no frame.
    """
    for ramp_sizes in (sizes, first):
        assume(not ramp_sizes or ramp_sizes[-1] >= ramp_sizes[0] - 1 + room)
    codec = CodecSpec(
        chunk_frames=tuple(sizes),
        first_frames=tuple(first),
        lookahead_frames=lookahead,
        last_room_frames=room,
        left_context_frames=context,
    )
    ramp = _ramp(codec, policy=policy)
    stream = _begun()
    now_s, n_steps, seen, heard = 0.0, 0, [], 0
    while not chunks.is_delivered(stream, codec):
        n_steps += 1
        assert n_steps < 20 * n_frames + 100, "the stream never ends"
        now_s += step_s
        stream.frames_ready = min(n_frames, stream.frames_ready + pace[n_steps % len(pace)])
        if sum(pace) == 0 or stream.frames_ready == n_frames:
            n_tail -= 1
            stream.is_generation_done = n_tail < 0
        work = chunks.next_chunk(stream, now_s, ramp)
        if work is None:
            continue
        assert work.n_frames in (first if first and work.is_first else sizes)
        assert work.n_valid == work.n_frames or work.is_last
        assert 0 <= work.n_valid <= work.n_frames - room * work.is_last
        assert work.n_context == min(context, work.first_frame)
        assert work.is_first == (not seen)
        assert work.chunk_idx == stream.chunk_idx
        seen += range(work.first_frame, work.first_frame + work.n_valid)
        chunks.take(stream, work)
        # What a codec with this look-ahead gives: all but the frames that it holds back.
        n_audio = (
            stream.frames_decoded if work.is_last else max(0, stream.frames_decoded - lookahead)
        )
        n_new, heard = n_audio - heard, n_audio
        deadlines.record_sent(stream, n_new * FRAME.samples_per_frame, RATE_HZ, now_s)
    assert seen == list(range(stream.frames_ready))
    assert heard == stream.frames_ready, "nothing is held back at the end"
    assert chunks.next_chunk(stream, now_s, ramp) is None


@given(
    slack_s=st.floats(0.02, 4.0),
    n_waiting=st.integers(0, 20),
    urgent_s=st.floats(0.0, 0.5),
    step_s=st.floats(1e-3, 0.1),
)
def test_waiting_for_a_larger_chunk_never_makes_a_stream_late(slack_s, n_waiting, urgent_s, step_s):
    """A device that keeps the pace it showed: every chunk is there before it is due."""
    ramp = _ramp(step_s=step_s, urgent_s=urgent_s)
    stream = playing(1, slack_s=slack_s, now_s=0.0, frames_ready=50 + n_waiting)
    if n_waiting == 0 and slack_s < ramp.pace_s + 4e-3:
        return  # nothing could be in time
    now_s = 0.0
    for _ in range(60):
        work = chunks.next_chunk(stream, now_s, ramp)
        if work is None:
            now_s += ramp.pace_s
            stream.frames_ready += 1
            continue
        now_s += ramp.call_s[CODEC.chunk_frames.index(work.n_frames)]
        chunks.take(stream, work)
        deadlines.record_sent(stream, work.n_valid * FRAME.samples_per_frame, RATE_HZ, now_s)
        break
    assert stream.chunk_idx == 21
    assert stream.n_late_chunks == 0
