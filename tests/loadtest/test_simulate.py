"""The simulator: what listeners count, what the other policies do, how policies compare."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from typer.testing import CliRunner

from engine.stream import Stream
from engine.types import StreamId
from loadtest.__main__ import app
from loadtest.simulate.clients import Arrival, Listener, at_once, poisson
from loadtest.simulate.device import (
    PROFILES,
    Device,
    FixedChunk,
    Profile,
    ProfileError,
    load_profile,
)
from loadtest.simulate.fixed_chunks import Fcfs, Reference
from loadtest.simulate.offline import run_offline
from loadtest.simulate.outcome import Figures, Point, bars_of, figures_of, points_of
from loadtest.simulate.sweep import Window, make_policy, run_once
from loadtest.simulate.virtual import VirtualEngine

ORPHEUS = load_profile(PROFILES / "orpheus-like.json")
FLOW = load_profile(PROFILES / "flow-matching-like.json")
SHORT = Window(warm_up_s=4.0, measured_s=10.0, cool_down_s=2.0)
FRAME_S = 0.1
CHUNK = FixedChunk(window_frames=4, step_frames=2, max_batch=8)


def _short(profile: Profile, policy: str, rate_hz: float) -> Figures:
    listeners = run_once(profile, policy, rate_hz, 0, SHORT)
    return figures_of(
        listeners,
        policy=policy,
        rate_hz=rate_hz,
        seed=0,
        bound_s=0.5,
        window_s=SHORT.measured_s,
    )


# Listeners and arrivals.


def test_a_listener_plays_at_once_and_counts_every_gap():
    listener = Listener(Arrival(at_s=10.0, n_prompt_rows=1, n_frames=30))
    for n_frames, now_s in ((10, 10.5), (10, 11.5), (5, 12.75), (5, 13.0)):
        listener.hear(n_frames, FRAME_S, now_s)
    assert listener.ttfa_s == pytest.approx(0.5)
    # On the dot is in time; 12.75 is a quarter late and moves what follows.
    assert (listener.n_late, listener.gap_s) == (1, pytest.approx(0.25))


def test_clean_is_soon_whole_and_without_a_gap():
    listener = Listener(Arrival(at_s=0.0, n_prompt_rows=1, n_frames=5))
    listener.hear(5, FRAME_S, 0.4)
    assert not listener.is_clean(0.5), "it has not ended"
    listener.ended_s = 0.4
    assert listener.is_clean(0.5)
    assert not listener.is_clean(0.3)


def test_arrivals_are_as_stated_and_repeat_by_seed():
    arrivals = poisson(ORPHEUS, 20.0, 500.0, seed=1)
    assert len(arrivals) == pytest.approx(10_000, rel=0.03)
    frame_s = ORPHEUS.frame_spec.frame_s
    lengths_s = [arrival.n_frames * frame_s for arrival in arrivals]
    assert statistics.mean(lengths_s) == pytest.approx(8.0, rel=0.03)
    assert statistics.stdev(map(math.log, lengths_s)) == pytest.approx(0.6, rel=0.03)
    assert arrivals == poisson(ORPHEUS, 20.0, 500.0, seed=1)
    assert arrivals != poisson(ORPHEUS, 20.0, 500.0, seed=2)


# The other policies.


def _stream(stream_id: int, *, frames: int = 0, decoded: int = 0, **fields) -> Stream:
    return Stream(
        stream_id=StreamId(stream_id),
        asked_s=0.0,
        max_frames=100,
        n_prompt_rows=[6],
        n_prefilled=[6],
        n_rows=frames,
        frames_ready=frames,
        frames_decoded=decoded,
        chunk_idx=1 if decoded else 0,
        **fields,
    )


def _new(stream_id: int) -> Stream:
    return Stream(stream_id=StreamId(stream_id), asked_s=0.0, max_frames=9, n_prompt_rows=[6])


def _playing(stream_id: int, *, left_s: float, waiting: int = 0, **fields) -> Stream:
    """Its client has `left_s` left at time 100."""
    return _stream(
        stream_id,
        frames=20 + waiting,
        decoded=20,
        first_sent_s=98.0 + left_s,
        sent_s=2.0,
        **fields,
    )


def test_the_reference_runs_one_prompt_with_few_rows_beside_it():
    policy = Reference(CHUNK, FRAME_S)
    streams = [_stream(i) for i in range(1, 12)]
    plan = policy.plan([*streams, _new(20), _new(21)], 100.0)
    assert [piece.stream_id for piece in plan.prefill] == [20]
    assert plan.decode == tuple(range(1, 8))
    assert policy.plan(streams, 100.0).decode == tuple(range(1, 9))


def test_the_reference_serves_whoever_presses_first():
    """It presses once its last chunk, of 0.2 s, plays within a second: with 1.2 s left."""
    policy = Reference(CHUNK, FRAME_S)
    at_ease = [_playing(i, left_s=1.3) for i in range(1, 9)]
    pressing = _playing(9, left_s=1.1)
    assert policy.plan([*at_ease, pressing], 100.0).decode == (9, 1, 2, 3, 4, 5, 6, 7)


def test_the_reference_makes_no_chunk_while_nobody_presses():
    policy = Reference(CHUNK, FRAME_S)
    at_ease = _playing(1, left_s=1.3, waiting=7)
    assert policy.plan([at_ease], 100.0).chunks == ()
    pressing = _playing(2, left_s=1.1, waiting=4)
    chunks = policy.plan([at_ease, pressing], 100.0).chunks
    assert [(work.stream_id, work.n_valid) for work in chunks] == [(2, 2)] * 2 + [(1, 2)] * 3


def test_the_reference_never_fills_a_call_beyond_its_batch():
    policy = Reference(CHUNK, FRAME_S)
    plan = policy.plan([_playing(i, left_s=0.5, waiting=6) for i in range(1, 13)], 100.0)
    assert [work.stream_id for work in plan.chunks] == list(range(1, 9))


def test_fixed_chunks_wait_for_a_whole_window_then_for_steps():
    policy = Fcfs(CHUNK, FRAME_S)
    assert policy.plan([_stream(1, frames=3)], 0.0).chunks == ()
    (first,) = policy.plan([_stream(1, frames=5)], 0.0).chunks
    assert (first.n_valid, first.is_first, first.is_last) == (4, True, False)
    ended = _stream(1, frames=5, decoded=4, is_generation_done=True)
    (last,) = policy.plan([ended], 0.0).chunks
    assert (last.n_valid, last.n_frames, last.is_last) == (1, 4, True)


def test_fcfs_takes_all_prompts_and_one_chunk_of_each():
    policy = Fcfs(CHUNK, FRAME_S)
    streams = [_stream(i, frames=30) for i in range(1, 9)]
    plan = policy.plan([*streams, _new(20), _new(21)], 0.0)
    assert [piece.stream_id for piece in plan.prefill] == [20, 21]
    assert plan.decode == tuple(range(1, 7))
    assert [work.stream_id for work in plan.chunks] == list(range(1, 9))


@pytest.mark.parametrize("name", ["ours", "fcfs", "reference", "throughput"])
@pytest.mark.parametrize("profile", [ORPHEUS, FLOW], ids=lambda profile: profile.name)
def test_no_frame_is_lost_or_doubled(name, profile):
    device = Device(profile, 0)
    engine = VirtualEngine(profile, make_policy(name, profile, device), device)
    for listener in engine.run(poisson(profile, 1.0, 10.0, seed=3)):
        if not listener.is_refused:
            assert sum(listener.chunk_frames) == listener.arrival.n_frames
            assert listener.ended_s < math.inf


# How policies compare.


@pytest.mark.parametrize(
    ("profile", "calm_hz", "busy_hz"),
    [(ORPHEUS, 6.0, 18.0), (FLOW, 1.8, 4.0)],
    ids=["orpheus-like", "flow-matching-like"],
)
def test_ours_is_heard_sooner_and_overload_does_not_hurt_it(profile, calm_hz, busy_hz):
    """A short look at one seed; `make simulate` holds the promises over three and for longer."""
    ours = _short(profile, "ours", calm_hz)
    assert ours.n_late == ours.n_refused == 0
    busy = _short(profile, "ours", busy_hz)
    assert busy.n_clean >= 0.97 * (busy.n_offered - busy.n_refused)
    for other in ("fcfs", "reference"):
        assert ours.ttfa_ms["p90"] <= 0.6 * _short(profile, other, calm_hz).ttfa_ms["p90"]
        assert busy.goodput_hz >= 1.3 * _short(profile, other, busy_hz).goodput_hz


def test_runs_repeat_by_seed():
    assert _short(FLOW, "ours", 3.0) == _short(FLOW, "ours", 3.0)


@pytest.mark.parametrize(
    ("profile", "n_texts", "gain"),
    [(ORPHEUS, 300, 1.1), (FLOW, 100, 1.5)],
    ids=["orpheus-like", "flow-matching-like"],
)
def test_the_throughput_policy_makes_more_speech(profile, n_texts, gain):
    ours, most = (run_offline(profile, name, n_texts, 0) for name in ("ours", "throughput"))
    assert ours.audio_s == most.audio_s
    assert most.speed >= gain * ours.speed


# What is said of it.


def _point(policy: str, rate_hz: float, goodput_hz: float, **fields) -> Point:
    fixed = {"p50_ms": 80.0, "p90_ms": 100.0, "clean_share": 1.0, "refused_share": 0.0}
    return Point(
        policy=policy, rate_hz=rate_hz, goodput_hz=goodput_hz, **{**fixed, "n_late": 0, **fields}
    )


@pytest.mark.parametrize(
    ("missed", "changes"),
    [
        (None, {}),
        (0, {"p90_ms": 151.0}),
        (1, {"n_late": 1}),
        (2, {"best_hz": 12.9}),
        (3, {"over_hz": 12.3}),
        (4, {"clean_share": 0.989}),
    ],
)
def test_a_bar_is_missed_where_its_figure_falls_short(missed, changes):
    best_hz = changes.pop("best_hz", 13.1)
    over_hz = min(changes.pop("over_hz", 12.9), best_hz)
    over = _point("ours", 20.0, over_hz, clean_share=changes.pop("clean_share", 1.0))
    points = [_point("reference", 10.0, 10.0), _point("ours", 12.0, best_hz)]
    calm = [_point("ours", 8.0, 8.0, **changes), _point("reference", 8.0, 8.0, p90_ms=300.0)]
    bars = bars_of(points, calm, [over])
    assert [idx for idx, bar in enumerate(bars) if not bar.is_met] == (
        [] if missed is None else [missed]
    )


def test_a_point_is_the_mean_over_seeds():
    runs = [_short(FLOW, "ours", 1.0), _short(FLOW, "ours", 2.0)]
    (point,) = points_of([runs[0], runs[0]])
    assert point.goodput_hz == runs[0].goodput_hz
    assert [one.rate_hz for one in points_of(runs)] == [1.0, 2.0]


def test_a_wrong_profile_is_named_with_its_field(tmp_path):
    path = tmp_path / "mine.json"
    with pytest.raises(ProfileError, match=r"mine\.json"):
        load_profile(path)
    body = json.loads((PROFILES / "orpheus-like.json").read_text())
    path.write_text(json.dumps({**body, "decode_mss": 1}))
    with pytest.raises(ProfileError, match="decode_mss"):
        load_profile(path)
    path.write_text(json.dumps({**body, "engine": {"max_streems": 2}}))
    with pytest.raises(ProfileError, match="max_streems"):
        load_profile(path)


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.json")), ids=lambda path: path.stem)
def test_every_profile_that_is_shipped_can_be_run(path):
    profile = load_profile(path)
    device = Device(profile, 0)
    engine = VirtualEngine(profile, make_policy("ours", profile, device), device)
    listeners = engine.run(at_once(profile, 2, 0))
    assert all(listener.ended_s < math.inf for listener in listeners)


# The command.


def _command(*arguments: str):
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_the_command_writes_figures_and_draws_them(tmp_path):
    out, png = tmp_path / "sim.json", tmp_path / "sim.png"
    result = _command(
        *("--profile", str(PROFILES / "flow-matching-like.json"), "--rates", "1,2"),
        *("--policies", "ours", "--duration", "5", "--warmup", "1", "--offline", "5"),
        *("--out", str(out), "--png", str(png)),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [point["rate_hz"] for point in found["sweeps"][0]["points"]] == [1.0, 2.0]
    assert found["offline"][0]["speed"] > 1
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_the_command_fails_where_a_promise_is_missed(tmp_path):
    """Two rows at a time are far less than the reference may run."""
    body = json.loads((PROFILES / "orpheus-like.json").read_text())
    body["engine"] |= {"max_streams": 2, "max_batch_rows": 2}
    path = tmp_path / "starved.json"
    path.write_text(json.dumps(body))
    result = _command(
        *("--profile", str(path), "--rates", "4", "--policies", "ours,reference"),
        *("--duration", "5", "--warmup", "1"),
    )
    assert result.exit_code == 1
    assert "missed" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rates", "4", "--policies", "best"], "ours"),
        (["--rates", "four"], "four"),
        (["--rates", "-1"], "above 0"),
        ([], "--rates"),
    ],
)
def test_the_command_says_what_it_would_take(arguments, said):
    result = _command("--profile", str(PROFILES / "orpheus-like.json"), *arguments)
    assert result.exit_code == 2
    assert said in result.output
