"""The benchmark runs, names the machine and writes what it measured; no figure is judged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.bench.talking import STAGES


@pytest.mark.slow
def test_a_part_is_measured_and_written(tmp_path):
    command = [
        sys.executable,
        "-m",
        "loadtest.bench",
        "--model",
        "toy-tone",
        "--out",
        str(tmp_path),
    ]
    parts = ("throughput", "encoding", "gateway_events", "engine_step")
    only = [word for part in parts for word in ("--only", part)]
    answer = subprocess.run(
        [*command, *only], capture_output=True, text=True, check=False, timeout=400
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    [path] = tmp_path.glob("*.json")
    written = json.loads(path.read_text())
    assert written["on"]["n_cores"] >= 1
    assert written["faults"] == {}
    assert written["throughput"][0]["audio_s_per_s"] > 0
    assert all(row["cpu_ms_per_s"] > 0 for row in written["encoding"])
    assert written["gateway_events"][0]["n_events"] == 16 * 900
    assert [row["n_streams"] for row in written["engine_step"]] == [1, 16, 64]
    assert "events per s" in answer.stdout


@pytest.mark.slow
def test_what_the_gateway_takes_is_measured_and_written(tmp_path):
    command = [sys.executable, "-m", "loadtest.bench.lanes", "--out", str(tmp_path)]
    amount = ["--streams", "1", "--streams", "2", "--seconds", "2"]
    answer = subprocess.run(
        [*command, *amount], capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    [path] = tmp_path.glob("*.json")
    written = json.loads(path.read_text())
    assert written["fault"] == ""
    costs = written["gateway_cost"]
    assert [(one["lane"], one["n_streams"]) for one in costs] == [
        *(("openai", 1), ("openai", 2), ("parley", 1), ("parley", 2))
    ]
    for cost in costs:
        # Whole packets of a tone in chunks of 160 ms; Opus ends with what it looked ahead.
        assert cost["audio_s"] / cost["n_streams"] == pytest.approx(2.0, abs=0.13)
        assert cost["cpu_ms_per_audio_s"] >= 0
    assert "openai" in answer.stdout


@pytest.mark.slow
def test_a_conversation_is_measured_and_written(tmp_path):
    command = [sys.executable, "-m", "loadtest.bench.converse", "--out", str(tmp_path)]
    amount = ["--questions", "1", "--takes", "1", "--turns", "2"]
    answer = subprocess.run(
        [*command, *amount], capture_output=True, text=True, check=False, timeout=300
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    [path] = tmp_path.glob("*.json")
    written = json.loads(path.read_text())
    assert (written["model"], written["fault"]) == ("pico", "")
    [take] = written["takes"]
    assert take["heard"]
    assert take["answer"]
    # Every stage was passed, and nothing between them is left out.
    assert list(take["stages_ms"]) == list(STAGES)
    assert sum(take["stages_ms"].values()) == pytest.approx(take["ttfa_ms"], abs=1.0)
    [cut] = written["barge_in"]
    assert 0 < cut["decided_ms"] < cut["heard_ms"]
    talk = written["conversation"]
    assert (talk["n_turns"], talk["n_unanswered"], len(talk["ttfa_ms"])) == (2, 0, 2)
    for title in ("End of speech to first audible sound", "Barge-in", "One conversation"):
        assert title in answer.stdout
