"""Names the machine and the software that figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

Facts = dict[str, str | int | list[float]]


def describe() -> Facts:
    """Facts that a figure is worth nothing without."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "n_cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "parley": version("parley"),
        "load_average_at_start": [round(value, 2) for value in os.getloadavg()],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")
