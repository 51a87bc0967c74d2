"""Where sound begins in samples, by a threshold of energy. No I/O."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.float32]

AUDIBLE_DBFS: Final = -50.0
"""Root mean square of a window against full scale. The level of `realtime.client.talked.AUDIBLE`,
of energy instead of single samples."""
WINDOW_MS: Final = 5
"""Short against speech, long enough that a single click of a decoder is no sound."""


def first_audible(pcm: Pcm, sample_rate_hz: int) -> int | None:
    """First sample of the first window of `WINDOW_MS` that is as loud as `AUDIBLE_DBFS`.

    Windows begin at every whole millisecond. None: silence.
    """
    n_window = sample_rate_hz * WINDOW_MS // 1000
    n_hop = max(1, sample_rate_hz // 1000)
    if len(pcm) < n_window:
        return None
    energy = np.concatenate([[0.0], np.cumsum(np.square(pcm, dtype=np.float64))])
    starts = np.arange(0, len(pcm) - n_window + 1, n_hop)
    power = (energy[starts + n_window] - energy[starts]) / n_window
    loud = np.flatnonzero(power >= 10.0 ** (AUDIBLE_DBFS / 10.0))
    return int(starts[loud[0]]) if len(loud) else None
