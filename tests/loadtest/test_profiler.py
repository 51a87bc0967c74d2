"""A device profile measured on a model that costs next to nothing."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from typer.testing import CliRunner

from loadtest.__main__ import app
from loadtest.profiler import UnmeasurableError, fit, measure, n_ticks
from loadtest.simulate.device import load_profile


def line(fixed_ms: float, each_ms: float, *sizes: int) -> dict[int, list[float]]:
    return {n: [(fixed_ms + each_ms * n) / 1000] * 3 for n in sizes}


@pytest.mark.parametrize(("fixed", "each"), [(5.5, 0.055), (3.0, 0.0), (0.0, 1.5)])
def test_a_line_is_found_exactly(fixed, each):
    found = fit(line(fixed, each, 1, 2, 4, 8, 16))
    assert (found.fixed, found.each) == (pytest.approx(fixed, abs=1e-4), pytest.approx(each))


def test_one_slow_call_does_not_move_it():
    seconds = line(5.0, 0.1, 1, 2, 4, 8)
    seconds[4].append(0.5)
    assert fit(seconds).each == pytest.approx(0.1, abs=1e-3)


def test_no_part_is_under_nothing():
    falling = fit({1: [0.004], 8: [0.002]})
    assert falling.each == 0.0
    assert 2.0 < falling.fixed < 4.0
    steep = fit({2: [0.001], 4: [0.004]})
    assert steep.fixed == 0.0
    assert 0.5 < steep.each < 1.0
    assert fit({3: [0.004]}).fixed == pytest.approx(4.0)


def test_small_and_large_sizes_weigh_alike():
    """With a curve, the error in percent is as large at one end as at the other."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    curve = {n: [(1.0 + 0.1 * n**1.3) / 1000] for n in sizes}
    found = fit(curve)
    errors = [(found.fixed + found.each * n) / (1000 * curve[n][0]) - 1 for n in sizes]
    assert np.abs(errors).max() < 0.35


def test_a_profile_is_written(tmp_path):
    path = tmp_path / "toy.json"
    asked = ["profile", str(path), "--model", "toy-tone", "--max-streams", "2"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    profile = json.loads(path.read_text())
    assert profile["frame"]["samples_per_frame"] == 1920
    assert profile["codec"]["chunk_frames"] == [1, 2, 4, 8]
    assert profile["engine"]["max_streams"] == 2
    assert profile["decode_ms"]["fixed"] > 0
    assert profile["chunk_ms"]["fixed"] + profile["chunk_ms"]["each"] > 0
    assert 0 <= profile["not_hidden"] <= 1
    assert 0 <= profile["noise"] <= 0.5
    # 80 ms a character, and the texts have from 17 to 300 of them.
    assert 1.5 < profile["speech"]["mean_s"] < 24
    assert "toy-tone" in profile["about"]


def test_progress_is_told():
    ticks = []
    measure("toy-tone", 2, lambda: ticks.append(1))
    assert len(ticks) == n_ticks(2)


def test_an_unknown_model_is_named():
    with pytest.raises(UnmeasurableError, match="pixo"):
        measure("pixo", 2, lambda: None)


def test_a_measured_profile_can_be_simulated(tmp_path):
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(asdict(measure("toy-tone", 2, lambda: None))))
    profile = load_profile(path)
    assert profile.frame_spec.samples_per_frame == 1920
    assert profile.codec_spec.chunk_frames == (1, 2, 4, 8)
    assert profile.engine_config.max_streams == 2
    assert profile.decode_ms.of(1) > 0
