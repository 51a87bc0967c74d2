"""G.711, the sound of telephones: one byte a sample, mu-law or A-law. Pure, any thread.

Both laws are logarithms in eight straight segments of sixteen steps, for each sign.

Source: ITU-T G.711 (11/88), tables 1a to 2b.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

SIGN: Final = 0x80
ULAW_BIAS: Final = 33
"""What the first segment begins above zero, so that every segment is as long as all before it."""
ALAW_EVEN_BITS: Final = 0x55
"""A-law inverts every other bit, so that silence is not a row of zeros on the line."""


class G711Law:
    """One of the two laws.

    Args:
        levels: `(256,)` int16, the sample behind each code.
    """

    def __init__(self, levels: NDArray[np.int16]) -> None:
        self._levels = levels
        # From the end: of the two codes for zero, mu-law sends the positive one.
        known, codes = np.unique(levels[::-1].astype(np.int32), return_index=True)
        borders = (known[1:] + known[:-1]) / 2
        nearest = np.searchsorted(borders, np.arange(65536, dtype=np.uint16).view(np.int16))
        self._codes = (255 - codes[nearest]).astype(np.uint8)

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """The codes of the nearest levels to int16 samples `(n,)`."""
        return self._codes[samples.view(np.uint16)].tobytes()

    def decode(self, payload: bytes) -> NDArray[np.int16]:
        """The int16 samples `(n,)` behind codes."""
        return self._levels[np.frombuffer(payload, dtype=np.uint8)]


def _ulaw_levels() -> NDArray[np.int16]:
    codes = 255 - np.arange(256)
    segment, step = codes >> 4 & 7, codes & 15
    magnitude = (2 * step + ULAW_BIAS << segment) - ULAW_BIAS
    # 14 bits to 16.
    return np.where(codes & SIGN, -4 * magnitude, 4 * magnitude).astype(np.int16)


def _alaw_levels() -> NDArray[np.int16]:
    codes = np.arange(256) ^ ALAW_EVEN_BITS
    segment, step = codes >> 4 & 7, codes & 15
    # The first two segments have steps of the same size.
    magnitude = np.where(segment, 2 * step + 33 << np.maximum(segment - 1, 0), 2 * step + 1)
    # 13 bits to 16.
    return np.where(codes & SIGN, 8 * magnitude, -8 * magnitude).astype(np.int16)


G711: Final[dict[Literal["pcmu", "pcma"], G711Law]] = {
    "pcmu": G711Law(_ulaw_levels()),
    "pcma": G711Law(_alaw_levels()),
}
"""The laws by the names of their media types."""
