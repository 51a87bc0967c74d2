"""Random numbers without a generator: a hash of seed, counter and column, on the device.

There is nothing to keep in step and nothing is read on the host. Engine thread.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uniforms(seeds: Tensor, counters: Tensor, column_idx: Tensor) -> Tensor:
    """Uniform numbers `(B, K)` in (0, 1) from mixed `seeds` (B,), `counters` (B,) and columns (K,).

    Source: SplitMix64 (Steele et al. 2014): its finalizer over a sum of odd multiples, one for the
    counter and one for the column. 23 bits and a half step: the odd multiples of 2**-24, each exact
    in float32 and none 0 or 1.
    """
    by_row = (seeds + counters * _ROW_STEP).unsqueeze(1)
    bits = _mix(by_row + column_idx * _COLUMN_STEP)
    return ((bits >> 41) & 0x7FFFFF).to(torch.float32) * 2.0**-23 + 2.0**-24


def mixed_seed(seed: int) -> int:
    """Spread neighbouring seeds far apart."""
    return int(_mix(torch.tensor([_signed(seed + _ROW_STEP)]))[0])


def _signed(value: int) -> int:
    """`value` modulo 2**64 as a signed 64-bit integer."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


_ROW_STEP = _signed(0x9E3779B97F4A7C15)
_COLUMN_STEP = _signed(0xD1342543DE82EF95)
_FACTOR_1 = _signed(0xBF58476D1CE4E5B9)
_FACTOR_2 = _signed(0x94D049BB133111EB)


def _shift(value: Tensor, n_bits: int) -> Tensor:
    """Logical shift right; torch shifts int64 arithmetically."""
    return (value >> n_bits) & ((1 << (64 - n_bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _FACTOR_1
    value = (value ^ _shift(value, 27)) * _FACTOR_2
    return value ^ _shift(value, 31)
