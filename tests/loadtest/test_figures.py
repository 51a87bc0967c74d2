"""From streams to the figures of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.measure.figures import Bounds, figures_of
from loadtest.measure.streams import hear
from tests.loadtest.canned import frames, heard, record

RATE_HZ = 24_000


def test_first_sound_is_heard_when_its_frame_is_played():
    """30 ms of silence, then a tone; the second frame comes 40 ms late and delays what is in it."""
    pcm = np.concatenate([np.zeros(720), np.full(720, 0.5)]).astype(np.float32)
    found = hear(frames(1000, 1060, 1060), pcm, RATE_HZ)
    assert found.first_packet_s == pytest.approx(1.0)
    # The window of 5 ms that first reaches the threshold begins 4 ms before the tone.
    assert found.first_sound_s == pytest.approx(1.06 + 0.010 - 0.004)
    assert found.audio_s == pytest.approx(0.06)
    assert found.listening[0].n_underruns == 1
    assert found.listening[0].underrun_s == pytest.approx(0.04)
    assert found.listening[0].longest_s == pytest.approx(0.04)
    assert found.listening[100].n_underruns == 0
    assert len(found.gaps) == 1


def test_silence_has_a_packet_but_no_sound():
    found = hear(frames(0, 20), np.zeros(960, np.float32), RATE_HZ)
    assert found.first_packet_s == 0.0
    assert found.first_sound_s is None
    silent = record(outcome="completed", heard=found)
    assert silent.first_packet_in_s == 0.0
    assert not silent.is_good(1e9, 0)


def test_a_good_stream_is_heard_in_time_and_without_a_gap():
    one = record(5.0, 0.2)  # heard after 0.23 s
    assert one.is_good(0.2301, 0)
    assert not one.is_good(0.2299, 0)
    assert one.is_good(0.3301, 100)
    assert not one.is_good(0.3299, 100)  # the prebuffer is part of the wait
    assert not record(5.0, 0.2, gaps=1).is_good(1.0, 0)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [("completed", 1), ("cut", 1), ("left", 0), ("slow", 0), ("refused", 0), ("failed", 0)],
)
def test_only_what_had_a_listener_counts_for_times_and_goodput(outcome, counts):
    found = figures_of([record(outcome=outcome)], 10.0, Bounds())["speech"]
    assert found["goodput_0ms_per_s"] == counts / 10
    assert (found["ttfa_audible_p50_ms"] is not None) == bool(counts)
    assert found[f"n_{outcome}"] == 1


def test_figures_of_a_run():
    records = [record(float(n), wait_s) for n, wait_s in enumerate([0.1, 0.2, 0.3, 0.4])]
    records += [
        record(5.0, 0.6),  # too late
        record(6.0, 0.1, gaps=2),
        record(7.0, 0.1, outcome="cut", cancel_to_silence_s=0.02, cancel_to_done_s=0.05),
        record(8.0, heard=None, outcome="refused"),
        record(9.0, heard=None, outcome="lost"),
        record(9.5, heard=None, outcome="unfinished"),
    ]
    found = figures_of(records, 10.0, Bounds(ttfa_ms=500.0))["speech"]
    waits_ms = [130.0, 230.0, 330.0, 430.0, 630.0, 130.0, 130.0]
    assert found["n_streams"] == 10
    assert found["offered_per_s"] == 1.0
    assert found["refused_pct"] == 10.0
    assert found["errors_pct"] == 20.0
    assert found["ttfa_audible_p50_ms"] == pytest.approx(np.percentile(waits_ms, 50))
    assert found["ttfa_audible_p99_ms"] == pytest.approx(np.percentile(waits_ms, 99))
    assert found["ttfa_packet_mean_ms"] == pytest.approx(np.mean(waits_ms) - 30)
    assert found["goodput_0ms_per_s"] == pytest.approx(0.5)
    assert found["underruns_0ms_n"] == 2
    assert found["underruns_0ms_total_ms"] == pytest.approx(100.0)
    assert found["underruns_0ms_streams_pct"] == pytest.approx(100 / 7)
    assert found["max_gap_0ms_ms"] == pytest.approx(50.0)
    assert found["viable_chunks_pct"] == pytest.approx(100 * 68 / 70)
    assert found["viable_streams_pct"] == pytest.approx(100 * 6 / 7)
    assert found["cancel_to_silence_p95_ms"] == pytest.approx(20.0)
    assert found["cancel_to_done_p95_ms"] == pytest.approx(50.0)
    assert found["audio_s_per_s"] == pytest.approx(1.4)
    # Of what came as a whole: asked to last packet, by 2 s of audio.
    assert found["real_time_factor_p50_ratio"] == pytest.approx(
        np.median([1.0, 1.1, 1.2, 1.3, 1.5, 1.0]) / 2
    )


def test_kinds_are_kept_apart_with_a_bound_each():
    answer = record(0.0, 1.0, kind="answer", part="talk")
    found = figures_of([record(0.0, 0.1), answer], 1.0, Bounds(ttfa_ms=500.0, answer_ms=1500.0))
    assert found["speech"]["goodput_0ms_per_s"] == 1.0
    assert found["answer"]["goodput_0ms_per_s"] == 1.0
    assert found["answer"]["ttfa_audible_p50_ms"] == pytest.approx(1030.0)
    assert set(figures_of([answer], 1.0, Bounds())) == {"answer"}


def test_a_stream_of_one_chunk_has_no_viability():
    single = record(heard=replace(heard(0.1), n_chunks=0, n_on_time=0))
    found = figures_of([single], 1.0, Bounds())["speech"]
    assert found["viable_chunks_pct"] is None
    assert found["viable_streams_pct"] is None
