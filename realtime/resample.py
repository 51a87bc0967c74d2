"""Sample rate conversion of one response. The only import of soxr; worker threads."""

from __future__ import annotations

import numpy as np
import soxr

from engine.types import Pcm


class Resampler:
    """Stateful conversion; chunk borders leave no mark.

    The whole output has exactly `round(n_in * out / in)` samples, so that counts can be foretold.

    Args:
        in_rate_hz: of what comes in.
        out_rate_hz: of what goes out; the same rate passes the samples through.
    """

    def __init__(self, in_rate_hz: int, out_rate_hz: int) -> None:
        self._in_rate_hz = in_rate_hz
        self._out_rate_hz = out_rate_hz
        self._n_in = 0
        self._n_out = 0
        self._stream = (
            None
            if in_rate_hz == out_rate_hz
            else soxr.ResampleStream(in_rate_hz, out_rate_hz, 1, dtype="float32")
        )

    def push(self, pcm: Pcm) -> Pcm:
        """Convert float32 mono `(n,)`; some of it may come with a later call."""
        self._n_in += len(pcm)
        if self._stream is None:
            return pcm
        # NOTE: soxr reads the buffer as it lies, a strided view would be misread.
        out: Pcm = self._stream.resample_chunk(np.ascontiguousarray(pcm, dtype=np.float32))
        self._n_out += len(out)
        return out

    def finish(self) -> Pcm:
        """The rest. Call once."""
        empty: Pcm = np.zeros(0, dtype=np.float32)
        if self._stream is None:
            return empty
        rest: Pcm = self._stream.resample_chunk(empty, last=True)
        n_wanted = (2 * self._n_in * self._out_rate_hz + self._in_rate_hz) // (2 * self._in_rate_hz)
        n_rest = n_wanted - self._n_out
        if n_rest > len(rest):
            rest = np.concatenate([rest, np.zeros(n_rest - len(rest), dtype=np.float32)])
        return rest[:n_rest]
