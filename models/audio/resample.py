"""Sample rate conversion of whole signals, as the speaker encoders' references do it.

Source: J. O. Smith, Digital Audio Resampling; width, roll-off and window are the defaults of
torchaudio, `functional.resample`.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

N_CROSSINGS: Final = 6
"""Zero crossings of the sinc on each side."""
ROLL_OFF: Final = 0.99
"""Highest frequency kept, of the lower rate's half."""


def resample(pcm: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Float32 `(n,)` at `from_hz` to `(ceil(n * to_hz / from_hz),)` at `to_hz`."""
    if from_hz == to_hz:
        return pcm
    common = math.gcd(from_hz, to_hz)
    n_in, n_out = from_hz // common, to_hz // common
    n_wanted = -(-len(pcm) * n_out // n_in)
    filters, width = phase_filters(n_in, n_out)
    padded = nn.functional.pad(pcm, (width, width + n_in))
    phases = nn.functional.conv1d(padded.view(1, 1, -1), filters.unsqueeze(1), stride=n_in)
    return phases[0].T.flatten()[:n_wanted]


def phase_filters(n_in: int, n_out: int) -> tuple[Tensor, int]:
    """One filter for each of `n_out` phases, `(n_out, 2 * width + n_in)`, and its width."""
    cutoff = min(n_in, n_out) * ROLL_OFF
    width = math.ceil(N_CROSSINGS * n_in / cutoff)
    taps = torch.arange(-width, width + n_in, dtype=torch.float64) / n_in
    phases = torch.arange(n_out, dtype=torch.float64).unsqueeze(1) / n_out
    at = ((taps - phases) * cutoff).clamp(-N_CROSSINGS, N_CROSSINGS)
    window = torch.cos(at * math.pi / (2 * N_CROSSINGS)).square()
    return (torch.sinc(at) * window * (cutoff / n_in)).float(), width
