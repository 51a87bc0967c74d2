"""The load generator as a user starts it, against a server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from loadtest.report import RunReport, RunSettings, read_report
from loadtest.run import run_load
from loadtest.sweep import wait_for_rest
from loadtest.target import Target
from loadtest.traffic.scenarios import scenario_of
from loadtest.traffic.schedule import poisson_calls
from loadtest.traffic.texts import texts
from tests.realtime.harness import run

SECONDS_A_CHARACTER = 0.08
"""Of the toy."""


def loadtest(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtest", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def load(url: str, shares: dict[str, float], **changes: object) -> RunReport:
    """A run in this process."""
    given = {
        "scenario": "speech",
        "shares": shares,
        "rate_per_s": 4.0,
        "duration_s": 2.0,
        "warmup_s": 0.0,
        "drain_s": 60.0,
        "seed": 0,
        "ttfa_bound_ms": 500.0,
        "answer_bound_ms": 1500.0,
        "microphone": "opus",
        "stall_s": 1.0,
    }
    settings = RunSettings(**{**given, **changes})
    return run(lambda: run_load(Target(url=url), settings, lambda progress: None))


@pytest.mark.slow
def test_a_run_as_documented(toy_url, tmp_path):
    out, png = tmp_path / "run.json", tmp_path / "run.png"
    done = loadtest(
        *("run", "--url", toy_url, "--rate", 4, "--duration", 5, "--warmup", 1, "--seed", 3),
        *("--out", out, "--png", png),
    )
    assert done.returncode in (0, 3), done.stderr
    report = read_report(out)
    assert report.is_valid == (done.returncode == 0)
    assert ("NOT VALID" in done.stdout) == (done.returncode == 3)
    calls = [one for one in poisson_calls(scenario_of("speech"), 4.0, 6.0, 3) if one.at_s >= 1.0]
    assert len(report.streams) == len(calls) > 5
    assert png.read_bytes().startswith(b"\x89PNG")
    lengths = {round(len(text) * SECONDS_A_CHARACTER, 6) for text in texts()}
    for one in report.streams:
        assert (one.outcome, one.detail) == ("completed", "")
        assert one.heard.first_packet_s <= one.heard.first_sound_s
        assert one.heard.audio_s > 1.0
    assert {round(one.heard.audio_s, 6) for one in report.streams} & lengths
    assert report.figures["speech"]["n_completed"] == len(calls)
    assert report.models == ["toy-tone"]
    assert "first audible sample" in done.stdout
    assert any(sample["n_sessions"] >= 1 for sample in report.server)


@pytest.mark.slow
def test_arrivals_do_not_wait_for_answers(toy_url):
    """Texts of many seconds each, ten of them a second: all are here at once."""
    report = load(toy_url, {"cancel": 1.0}, rate_per_s=10.0)
    calls = poisson_calls(scenario_of("speech", {"cancel": 1.0}), 10.0, 2.0, 0)
    assert len(report.streams) == len(calls)
    asked = [one.asked_s for one in report.streams]
    for call, asked_s in zip(calls, sorted(asked), strict=True):
        assert asked_s >= call.at_s
    assert min(one.heard.last_packet_s for one in report.streams if one.heard) > asked[3]


@pytest.mark.slow
def test_who_leaves_or_reads_nothing_leaves_no_stream_behind(toy_url):
    report = load(toy_url, {"hang_up": 0.6, "slow_reader": 0.4}, drain_s=4.0)
    outcomes = {one.part: set() for one in report.streams}
    for one in report.streams:
        outcomes[one.part].add(one.outcome)
    assert outcomes["hang_up"] == {"left"}
    # A slow reader is cut off by the server, catches up, or is still there when the run ends.
    assert outcomes["slow_reader"] <= {"slow", "unfinished"}
    target = Target(url=toy_url)
    state = asyncio.run(wait_for_rest(target))
    for name in ("n_sessions", "n_streams", "n_active", "n_queued", "n_slots_used"):
        assert state[name] == 0, name


@pytest.mark.slow
def test_a_sweep_finds_a_rate_and_says_how(toy_url, tmp_path):
    out = tmp_path / "sweep.json"
    done = loadtest(
        *("sweep", "--url", toy_url, "--low", 1, "--high", 2, "--duration", 3, "--warmup", 1),
        *("--ttfa-bound-ms", 60_000, "--clean-pct", 0, "--out", out),
    )
    assert done.returncode == 0, done.stderr
    assert "60000 ms" in done.stdout
    assert "1 s of warm-up, 3 s measured" in done.stdout
    found = json.loads(out.read_text())
    rates = [run["settings"]["rate_per_s"] for run in found["runs"]]
    assert rates == [rate for rate, _ in found["found"]["tried"]]
    assert rates[0] == 1.0
    for one in found["runs"]:
        figures = one["figures"]["speech"]
        assert figures["n_completed"] == figures["n_streams"]


@pytest.mark.slow
def test_a_soak_that_is_flat(toy_url, tmp_path):
    out = tmp_path / "soak.json"
    done = loadtest(
        *("soak", "--url", toy_url, "--rate", 2, "--minutes", 0.2, "--scenario", "speech"),
        *("--share", "hang_up=0.3", "--rss-mb", 200, "--out", out),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    soak = json.loads(out.read_text())
    assert soak["faults"] == []
    assert soak["run"]["figures"]["speech"]["n_completed"] > 0
    assert {one["name"] for one in soak["drifts"]} == {
        "rss_bytes",
        "n_descriptors",
        "n_tasks",
        "n_threads",
    }
    assert soak["after"]["n_sessions"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--rate", 1, "--scenario", "chorus"), "unknown scenario 'chorus'"),
        (("run", "--rate", 1, "--share", "cancel"), "must look like"),
        (("run", "--rate", 1, "--url", "127.0.0.1:1"), "parley serve"),
        (("compare", "no.json", "such.json"), "cannot read no.json"),
    ],
)
def test_a_fault_is_one_line(arguments, words):
    done = loadtest(*arguments)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr


@pytest.mark.slow
def test_conversations_with_the_real_model(pico_url, tmp_path):
    """Shipped recordings are understood, answers are heard, and an answer can be spoken over."""
    out = tmp_path / "talk.json"
    done = loadtest(
        *("run", "--url", pico_url, "--rate", 0.3, "--duration", 8, "--warmup", 0, "--seed", 4),
        *("--scenario", "conversation", "--share", "talk=0.5", "--share", "barge_in=0.5"),
        *("--out", out),
    )
    assert done.returncode in (0, 3), done.stderr
    report = read_report(out)
    assert {one.kind for one in report.streams} == {"answer"}
    assert {one.part for one in report.streams} == {"talk", "barge_in"}
    assert {one.outcome for one in report.streams} <= {"completed", "cut"}, report.details
    for one in report.streams:
        # The server waits for silence before it answers.
        assert one.first_sound_in_s > 0.1
        assert one.cancel_to_silence_s is None or one.outcome == "cut"
