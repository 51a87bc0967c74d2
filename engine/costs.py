"""What a step costs, learnt while running. Pure; no torch, no clock: seconds are given.

Each kind of work is a line, `fixed + per_unit * n`: decode in LM rows, prefill in prompt rows, the
detokenizer in frames of the padded call. The line comes from a measurement at start; what the
running engine sees corrects it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Sample = tuple[int, float]
"""Units of work, and the seconds that they took."""

_N_OCTAVES = 16
_SHARE = 0.05
"""Weight of one observation in a running average: it follows within about twenty."""
_SHARES = [_SHARE * 0.5**distance for distance in range(_N_OCTAVES)]
_CLIP = 2.0
"""One observation counts as at most this many times the expected, or this part of it."""


UNEVEN = 1.1
"""What a promise rests on is taken to last so much longer than the average says: no device is quite
even."""
_CHEAP = 1.25
"""Work beside other work is cheap while it makes that last at most so much longer."""


class CostLine:
    """A line through (units, seconds), corrected by a running average for each octave of sizes.

    The octaves learn what a line cannot say (padding to fixed sizes, longer contexts in larger
    batches). An observation counts half as much for the octave next to its own, and so on, so that
    a device that slows down is noticed for sizes that are not running.

    Args:
        fixed_s: seconds of a call with nothing in it.
        unit_s: seconds for each unit more.
    """

    def __init__(self, fixed_s: float, unit_s: float) -> None:
        self._fixed_s = fixed_s
        self._unit_s = unit_s
        self._scale = [1.0] * _N_OCTAVES

    def predict(self, n: int) -> float:
        """Seconds for `n` units; nothing at all takes no time."""
        if n <= 0:
            return 0.0
        return (self._fixed_s + self._unit_s * n) * self._scale[_octave(n)]

    def calibrate(self, samples: Sequence[Sample]) -> None:
        """Take the line that fits `samples` best, and forget all corrections.

        Two sizes or more give the slope; one size only scales the line that is there.
        """
        mean_n = sum(n for n, _ in samples) / len(samples)
        mean_s = sum(seconds for _, seconds in samples) / len(samples)
        var_n = sum((n - mean_n) ** 2 for n, _ in samples)
        if var_n > 0:
            cov = sum((n - mean_n) * (seconds - mean_s) for n, seconds in samples)
            self._unit_s = min(max(cov / var_n, 0.0), mean_s / mean_n)
        else:
            self._unit_s *= mean_s / (self._fixed_s + self._unit_s * mean_n)
        self._fixed_s = mean_s - self._unit_s * mean_n
        self._scale = [1.0] * _N_OCTAVES

    def observe(self, n: int, seconds: float) -> None:
        """Learn from one call. A far outlier counts as a moderate one."""
        if n <= 0:
            return
        ratio = min(max(seconds / self.predict(n), 1 / _CLIP), _CLIP)
        own = _octave(n)
        for octave in range(_N_OCTAVES):
            self._scale[octave] *= 1 + _SHARES[abs(octave - own)] * (ratio - 1)

    def n_within(self, seconds: float) -> int:
        """Most units that take at most `seconds` by the line; 0 if none do."""
        left_s = seconds / self._scale[0] - self._fixed_s
        return max(0, int(left_s / max(self._unit_s, 1e-9)))

    @property
    def n_even(self) -> int:
        """Units at which the fixed cost is half of the whole: fewer at a time are a waste."""
        return max(1, math.ceil(self._fixed_s / max(self._unit_s, 1e-9)))


class StepCosts:
    """The three lines of one engine, how far LM and detokenizer overlap, and how long steps are.

    Args:
        n_context_frames: frames that the codec passes again with each chunk; they cost too.
    """

    def __init__(self, n_context_frames: int = 0) -> None:
        self._n_context = n_context_frames
        # Before any measurement: a slow device, so that a cold engine admits with care.
        self.decode = CostLine(5e-3, 1e-3)
        self.prefill = CostLine(5e-3, 2e-4)
        self.chunk = CostLine(5e-3, 1e-3)
        self.overlap = 1.0
        self.overhead_s = 0.0
        self.recent_step_s = 0.0

    def observe_step(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """Learn from one LM step of `n_decode` decode rows and `n_prefill` prompt rows.

        A mixed step tells the sum only: both kinds are taken to have kept their proportion.
        """
        expected_s = self.step_s(n_decode, n_prefill)
        if expected_s > 0:
            ratio = seconds / expected_s
            self.decode.observe(n_decode, ratio * self.decode.predict(n_decode))
            self.prefill.observe(n_prefill, ratio * self.prefill.predict(n_prefill))

    def observe_chunk(self, n_streams: int, n_frames: int, seconds: float) -> None:
        """Learn from one detokenizer call of `n_streams` chunks padded to `n_frames` frames."""
        self.chunk.observe(self.chunk_units(n_streams, n_frames), seconds)

    def observe_total(self, lm_s: float, codec_s: float, total_s: float) -> None:
        """Learn from a whole step whose two parts took `lm_s` and `codec_s` by themselves.

        `overlap` is the share of the shorter part that is not hidden: 1 runs them in turn.
        `overhead_s` is what passes beside both: the host's work, and waiting for it.
        `recent_step_s` follows the steps that make rows, without what dear calls held them up.
        """
        beside_s = max(0.0, total_s - self.both_s(lm_s, codec_s))
        self.overhead_s += _SHARE * (beside_s - self.overhead_s)
        held_up_s = max(0.0, self.both_s(lm_s, codec_s) - self.cheap_s(lm_s))
        self.recent_step_s += _SHARE * (max(0.0, total_s - held_up_s) - self.recent_step_s)
        shorter_s = min(lm_s, codec_s)
        if shorter_s > 0:
            share = min(max((total_s - max(lm_s, codec_s)) / shorter_s, 0.0), 1.0)
            self.overlap += _SHARE * (share - self.overlap)

    def step_s(self, n_decode: int, n_prefill: int) -> float:
        """Seconds of an LM step."""
        return self.decode.predict(n_decode) + self.prefill.predict(n_prefill)

    def chunk_s(self, n_streams: int, n_frames: int) -> float:
        """Seconds of a detokenizer call."""
        return self.chunk.predict(self.chunk_units(n_streams, n_frames))

    def both_s(self, lm_s: float, codec_s: float) -> float:
        """Seconds of LM work and detokenizer work side by side."""
        return max(lm_s, codec_s) + self.overlap * min(lm_s, codec_s)

    def cheap_s(self, lm_s: float) -> float:
        """Seconds that a step of rows that take `lm_s` may last before what is added is dear."""
        return _CHEAP * lm_s

    def is_dear(self, lm_s: float, codec_s: float, borne_s: float) -> bool:
        """The detokenizer call holds the rows beside it up, for longer than `borne_s`."""
        return codec_s > borne_s and self.both_s(lm_s, codec_s) > self.cheap_s(lm_s)

    def chunk_units(self, n_streams: int, n_frames: int) -> int:
        """Frames that a detokenizer call computes: what `chunk` counts in."""
        return n_streams * (n_frames + self._n_context)

    def n_full_call(self, n_frames: int) -> int:
        """Streams in a detokenizer call from which on its fixed cost is at most half of it."""
        return math.ceil(self.chunk.n_even / self.chunk_units(1, n_frames))


def _octave(n: int) -> int:
    return min(n.bit_length() - 1, _N_OCTAVES - 1)
