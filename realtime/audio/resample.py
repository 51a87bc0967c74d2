"""Sample rate conversion of one response or one microphone. Worker threads.

libswresample by PyAV: it holds back under 3 ms. A resampler that works in blocks of its own (soxr's
better qualities kept up to 42 ms here) would lengthen the wait for the first sound, and the client
would have less to play than the engine believes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import av
import numpy as np
from av.filter import Graph

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
        self._stream = None if in_rate_hz == out_rate_hz else _graph(in_rate_hz, out_rate_hz)

    def push(self, pcm: Pcm) -> Pcm:
        """Convert float32 mono `(n,)`; some of it may come with a later call."""
        self._n_in += len(pcm)
        if self._stream is None or not len(pcm):
            return pcm
        row = np.ascontiguousarray(pcm, dtype=np.float32)[np.newaxis]
        frame = av.AudioFrame.from_ndarray(row, format="flt", layout="mono")
        frame.sample_rate = self._in_rate_hz
        self._stream.push(frame)
        out = _pulled(self._stream)
        self._n_out += len(out)
        return out

    def finish(self) -> Pcm:
        """The rest. Call once."""
        if self._stream is None or not self._n_in:
            return np.zeros(0, dtype=np.float32)
        self._stream.push(None)
        rest = _pulled(self._stream)
        n_wanted = (2 * self._n_in * self._out_rate_hz + self._in_rate_hz) // (2 * self._in_rate_hz)
        n_rest = max(0, n_wanted - self._n_out)
        if n_rest > len(rest):
            rest = np.concatenate([rest, np.zeros(n_rest - len(rest), dtype=np.float32)])
        return rest[:n_rest]


def _graph(in_rate_hz: int, out_rate_hz: int) -> Graph:
    """What `av.AudioResampler` makes, but for its threads.

    That has one for each core, and keeps them as long as anybody holds it: long after the response.
    """
    graph = Graph()
    # PyAV before 18 cannot be told.
    if hasattr(graph, "threads"):
        graph.threads = 1
    source = graph.add_abuffer(sample_rate=in_rate_hz, format="flt", layout="mono")
    rates = str(out_rate_hz)
    wanted = graph.add("aformat", sample_rates=rates, sample_fmts="flt", channel_layouts="mono")
    graph.link_nodes(source, wanted, graph.add("abuffersink")).configure()
    return graph


def _pulled(graph: Graph) -> Pcm:
    """All that has come out."""
    parts = [np.zeros(0, dtype=np.float32)]
    # It wants more, or has come to its end.
    with contextlib.suppress(av.BlockingIOError, av.EOFError):
        while True:
            frame = graph.pull()
            assert isinstance(frame, av.AudioFrame), "sound comes of sound"
            parts.append(frame.to_ndarray()[0].astype(np.float32, copy=False))
    return np.concatenate(parts)
