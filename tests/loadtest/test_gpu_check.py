"""The check of a GPU, tried out on the CPU with FlashInfer's double: it runs through, and tells."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from loadtest.gpu_check.parts import Part, run_part
from loadtest.gpu_check.shapes import SHAPES
from loadtest.simulate.device import load_profile
from models.families import FAMILIES

SERVED = ("qwen3-tts-1.7b", "orpheus-3b")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "gpu-check.json"
    command = [sys.executable, "-m", "loadtest.gpu_check", "--dry-run", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, json.loads(out.read_text())["parts"]


@pytest.mark.slow
def test_every_part_goes_well(told):
    _, parts = told
    assert {name: part["fault"] for name, part in parts.items()} == dict.fromkeys(
        ("building", "streams", "rows", *SERVED), ""
    )


@pytest.mark.slow
def test_every_family_is_checked_or_the_reason_is_told(told):
    """One that is registered and has no checkpoint to be checked with shows here."""
    _, parts = told
    streams = parts["streams"]
    found = {name: streams[name] for name in streams["asked"]}
    right = {one["family"] for one in found.values() if one.get("is_right")}
    left_out = {name: one["left_out"] for name, one in found.items() if "left_out" in one}
    toys = {name for name in FAMILIES if name.startswith("toy-")}
    assert FAMILIES.keys() - toys - left_out.keys() <= right
    assert left_out.get("smollm2-135m") == "its layers compute on a CPU alone"
    assert all(left_out.values())


@pytest.mark.slow
def test_every_shape_is_run_on_both_backends_in_every_way(told):
    _, parts = told
    ways = {f"{b}_{w}" for b in ("torch", "flashinfer") for w in ("plain", "static", "graph")}
    run = [name for name in SHAPES if "left_out" not in parts["rows"][name]]
    assert {SHAPES[name].style for name in run} == {shape.style for shape in SHAPES.values()}
    for name in run:
        assert ways < parts["rows"][name].keys()


@pytest.mark.slow
def test_steps_are_measured_by_batch_and_the_load_is_heard(told):
    _, parts = told
    for name in SERVED:
        part = parts[name]
        assert set(part["decode_ms"]) == {"1"}, "of the sizes that are told, a trial has one"
        assert part["codec_ms"]
        assert part["load_1_per_s"]["errors_pct"] == 0
    assert parts["qwen3-tts-1.7b"]["depth_loop_ms"].keys() == {"1"}


@pytest.mark.slow
def test_profiles_are_what_the_simulator_takes(told):
    out, _ = told
    for name in SERVED:
        profile = load_profile(out.with_name(f"{out.stem}-{name}.json"))
        assert profile.decode_ms.of(1) > 0
        assert profile.speech.mean_s > 0


def outcome_of(code: str, budget_s: float = 20.0, load=None):
    async def no_load(url, tell):
        raise AssertionError("nothing was served")

    async def run():
        part = Part(
            name="p", title="p", module="timeit", arguments=("-n1", "-r1", code), budget_s=budget_s
        )
        return await run_part(part, budget_s, load or no_load, lambda told: None)

    return asyncio.run(run())


TELL = "from loadtest.gpu_check.telling import tell; "


def test_what_a_part_told_before_it_failed_counts():
    outcome = outcome_of(TELL + "tell(a=1); tell(a=2, b=3); raise ValueError('no more')")
    assert outcome.facts == {"a": 2, "b": 3}
    assert "no more" in outcome.fault


def test_a_part_is_ended_when_its_time_is_over():
    outcome = outcome_of(TELL + "tell(a=1); import time; time.sleep(60)", budget_s=2.0)
    assert outcome.facts == {"a": 1}
    assert "not done in 2 s" in outcome.fault


def test_a_part_that_serves_is_loaded_and_then_ended():
    urls = []

    async def load(url, tell):
        urls.append(url)
        tell({"heard": 1})

    outcome = outcome_of(TELL + "tell(url='http://x'); import time; time.sleep(60)", load=load)
    assert urls == ["http://x"]
    assert outcome.facts == {"heard": 1}
    assert outcome.fault == ""


def test_a_load_that_fails_is_that_parts_fault():
    async def load(url, tell):
        raise OSError("nobody there")

    outcome = outcome_of(TELL + "tell(url='http://x'); import time; time.sleep(60)", load=load)
    assert "nobody there" in outcome.fault
