"""What a step runs, from plain streams and a clock."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import chunks, deadlines, scheduler
from engine.config import Limits
from engine.scheduler import StepPlan
from engine.stream import Stream
from engine.types import StreamId
from models.spec import CodecSpec
from tests.engine.policy_streams import FRAME, RATE_HZ, fast_costs, limits, playing, startup

NOW_S = 100.0


def _plan(streams, now_s=NOW_S, **settings) -> StepPlan:
    return scheduler.plan(streams, now_s, limits(**settings), fast_costs())


def _begun(stream_id: int, **fields) -> Stream:
    return startup(stream_id, n_prefilled=[4], n_rows=1, **fields)


def test_nothing_to_do_is_an_empty_plan_without_an_alarm():
    plan = _plan([])
    assert plan.is_empty
    assert plan.idle_s is None


def test_streams_without_a_sound_run_before_those_with_time_to_spare():
    plan = _plan([playing(i, slack_s=2.5) for i in range(2, 100)] + [_begun(1)])
    assert plan.decode[0] == 1
    # 1.01 ms alone; 26 rows more make it a quarter slower.
    assert 2 <= len(plan.decode) <= 27


def test_a_playing_stream_that_runs_low_joins_a_startup_batch():
    plan = _plan([_begun(1), playing(2, slack_s=0.2), playing(3, slack_s=0.1)])
    assert plan.decode == (1, 3, 2)


def test_earliest_deadline_first_when_rows_are_short():
    streams = [playing(i, slack_s=slack) for i, slack in enumerate([0.3, 0.1, 0.2])]
    plan = _plan(streams, max_streams=2, max_batch_rows=2)
    assert plan.decode == (1, 2)


def test_frames_that_wait_for_the_detokenizer_count_as_slack():
    plan = _plan(
        [playing(1, slack_s=0.1, frames_ready=57), playing(2, slack_s=0.3)],
        max_streams=1,
        max_batch_rows=2,
    )
    assert plan.decode[0] == 2


def test_a_stream_a_lead_ahead_rests_and_the_plan_says_until_when():
    plan = _plan([playing(1, slack_s=3.4), playing(2, slack_s=3.25)], lead_s=3.0)
    assert plan.is_empty
    assert plan.idle_s is not None
    assert abs(plan.idle_s - 0.25) < 1e-6


def test_paused_starved_and_ended_streams_are_left_out():
    streams = [
        playing(1, slack_s=0.0, is_paused=True),
        playing(2, slack_s=0.0, is_starved=True),
        playing(3, slack_s=0.0, is_generation_done=True),
        startup(4, is_paused=True),
    ]
    assert _plan(streams).is_empty


def test_prompts_are_cut_to_the_budget_oldest_first():
    streams = [startup(1, asked_s=2.0, n_prompt=(30,)), startup(2, asked_s=1.0, n_prompt=(50,))]
    plan = _plan(streams, prefill_rows_per_step=64)
    assert [(p.stream_id, p.n_rows, p.is_last) for p in plan.prefill] == [
        (2, 50, True),
        (1, 14, False),
    ]


def test_both_prompts_of_a_pair_end_in_the_same_step():
    stream = startup(1, n_prompt=(30, 7))
    ends = []
    for _ in range(100):
        plan = _plan([stream], prefill_rows_per_step=6)
        assert sum(piece.n_rows for piece in plan.prefill) <= 6
        ends.append({p.sequence_idx for p in plan.prefill if p.is_last})
        for piece in plan.prefill:
            assert piece.first_row == stream.n_prefilled[piece.sequence_idx]
            stream.n_prefilled[piece.sequence_idx] += piece.n_rows
        if stream.is_prefilled:
            break
    assert ends[-1] == {0, 1}
    assert not any(ends[:-1])


def test_a_pair_takes_two_rows_or_none():
    streams = [playing(1, slack_s=0.1, is_guided=True), playing(2, slack_s=0.2)]
    assert _plan(streams, max_streams=1, max_batch_rows=2).decode == (1,)
    assert _plan(streams, max_streams=1, max_batch_rows=3).decode == (1, 2)


def test_a_companion_made_late_is_prefilled_before_the_pair_goes_on():
    stream = playing(1, slack_s=0.1, is_guided=True)
    stream.n_prompt_rows.append(20)
    stream.n_prefilled.append(0)
    plan = _plan([stream])
    assert plan.decode == ()
    assert [(p.sequence_idx, p.n_rows) for p in plan.prefill] == [(1, 20)]


def test_a_long_prompt_waits_for_a_playing_stream_that_it_would_make_late():
    costs = fast_costs()
    costs.prefill.calibrate([(1, 20e-3), (100, 40e-3)])
    tight = playing(1, slack_s=15e-3, frames_ready=50)
    new = startup(2, asked_s=NOW_S - 0.01, n_prompt=(60,))
    plan = scheduler.plan([tight, new], NOW_S, limits(), costs)
    assert plan.decode == (1,)
    assert plan.prefill == ()
    new.asked_s = NOW_S - 0.31
    plan = scheduler.plan([tight, new], NOW_S, limits(), costs)
    assert plan.prefill, "but not for longer than the urgent mark"


def test_urgent_rows_leave_room_for_a_new_streams_prompt():
    streams = [playing(i, slack_s=0.0) for i in range(2, 10)]
    plan = _plan([*streams, startup(1)], max_streams=8, max_batch_rows=8)
    assert [piece.n_rows for piece in plan.prefill] == [4]
    assert len(plan.decode) == 4


def test_a_stream_far_behind_goes_before_new_ones():
    new = [_begun(i) for i in range(1, 5)]
    plan = _plan([*new, playing(9, slack_s=-3.5)], max_streams=2, max_batch_rows=2)
    assert plan.decode[0] == 9


def test_one_detokenizer_call_a_step_for_the_most_pressing():
    streams = [
        playing(1, slack_s=0.15, frames_ready=51),
        playing(2, slack_s=0.11, frames_ready=51),
        playing(3, slack_s=0.9, frames_ready=58),
    ]
    plan = _plan(streams)
    assert [(w.stream_id, w.n_frames) for w in plan.chunks] == [(2, 1), (1, 1)]


def test_a_gap_that_can_still_be_avoided_goes_before_a_first_sound():
    """First sounds are due since they were asked for: with many at once the first listener starved.

    Its second chunk is ready and due before the step after this one ends; the new streams' first
    chunks make another call.
    """
    new = [_begun(idx, frames_ready=2) for idx in (2, 3)]
    with_gap_ahead = playing(1, slack_s=0.004, frames_ready=51)
    with_time = playing(1, slack_s=0.1, frames_ready=51)
    codec = CodecSpec(chunk_frames=(1, 2), lookahead_frames=1)
    for stream, expected in ((with_gap_ahead, [1]), (with_time, [2, 3])):
        made = scheduler.plan([*new, stream], NOW_S, limits(codec), fast_costs())
        assert [work.stream_id for work in made.chunks] == expected


@pytest.mark.parametrize(("policy", "n_ready"), [("latency", 51), ("throughput", 66)])
def test_a_call_holds_at_most_what_the_codec_takes(policy, n_ready):
    streams = [playing(i, slack_s=0.1, frames_ready=n_ready) for i in range(9)]
    assert len(_plan(streams, policy=policy).chunks) == 4


def test_more_ready_chunks_than_a_batch_holds_are_served_step_by_step():
    """The reference looped for ever with more pressing chunks than its batch."""
    streams = {i: playing(i, slack_s=0.1, frames_ready=51) for i in range(9)}
    for _ in range(3):
        for work in _plan(streams.values()).chunks:
            chunks.take(streams[work.stream_id], work)
    assert all(stream.frames_waiting == 0 for stream in streams.values())


def test_chunks_with_time_wait_for_company_and_a_last_one_does_not():
    assert _plan([playing(1, slack_s=2.0, frames_ready=58)]).chunks == ()
    ended = playing(1, slack_s=2.0, frames_ready=53, is_generation_done=True)
    runs = playing(2, slack_s=0.1)
    (work,) = _plan([ended, runs]).chunks
    assert (work.n_frames, work.n_valid, work.is_last) == (4, 3, True)


def test_the_throughput_policy_runs_everything():
    streams = [playing(1, slack_s=50.0), _begun(2), startup(3)]
    plan = _plan(streams, policy="throughput")
    assert set(plan.decode) == {1, 2}
    assert [piece.stream_id for piece in plan.prefill] == [3]


def test_text_streams_run_without_deadlines():
    text = playing(1, slack_s=-500.0, wants_pcm=False)
    plan = _plan([text, _begun(2, asked_s=NOW_S)], max_streams=1, max_batch_rows=2)
    assert set(plan.decode) == {1, 2}


def test_a_stream_that_is_not_paced_is_never_left_out_for_being_ahead():
    plan = _plan([playing(1, slack_s=60.0, is_paced=False), playing(2, slack_s=3.4)], lead_s=3.0)
    assert plan.decode == (1,)
    assert _plan([startup(1, is_paced=False)]).prefill


@pytest.mark.parametrize(
    "in_need",
    [startup(2), _begun(2), playing(2, slack_s=0.2), playing(2, slack_s=-5.0)],
    ids=["new", "without a sound", "low", "far behind"],
)
def test_a_stream_that_is_not_paced_yields_to_a_paced_one_in_need(in_need):
    unpaced = [
        startup(1, is_paced=False),
        playing(3, slack_s=9.0, is_paced=False),
        playing(4, slack_s=9.0, is_paced=False, frames_ready=70),
    ]
    plan = _plan([*unpaced, in_need])
    parts = (*plan.prefill, *plan.chunks)
    served = {*plan.decode, *(part.stream_id for part in parts)}
    assert served == {2}
    at_ease = _plan([*unpaced, playing(2, slack_s=0.4)])
    assert set(at_ease.decode) == {2, 3, 4}
    assert [piece.stream_id for piece in at_ease.prefill] == [1]
    assert [work.stream_id for work in at_ease.chunks] == [4]


def test_a_paced_stream_that_cannot_run_holds_nobody_up():
    held = [playing(2, slack_s=0.0, is_paused=True), playing(3, slack_s=0.0, is_starved=True)]
    assert _plan([playing(1, slack_s=0.0, is_paced=False), *held]).decode == (1,)


def test_chunks_of_a_stream_that_is_not_paced_are_the_largest_from_the_first_on():
    for n_waiting, sizes in [(7, []), (8, [8]), (20, [8])]:
        stream = _begun(1, is_paced=False, frames_ready=n_waiting)
        assert [work.n_frames for work in _plan([stream]).chunks] == sizes


STREAM = st.builds(
    dict,
    kind=st.sampled_from(["startup", "playing", "text", "later", "file"]),
    n_prompt=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    n_frames=st.integers(1, 30),
    slack_s=st.floats(-5.0, 5.0),
    comes=st.integers(0, 30),
    pauses=st.integers(0, 3),
    aborts=st.sampled_from([None, None, 5, 40]),
)


def _made(stream_id: int, seed: dict, now_s: float) -> Stream:
    stream = startup(stream_id, asked_s=now_s, n_prompt=tuple(seed["n_prompt"]))
    stream.max_frames = seed["n_frames"]
    stream.is_guided = len(seed["n_prompt"]) == 2
    stream.wants_pcm = seed["kind"] != "text"
    stream.is_paced = seed["kind"] != "file"
    if seed["kind"] in ("playing", "later"):
        stream.play_from_s = now_s + seed["slack_s"]
    return stream


def _apply(streams: dict[StreamId, Stream], plan: StepPlan, at: Limits, now_s: float) -> None:
    """What the loop does with a plan, with the checks that any plan must stand."""
    n_rows = sum(streams[i].n_step_rows for i in plan.decode)
    n_prefill = sum(piece.n_rows for piece in plan.prefill)
    assert n_rows + n_prefill <= at.config.max_batch_rows
    assert n_prefill <= at.config.prefill_rows_per_step
    assert len(set(plan.decode)) == len(plan.decode)
    assert len({work.stream_id for work in plan.chunks}) == len(plan.chunks)
    assert len({work.n_frames for work in plan.chunks}) <= 1
    works = {work.stream_id: work for work in plan.chunks}
    for stream_id in plan.decode:
        stream = streams[stream_id]
        assert stream.can_decode
        stream.n_rows += 1
        stream.frames_ready += 1
    for piece in plan.prefill:
        stream = streams[piece.stream_id]
        assert not stream.is_paused
        assert 0 < piece.n_rows <= stream.prefill_left[piece.sequence_idx]
        stream.n_prefilled[piece.sequence_idx] += piece.n_rows
    for stream_id, work in works.items():
        assert work.first_frame + work.n_valid <= streams[stream_id].frames_ready
        chunks.take(streams[stream_id], work)
        n_samples = work.n_valid * FRAME.samples_per_frame
        deadlines.record_sent(streams[stream_id], n_samples, RATE_HZ, now_s)
    for stream in streams.values():
        stream.is_generation_done = stream.frames_ready >= stream.max_frames
        if not stream.wants_pcm and stream.n_rows and stream.first_sent_s is None:
            stream.first_sent_s = now_s


@given(
    seeds=st.lists(STREAM, min_size=1, max_size=8),
    rows=st.tuples(st.integers(2, 12), st.integers(2, 40)),
    step_s=st.sampled_from([1e-3, 0.03, 0.3]),
    policy=st.sampled_from(["latency", "throughput"]),
)
def test_whatever_comes_pauses_or_leaves_every_stream_is_served(seeds, rows, step_s, policy):
    """Real time may be out of reach (0.3 s a step): then streams are late, but none is left."""
    at = limits(
        max_streams=2,
        max_batch_rows=max(rows[0], 2),
        prefill_rows_per_step=rows[1],
        startup_batch=2,
        policy=policy,
    )
    costs, now_s, n_steps = fast_costs(), 0.0, 0
    streams: dict[StreamId, Stream] = {}
    coming = dict(enumerate(seeds))
    while coming or streams:
        n_steps += 1
        assert n_steps < 6000, f"starved: {streams}"
        for key in [k for k, seed in coming.items() if seed["comes"] <= n_steps]:
            streams[StreamId(key)] = _made(key, coming.pop(key), now_s)
        for stream_id, stream in list(streams.items()):
            seed = seeds[stream_id]
            stream.is_paused = n_steps % 7 < seed["pauses"]
            if seed["aborts"] is not None and n_steps > seed["comes"] + seed["aborts"]:
                del streams[stream_id]
        before = copy.deepcopy(streams)
        plan = scheduler.plan(streams.values(), now_s, at, costs)
        assert streams == before, "planning changes nothing"
        now_s += step_s if plan.idle_s is None else max(step_s, min(plan.idle_s, 0.5))
        _apply(streams, plan, at, now_s)
        for stream_id in [i for i, s in streams.items() if chunks.is_delivered(s, at.codec)]:
            assert streams[stream_id].frames_ready == seeds[stream_id]["n_frames"]
            del streams[stream_id]
