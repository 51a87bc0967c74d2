"""How long a call takes on its device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

N_BEFORE: Final = 2
N_TIMES: Final = 7


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Median seconds of a call, once it has been made a few times."""
    taken = []
    for idx in range(N_BEFORE + N_TIMES):
        _wait(device)
        start_s = time.perf_counter()
        call()
        _wait(device)
        if idx >= N_BEFORE:
            taken.append(time.perf_counter() - start_s)
    return statistics.median(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
