"""Resampling of latent frames in time: speed without a change of pitch. Pure, exact in any cut.

Output frame j lies at input time `j * speed / 1000` and is interpolated between its two neighbours.
Places are integers in thousandths of a frame, so that a stream gives the same frames however it is
cut into calls. Speed 1000 copies its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

UNIT_SPEED: Final = 1000
"""Speeds are in thousandths: 2000 speaks twice as fast."""
MIN_SPEED: Final = 500
MAX_SPEED: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Which output frames a call gives, `(B,)` int64 each.

    Args:
        first: index of the call's first output frame; negative while the layers below warm up.
        n_new: output frames that the input determines.
        end: output frames of the whole stream (huge while its end is unknown).
    """

    first: Tensor
    n_new: Tensor
    end: Tensor


def plan_stretch(n_before: Tensor, n_in: Tensor, end_in: Tensor, speed: Tensor) -> Stretch:
    """What `n_in` further frames after `n_before` (may be negative) give, for ends `end_in`."""
    n_after = n_before + n_in
    first = _n_determined(n_before, speed)
    end = -torch.div(-end_in * UNIT_SPEED, speed, rounding_mode="floor")
    stop = torch.where(n_after >= end_in, end, _n_determined(n_after, speed))
    return Stretch(first=first, n_new=stop - first, end=end)


def stretch_frames(
    window: Tensor, n_before: Tensor, n_in: Tensor, speed: Tensor, first: Tensor, n_out: int
) -> Tensor:
    """Output frames `(B, n_out, C)` from index `first` on.

    Args:
        window: `(B, 1 + n, C)`: the frame before the call's input, then the input.
        n_before: `(B,)` frames before the call's input.
        n_in: `(B,)` frames of the input that count; the last one is held where more is asked for.
        speed: `(B,)` in thousandths.
        first: `(B,)` index of the first output frame.
        n_out: output frames.
    """
    out_idx = first.unsqueeze(1) + torch.arange(n_out, device=window.device)
    place = out_idx * speed.unsqueeze(1) - (n_before.unsqueeze(1) - 1) * UNIT_SPEED
    newest = n_in.unsqueeze(1)
    lower = torch.div(place, UNIT_SPEED, rounding_mode="floor").clamp(min=0).minimum(newest)
    upper = (lower + 1).minimum(newest)
    fraction = (place % UNIT_SPEED).to(window.dtype) / UNIT_SPEED
    return torch.lerp(_take(window, lower), _take(window, upper), fraction.unsqueeze(-1))


def _n_determined(n_in: Tensor, speed: Tensor) -> Tensor:
    """Output frames that lie at or before the last of `n_in` input frames."""
    return torch.div((n_in - 1) * UNIT_SPEED, speed, rounding_mode="floor") + 1


def _take(window: Tensor, idx: Tensor) -> Tensor:
    """Frames `(B, n, C)` of `window` at `idx` `(B, n)`."""
    rows = torch.arange(window.shape[0], device=window.device).unsqueeze(1)
    return window[rows, idx]
