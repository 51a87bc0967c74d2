"""Who is let in, who waits, who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.admission import Admission, Demand, Giver, can_give_way
from engine.costs import StepCosts
from engine.stream import Stream
from engine.types import StreamId
from tests.engine.policy_streams import CODEC, fast_costs, limits, playing

PLENTY = {"n_free_slots": 100, "n_free_pages": 1000}


def _demand(stream_id: int, **fields) -> Demand:
    needs = {"n_prompt_rows": 20, "n_pages": 4, "asked_s": 0.0, **fields}
    return Demand(stream_id=StreamId(stream_id), **needs)


def _admission(n_pages: int = 1000, **settings) -> Admission:
    return Admission(limits(**settings), n_pages)


def _slow_costs(step_s: float) -> StepCosts:
    """A step takes so long whatever is in it; chunks cost nothing to speak of."""
    costs = StepCosts(CODEC.left_context_frames)
    costs.decode.calibrate([(1, step_s), (2, 2 * step_s)])
    costs.prefill.calibrate([(1, 1e-6), (2, 1e-6)])
    costs.chunk.calibrate([(1, 1e-6), (2, 1e-6)])
    return costs


def _offered(admission: Admission, *ids: int, now_s: float = 0.0, **fields) -> None:
    for stream_id in ids:
        admission.offer(_demand(stream_id, **fields), now_s)


def test_streams_start_in_order_while_there_is_room():
    admission = _admission()
    _offered(admission, 1, 2, 3)
    review = admission.review(0.0, [], fast_costs(), n_free_slots=2, n_free_pages=1000)
    assert review.admitted == (1, 2)
    assert review.refused == ()
    assert admission.n_ahead(StreamId(3)) == 0
    assert admission.n_ahead(StreamId(1)) is None


def test_the_worst_case_of_pages_is_kept_and_a_large_stream_is_not_overtaken():
    admission = _admission()
    admission.offer(_demand(1, n_pages=6), 0.0)
    admission.offer(_demand(2, n_pages=6), 0.0)
    admission.offer(_demand(3, n_pages=1), 0.0)
    review = admission.review(0.0, [], fast_costs(), n_free_slots=9, n_free_pages=10)
    assert review.admitted == (1,)
    review = admission.review(0.1, [], fast_costs(), n_free_slots=9, n_free_pages=10)
    assert review.admitted == (2, 3)


def test_a_stream_that_can_never_fit_is_refused_without_a_hint():
    admission = _admission(n_pages=5)
    _offered(admission, 1, n_pages=6)
    (refusal,) = admission.review(0.0, [], fast_costs(), **PLENTY).refused
    assert (refusal.code, refusal.retry_after_s) == ("prompt_too_long", None)


@pytest.mark.parametrize(("target_load", "n_admitted"), [(0.5, 5), (0.9, 9), (1.0, 10)])
def test_the_predicted_load_stays_under_the_target(target_load, n_admitted):
    """10 ms a row and 10 rows a second: a tenth of real time for each stream."""
    admission = _admission(target_load=target_load)
    _offered(admission, *range(12))
    review = admission.review(0.0, [], _slow_costs(9.99e-3), **PLENTY)
    assert len(review.admitted) == n_admitted


def test_a_guided_stream_counts_as_two_rows():
    admission = _admission(target_load=0.9)
    _offered(admission, *range(12), n_step_rows=2)
    assert len(admission.review(0.0, [], _slow_costs(9.99e-3), **PLENTY).admitted) == 4


def test_one_stream_alone_is_served_however_slow_the_device():
    admission = _admission()
    _offered(admission, 1, 2)
    assert admission.review(0.0, [], _slow_costs(1.0), **PLENTY).admitted == (1,)


def test_streams_that_generate_no_more_take_no_load():
    active = [playing(i, slack_s=2.0, is_generation_done=i > 4) for i in range(9)]
    admission = _admission(target_load=0.65)
    _offered(admission, 20, 21)
    review = admission.review(100.0, active, _slow_costs(9.99e-3), **PLENTY)
    assert review.admitted == (20,)


def test_nobody_new_while_a_stream_that_long_played_has_lost_its_lead():
    admission = _admission()
    _offered(admission, 1, now_s=100.0)
    behind = playing(9, slack_s=0.05)
    assert admission.review(100.0, [behind], fast_costs(), **PLENTY).admitted == ()
    young = playing(9, slack_s=0.05)
    young.first_sent_s, young.sent_s = 99.0, 1.05
    assert admission.review(100.0, [young], fast_costs(), **PLENTY).admitted == (1,)


@pytest.mark.parametrize(("slack_s", "admitted"), [(2.0, (1,)), (0.5, ())])
def test_nobody_new_while_the_detokenizer_could_not_serve_all_in_time(slack_s, admitted):
    """A full call of four takes 90 ms and has half of the time: twelve streams need 540 ms."""
    costs = fast_costs()
    costs.chunk.calibrate([(10, 60e-3), (110, 160e-3)])
    costs.overlap = 0.25
    admission = _admission()
    _offered(admission, 1, now_s=100.0)
    active = [playing(i, slack_s=slack_s, frames_ready=52) for i in range(10, 22)]
    assert admission.review(100.0, active, costs, **PLENTY).admitted == admitted


@pytest.mark.parametrize("held", ["is_paused", "is_starved"])
def test_a_stream_that_waits_for_its_client_holds_nobody_off(held):
    admission = _admission()
    _offered(admission, 1, now_s=100.0)
    behind = playing(9, slack_s=-5.0, **{held: True})
    assert admission.review(100.0, [behind], fast_costs(), **PLENTY).admitted == (1,)


def test_the_throughput_policy_has_no_load():
    admission = _admission(policy="throughput")
    _offered(admission, *range(12))
    assert len(admission.review(0.0, [], _slow_costs(1.0), **PLENTY).admitted) == 12


def test_a_later_part_of_a_reply_goes_first_and_is_not_held_by_load():
    admission = _admission()
    _offered(admission, 1, 2, now_s=100.0)
    _offered(admission, 3, 4, now_s=100.0, is_continuation=True)
    active = [playing(9, slack_s=2.0)]
    review = admission.review(100.0, active, _slow_costs(1.0), **PLENTY)
    assert review.admitted == (3, 4)


def test_newcomers_leave_a_slot_to_the_next_parts_of_replies_that_play():
    """The last part has ended and its slot is free; the next one is on its way to us."""
    admission = _admission(max_streams=16)
    _offered(admission, 1, 2, now_s=100.0)
    active = [playing(i, slack_s=2.0) for i in range(20, 33)]
    review = admission.review(100.0, active, fast_costs(), n_free_slots=3, n_free_pages=1000)
    assert review.admitted == (1,)
    _offered(admission, 3, 4, 5, now_s=100.0, is_continuation=True)
    review = admission.review(100.0, active, fast_costs(), n_free_slots=2, n_free_pages=1000)
    assert review.admitted == (3, 4)


@pytest.mark.parametrize("settings", [{"policy": "throughput"}, {"max_streams": 2}])
def test_no_slot_is_kept_where_there_is_none_to_spare(settings):
    admission = _admission(**settings)
    _offered(admission, 1, now_s=100.0)
    active = [playing(20, slack_s=2.0)]
    review = admission.review(100.0, active, fast_costs(), n_free_slots=1, n_free_pages=1000)
    assert review.admitted == (1,)


def test_beyond_the_queue_the_newest_are_refused_with_a_hint():
    admission = _admission(max_queue=2)
    _offered(admission, 1, 2, 3, 4)
    review = admission.review(0.0, [], fast_costs(), n_free_slots=1, n_free_pages=1000)
    assert review.admitted == (1,)
    assert [(r.stream_id, r.code) for r in review.refused] == [(4, "overloaded")]
    assert all(r.retry_after_s is not None and 1 <= r.retry_after_s <= 60 for r in review.refused)


def test_who_waited_too_long_is_refused():
    admission = _admission(queue_timeout_s=5.0)
    _offered(admission, 1)
    full = {"n_free_slots": 0, "n_free_pages": 1000}
    assert admission.review(5.0, [], fast_costs(), **full).refused == ()
    (refusal,) = admission.review(5.1, [], fast_costs(), **full).refused
    assert refusal.stream_id == 1
    assert refusal.message == "no room after 5.1 s; 0 streams wait before it"


def test_whose_turn_would_come_too_late_is_refused_at_once():
    """Four streams that stay two seconds: two places a second become free."""
    admission = _admission(queue_timeout_s=2.0)
    _offered(admission, 1)
    admission.review(0.0, [], fast_costs(), **PLENTY)
    _offered(admission, *range(100, 110), now_s=2.0)
    active = [playing(i, slack_s=2.0, now_s=2.0) for i in range(10, 14)]
    review = admission.review(2.0, active, fast_costs(), n_free_slots=0, n_free_pages=1000)
    assert [r.stream_id for r in review.refused] == list(range(104, 110))


def test_who_leaves_the_queue_is_gone():
    admission = _admission()
    _offered(admission, 1, 2)
    assert admission.cancel(StreamId(1))
    assert not admission.cancel(StreamId(1))
    assert admission.review(0.0, [], fast_costs(), **PLENTY).admitted == (2,)


# Giving way.


def _givers(*n_pages: int) -> list[Giver]:
    return [Giver(stream_id=StreamId(50 + n), n_pages=pages) for n, pages in enumerate(n_pages)]


def _files(*ids: int) -> list[Stream]:
    return [playing(i, slack_s=2.0, is_paced=False) for i in ids]


@pytest.mark.parametrize(
    ("n_free_slots", "n_free_pages", "n_pages", "givers", "gave_way"),
    [
        (1, 9, 4, (5, 5), ()),
        (0, 9, 4, (5, 5), (50,)),
        (1, 1, 4, (2, 2, 2), (50, 51)),
        (0, 0, 4, (2, 9), (50, 51)),
        (0, 0, 4, (2, 1), None),
        (0, 9, 4, (), None),
    ],
)
def test_the_first_few_give_way_or_nobody(n_free_slots, n_free_pages, n_pages, givers, gave_way):
    admission = _admission(max_streams=2)
    _offered(admission, 1, now_s=100.0, n_pages=n_pages)
    review = admission.review(
        100.0, _files(50, 51, 52), fast_costs(), n_free_slots, n_free_pages, _givers(*givers)
    )
    assert review.admitted == (() if gave_way is None else (1,))
    assert review.gave_way == (gave_way or ())


def test_nobody_gives_way_for_a_file_or_beyond_the_load():
    full = {"n_free_slots": 0, "n_free_pages": 0, "givers": _givers(9)}
    admission = _admission(max_streams=2)
    _offered(admission, 1, now_s=100.0, is_awaited=False)
    assert admission.review(100.0, _files(50), fast_costs(), **full).gave_way == ()
    admission = _admission(max_streams=2)
    _offered(admission, 1, now_s=100.0)
    active = [*_files(50), playing(60, slack_s=2.0)]
    assert admission.review(100.0, active, _slow_costs(1.0), **full).gave_way == ()


def test_the_queue_has_later_parts_then_listeners_then_files():
    admission = _admission()
    _offered(admission, 1, is_awaited=False)
    _offered(admission, 2, is_awaited=False, is_back=True)
    _offered(admission, 3)
    _offered(admission, 4, is_continuation=True, is_back=True)
    _offered(admission, 5)
    assert [admission.n_ahead(StreamId(n)) for n in (4, 3, 5, 2, 1)] == [0, 1, 2, 3, 4]


def test_who_gave_way_is_never_refused_and_takes_nobody_s_place_in_the_queue():
    admission = _admission(queue_timeout_s=5.0, max_queue=1)
    full = {"n_free_slots": 0, "n_free_pages": 1000}
    _offered(admission, 1, 2, is_awaited=False, is_back=True)
    _offered(admission, 3)
    assert admission.review(1.0, [], fast_costs(), **full).refused == ()
    refused = admission.review(9.0, [], fast_costs(), **full).refused
    assert [refusal.stream_id for refusal in refused] == [3]
    assert admission.n_queued == 2


def test_files_are_no_load_to_a_listener():
    """Their rows are left out whenever a listener's would be late."""
    admission = _admission(target_load=0.35)
    _offered(admission, 1, now_s=100.0)
    active = _files(50, 51, 52, 53)
    assert admission.review(100.0, active, _slow_costs(9.99e-3), **PLENTY).admitted == (1,)
    _offered(admission, 2, now_s=100.0, is_awaited=False)
    assert admission.review(100.0, active, _slow_costs(9.99e-3), **PLENTY).admitted == ()


def test_how_long_streams_stay_is_not_learnt_from_one_that_gave_way():
    admission = _admission(max_streams=2, queue_timeout_s=2.0)
    _offered(admission, 50, is_awaited=False)
    admission.review(0.0, [], fast_costs(), **PLENTY)
    _offered(admission, 1, now_s=0.1)
    full = {"n_free_slots": 0, "n_free_pages": 0, "givers": _givers(9)}
    assert admission.review(0.1, _files(50), fast_costs(), **full).gave_way == (50,)
    _offered(admission, *range(100, 110), now_s=0.2)
    active = [playing(1, slack_s=2.0, now_s=0.2)]
    review = admission.review(0.2, active, fast_costs(), n_free_slots=0, n_free_pages=0)
    assert review.refused == ()


@pytest.mark.parametrize(
    ("fields", "can"),
    [
        ({}, False),
        ({"is_paced": False}, True),
        ({"is_paused": True, "paused_since_s": 99.0}, False),
        ({"is_paused": True, "paused_since_s": 98.0}, True),
        ({"is_paused": False, "paused_since_s": 98.0}, False),
    ],
)
def test_whoever_nobody_hears_can_give_way(fields, can):
    assert can_give_way(playing(1, slack_s=9.0, **fields), 100.0, 2.0) is can


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["offer", "offer", "review", "cancel", "end"]),
            st.integers(0, 99),
            st.integers(1, 7),
            st.booleans(),
        ),
        max_size=60,
    ),
    max_queue=st.integers(0, 4),
)
def test_every_stream_gets_one_answer_and_no_room_is_given_twice(events, max_queue):
    n_slots, n_pages = 3, 6
    admission = _admission(n_pages=n_pages, max_queue=max_queue, queue_timeout_s=3.0)
    needs: dict[int, int] = {}
    running: dict[int, int] = {}
    answered: list[int] = []
    cancelled: set[int] = set()
    now_s = 0.0

    def review() -> None:
        free = n_pages - sum(running.values())
        active = [playing(i, slack_s=2.0, now_s=now_s) for i in running]
        made = admission.review(now_s, active, fast_costs(), n_slots - len(running), free)
        for stream_id in made.admitted:
            running[stream_id] = needs[stream_id]
        assert len(running) <= n_slots
        assert sum(running.values()) <= n_pages
        answered.extend(made.admitted)
        answered.extend(refusal.stream_id for refusal in made.refused)
        assert admission.n_queued <= max_queue

    for kind, which, pages, is_later in events:
        now_s += 0.3
        if kind == "offer":
            stream_id = len(needs)
            needs[stream_id] = pages
            _offered(admission, stream_id, now_s=now_s, n_pages=pages, is_continuation=is_later)
        elif kind == "cancel" and needs:
            if admission.cancel(StreamId(which % len(needs))):
                cancelled.add(which % len(needs))
        elif kind == "end" and running:
            del running[sorted(running)[which % len(running)]]
        else:
            review()
    while admission.n_queued:
        now_s += 0.3
        if running:
            del running[min(running)]
        review()
    assert sorted(answered) == sorted(set(needs) - cancelled)
