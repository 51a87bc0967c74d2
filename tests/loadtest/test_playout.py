"""What a listener hears of frames with known times of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.measure.playout import (
    PREBUFFERS_MS,
    Underrun,
    end_s,
    heard_s,
    underruns,
    viability,
)
from tests.loadtest.canned import frames

# Frames of 20 ms each; how many underruns and ms of silence at a prebuffer of 0, 100 and 200 ms.
TABLE = [
    ("on time", [0, 20, 40, 60], (0, 0), (0, 0), (0, 0)),
    ("all at once", [0, 0, 0, 0], (0, 0), (0, 0), (0, 0)),
    ("one 10 ms late", [0, 20, 50, 60], (1, 10), (0, 0), (0, 0)),
    ("exactly in time at 100", [0, 120, 140], (1, 100), (0, 0), (0, 0)),
    ("1 ms too late at 100", [0, 121, 140], (1, 101), (1, 1), (0, 0)),
    ("a stall of 500 ms", [0, 520, 540, 560], (1, 500), (1, 400), (1, 300)),
    ("two stalls", [0, 120, 340, 360], (2, 300), (1, 200), (1, 100)),
    ("always 5 ms slow", [0, 25, 50, 75], (3, 15), (0, 0), (0, 0)),
    ("late, then ahead", [0, 320, 320, 320, 500], (2, 420), (2, 320), (2, 220)),
    ("one frame", [7], (0, 0), (0, 0), (0, 0)),
    ("nothing", [], (0, 0), (0, 0), (0, 0)),
]


@pytest.mark.parametrize(("received_ms", "expected"), [(row[1], row[2:]) for row in TABLE])
def test_underruns_at_each_prebuffer(received_ms, expected):
    for prebuffer_ms, (n, total_ms) in zip(PREBUFFERS_MS, expected, strict=True):
        found = underruns(frames(*received_ms), prebuffer_ms / 1000)
        assert len(found) == n, prebuffer_ms
        assert sum(one.duration_s for one in found) * 1000 == pytest.approx(total_ms)


def test_an_underrun_says_where_it_was():
    assert underruns(frames(1000, 1020, 1070), 0.0) == [
        Underrun(at_s=pytest.approx(1.04), duration_s=pytest.approx(0.03))
    ]


@given(
    gaps_ms=st.lists(st.floats(0, 400), min_size=1, max_size=40),
    prebuffers_ms=st.tuples(st.floats(0, 300), st.floats(0, 300)),
)
def test_a_longer_prebuffer_never_hears_more_silence(gaps_ms, prebuffers_ms):
    at_ms, received_ms = 0.0, []
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        received_ms.append(at_ms)
    less, more = sorted(prebuffers_ms)
    silences = [
        sum(one.duration_s for one in underruns(frames(*received_ms), ms / 1000))
        for ms in (less, more)
    ]
    assert silences[1] <= silences[0] + 1e-9


@given(gaps_ms=st.lists(st.floats(0, 400), min_size=1, max_size=40))
def test_sound_and_silence_add_up_to_the_end(gaps_ms):
    at_ms, received_ms = 0.0, []
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        received_ms.append(at_ms)
    arrivals = frames(*received_ms)
    silence_s = sum(one.duration_s for one in underruns(arrivals, 0.0))
    assert end_s(arrivals) == pytest.approx(
        arrivals[0].received_s + 0.02 * len(arrivals) + silence_s, abs=1e-4
    )


@pytest.mark.parametrize(
    ("offset_ms", "heard_ms"),
    [(0, 100), (19, 119), (20, 200), (45, 225), (59, 239), (60, None)],
)
def test_a_sample_is_heard_when_its_frame_is_played(offset_ms, heard_ms):
    arrivals = frames(100, 200, 205)  # the second comes 80 ms late
    found = heard_s(arrivals, offset_ms / 1000)
    assert found == (None if heard_ms is None else pytest.approx(heard_ms / 1000))


def test_nothing_is_heard_of_nothing():
    assert heard_s([], 0.0) is None
    assert end_s([]) is None


# By the reference: chunk i >= 1 is on time iff the audio before it lasts longer than it took.
@pytest.mark.parametrize(
    ("received_ms", "n_chunks", "n_on_time"),
    [
        ([0], 0, 0),
        ([0, 19, 39], 2, 2),
        ([0, 20, 39], 2, 1),  # exactly as long is too late
        ([0, 100, 110, 120], 3, 0),  # one stall: late until the server has caught up
        ([0, 60, 61, 62], 1, 0),  # what comes within 2 ms is one chunk
        ([0, 1, 2, 3, 79], 1, 1),
    ],
)
def test_viability_is_the_reference_s(received_ms, n_chunks, n_on_time):
    found = viability(frames(*received_ms))
    assert (found.n_chunks, found.n_on_time) == (n_chunks, n_on_time)
