"""Mean and percentiles of a figure. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

PERCENTS: Final = (50, 90, 95, 99)
Figures = dict[str, float | None]
"""By name; the unit is the end of the name. None: nothing was there to measure."""


def spread(name: str, values: Sequence[float], unit: str, scale: float = 1.0) -> Figures:
    """`{name}_mean_{unit}`, `{name}_p50_{unit}`, ... of `values` times `scale`.

    Percentiles are interpolated between the two nearest values.
    """
    keys = [f"{name}_mean_{unit}", *(f"{name}_p{percent}_{unit}" for percent in PERCENTS)]
    if not values:
        return dict.fromkeys(keys, None)
    scaled = np.asarray(values, dtype=np.float64) * scale
    found = [float(scaled.mean()), *(float(one) for one in np.percentile(scaled, PERCENTS))]
    return dict(zip(keys, found, strict=True))


def share_pct(n: int, total: int) -> float | None:
    """`n` of `total` in percent; None of nothing."""
    return 100.0 * n / total if total else None
