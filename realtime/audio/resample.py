"""Sample rate conversion of one response or one microphone. Worker threads.

libswresample by PyAV: it holds back under 3 ms. A resampler that works in blocks of its own (soxr's
better qualities kept up to 42 ms here) would lengthen the wait for the first sound, and the client
would have less to play than the engine believes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import av
import numpy as np

if TYPE_CHECKING:
    # Clients import this module, and they know the wire form only.
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
            else av.AudioResampler(format="flt", layout="mono", rate=out_rate_hz)
        )

    def push(self, pcm: Pcm) -> Pcm:
        """Convert float32 mono `(n,)`; some of it may come with a later call."""
        self._n_in += len(pcm)
        if self._stream is None or not len(pcm):
            return pcm
        row = np.ascontiguousarray(pcm, dtype=np.float32)[np.newaxis]
        frame = av.AudioFrame.from_ndarray(row, format="flt", layout="mono")
        frame.sample_rate = self._in_rate_hz
        out = _joined(self._stream.resample(frame))
        self._n_out += len(out)
        return out

    def finish(self) -> Pcm:
        """The rest. Call once."""
        if self._stream is None or not self._n_in:
            return _joined([])
        rest = _joined(self._stream.resample(None))
        n_wanted = (2 * self._n_in * self._out_rate_hz + self._in_rate_hz) // (2 * self._in_rate_hz)
        n_rest = max(0, n_wanted - self._n_out)
        if n_rest > len(rest):
            rest = np.concatenate([rest, np.zeros(n_rest - len(rest), dtype=np.float32)])
        return rest[:n_rest]


def _joined(frames: list[av.AudioFrame]) -> Pcm:
    parts = [frame.to_ndarray()[0].astype(np.float32, copy=False) for frame in frames]
    return np.concatenate([np.zeros(0, dtype=np.float32), *parts])
