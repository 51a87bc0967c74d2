"""Resampling in time: places, ends, and independence of how the input is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.layers.conv import ENDLESS
from models.pico.stretch import plan_stretch, stretch_frames


def ramp(n: int) -> Tensor:
    """Frames whose value is their time."""
    return torch.arange(float(n)).view(1, n, 1)


def stretched(n: int, speed: int, cuts: list[int]) -> list[float]:
    """Stretch a ramp of `n` frames that comes in pieces; output before time 0 is left out."""
    x, before, out, count = ramp(n), torch.zeros(1, 1, 1), {}, 0
    speeds = torch.tensor([speed])
    for size in cuts:
        piece = x[:, count : count + size]
        end = torch.tensor([n if count + size >= n else ENDLESS])
        n_before, n_in = torch.tensor([count]), torch.tensor([piece.shape[1]])
        plan = plan_stretch(n_before, n_in, end, speeds)
        window = torch.cat([before, piece], dim=1)
        new = stretch_frames(window, n_before, n_in, speeds, plan.first, int(plan.n_new))
        for place, value in enumerate(new.flatten().tolist(), start=int(plan.first)):
            assert place not in out, "no output frame comes twice"
            out[place] = value
        before = window[:, -1:]
        count += size
    return [out[place] for place in range(max(out) + 1)]


def test_unit_speed_copies() -> None:
    assert stretched(7, 1000, [3, 4]) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        (2000, [0, 2, 4]),
        (500, [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4]),
        (1500, [0, 1.5, 3, 4]),
    ],
)
def test_output_lies_at_multiples_of_the_speed_and_holds_the_last(
    speed: int, expected: list[float]
) -> None:
    assert stretched(5, speed, [5]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("speed", [500, 777, 1000, 1001, 1333, 2000])
def test_cuts_do_not_matter(speed: int) -> None:
    whole = stretched(40, speed, [40])
    assert stretched(40, speed, [1] * 40) == whole
    assert stretched(40, speed, [4, 8, 4, 16, 8]) == whole
    assert len(whole) == -(-40 * 1000 // speed)
