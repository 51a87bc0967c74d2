"""What a step costs, learnt while running. Pure; no torch, no clock: seconds are given.

Each kind of work is a line, `fixed + per_unit * n`: decode in LM rows, prefill in prompt rows, the
detokenizer in frames of the padded call. The start-up measurement feeds the same `observe_*` calls
as the running engine, so a line is right from the first stream on and follows the device after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class CostLine:
    """A line through (n, seconds), fitted with exponentially fading weights.

    Args:
        fixed_s: seconds of a call with nothing in it.
        unit_s: seconds for each unit more.
        memory: observations that the fit remembers, about.
    """

    fixed_s: float
    unit_s: float
    memory: float = 200.0
    _weight: float = 0.0
    _mean_n: float = 0.0
    _mean_s: float = 0.0
    _var_n: float = 0.0
    _cov: float = 0.0

    def predict(self, n: float) -> float:
        """Seconds for `n` units; nothing at all takes no time."""
        return self.fixed_s + self.unit_s * n if n > 0 else 0.0

    def observe(self, n: float, seconds: float) -> None:
        """Learn from one call. A far outlier counts as a moderate one."""
        if n <= 0:
            return
        if self._weight >= _TRUST_AFTER:
            expected = self.predict(n)
            seconds = min(max(seconds, expected / _CLIP), expected * _CLIP)
        self._weight = min(self._weight + 1.0, self.memory)
        share = 1.0 / self._weight
        d_n, d_s = n - self._mean_n, seconds - self._mean_s
        self._mean_n += share * d_n
        self._mean_s += share * d_s
        self._var_n += share * (d_n * (n - self._mean_n) - self._var_n)
        self._cov += share * (d_n * (seconds - self._mean_s) - self._cov)
        self._fit()

    def _fit(self) -> None:
        # Sizes that hardly vary say nothing about the slope: the known one is kept then. The
        # ridge is a spread of 5 % of the mean size.
        ridge = (0.05 * self._mean_n) ** 2 / self._weight
        slope = (self._cov + ridge * self.unit_s) / (self._var_n + ridge)
        self.unit_s = min(max(slope, 0.0), self._mean_s / self._mean_n)
        self.fixed_s = self._mean_s - self.unit_s * self._mean_n


_CLIP = 2.0
"""An observation counts as at most this many times the expected, or one part of it."""

_TRUST_AFTER = 8.0
"""Observations after which a line knows what is an outlier."""


class StepCosts:
    """The three lines of one engine, and how far its LM and its detokenizer overlap.

    Args:
        n_context_frames: frames that the codec passes again with each chunk; they cost too.
    """

    def __init__(self, n_context_frames: int = 0) -> None:
        self._n_context = n_context_frames
        # Before any measurement: a slow device, so that a cold engine admits with care.
        self.overlap = 1.0
        self.decode = CostLine(5e-3, 1e-3)
        self.prefill = CostLine(5e-3, 2e-4)
        self.chunk = CostLine(5e-3, 1e-3)

    def observe_step(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """Learn from one LM step of `n_decode` decode rows and `n_prefill` prompt rows."""
        if n_prefill == 0:
            self.decode.observe(n_decode, seconds)
        elif n_decode == 0:
            self.prefill.observe(n_prefill, seconds)
        else:
            # A mixed step tells the sum only: split it in the proportion that was expected.
            expected_s = self.step_s(n_decode, n_prefill)
            ratio = seconds / max(expected_s, 1e-9)
            self.decode.observe(n_decode, ratio * self.decode.predict(n_decode))
            self.prefill.observe(n_prefill, ratio * self.prefill.predict(n_prefill))

    def observe_chunk(self, n_streams: int, n_frames: int, seconds: float) -> None:
        """Learn from one detokenizer call of `n_streams` chunks padded to `n_frames` frames."""
        self.chunk.observe(self._chunk_units(n_streams, n_frames), seconds)

    def observe_overlap(self, lm_s: float, codec_s: float, total_s: float) -> None:
        """Learn from a step whose LM and detokenizer parts took `lm_s` and `codec_s` by themselves.

        `overlap` is the share of the shorter part that is not hidden: 1 runs them in turn.
        """
        shorter_s = min(lm_s, codec_s)
        if shorter_s <= 0:
            return
        share = min(max((total_s - max(lm_s, codec_s)) / shorter_s, 0.0), 1.0)
        self.overlap += 0.02 * (share - self.overlap)

    def both_s(self, lm_s: float, codec_s: float) -> float:
        """Seconds of LM work and detokenizer work side by side."""
        return max(lm_s, codec_s) + self.overlap * min(lm_s, codec_s)

    def step_s(self, n_decode: int, n_prefill: int) -> float:
        """Seconds of an LM step."""
        return self.decode.predict(n_decode) + self.prefill.predict(n_prefill)

    def chunk_s(self, n_streams: int, n_frames: int) -> float:
        """Seconds of a detokenizer call."""
        return self.chunk.predict(self._chunk_units(n_streams, n_frames))

    def prefill_rows_in(self, seconds: float) -> int:
        """Prompt rows that run in `seconds`; 0 if none."""
        line = self.prefill
        return max(0, int((seconds - line.fixed_s) / max(line.unit_s, 1e-9)))

    def n_full_call(self, n_frames: int) -> int:
        """Streams in a detokenizer call from which on its fixed cost is less than half of it."""
        each_s = self.chunk.unit_s * self._chunk_units(1, n_frames)
        return max(1, math.ceil(self.chunk.fixed_s / max(each_s, 1e-9)))

    def _chunk_units(self, n_streams: int, n_frames: int) -> int:
        return n_streams * (n_frames + self._n_context)
