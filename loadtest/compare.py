"""Two runs beside each other: ratios of figures, and whether they may be compared. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from loadtest.report import RunReport, RunSettings

FIGURES: Final = {
    "ttfa_packet_p50_ms": False,
    "ttfa_packet_p95_ms": False,
    "ttfa_audible_p50_ms": False,
    "ttfa_audible_p90_ms": False,
    "ttfa_audible_p95_ms": False,
    "ttfa_audible_p99_ms": False,
    "goodput_0ms_per_s": True,
    "goodput_100ms_per_s": True,
    "goodput_200ms_per_s": True,
    "underruns_0ms_streams_pct": False,
    "underruns_0ms_total_ms": False,
    "max_gap_0ms_ms": False,
    "viable_streams_pct": True,
    "real_time_factor_p50_ratio": False,
    "cancel_to_silence_p95_ms": False,
    "refused_pct": False,
    "errors_pct": False,
    "audio_s_per_s": True,
}
"""What is compared, and whether more of it is better."""
MACHINE: Final = ("machine", "processor", "n_cores")
SIMILAR: Final = 0.02
"""Ratios nearer to 1 than this are called the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A figure of both runs. `ratio` is second to first; None where that says nothing."""

    kind: str
    name: str
    first: float | None
    second: float | None
    ratio: float | None
    verdict: str


def obstacles(first: RunReport, second: RunReport) -> list[str]:
    """Why the runs do not measure the same thing; empty: they may be compared."""
    found = []
    for one in fields(RunSettings):
        a, b = getattr(first.settings, one.name), getattr(second.settings, one.name)
        if a != b:
            found.append(f"{one.name}: {a} and {b}")
    for name in MACHINE:
        a, b = first.machine.get(name), second.machine.get(name)
        if a != b:
            found.append(f"{name} of the client: {a} and {b}")
    if list(first.models) != list(second.models):
        found.append(f"models: {', '.join(first.models)} and {', '.join(second.models)}")
    for which, report in (("first", first), ("second", second)):
        found += [f"the {which} run is not valid: {fault}" for fault in report.faults]
    return found


def compared(first: RunReport, second: RunReport) -> Iterator[Compared]:
    """The figures that both runs have."""
    for kind in first.figures:
        if kind not in second.figures:
            continue
        for name, more_is_better in FIGURES.items():
            a, b = first.figures[kind].get(name), second.figures[kind].get(name)
            if a is None and b is None:
                continue
            ratio = b / a if a and b is not None else None
            verdict = _verdict(a, b, more_is_better)
            yield Compared(kind=kind, name=name, first=a, second=b, ratio=ratio, verdict=verdict)


def _verdict(a: float | None, b: float | None, more_is_better: bool) -> str:
    if a is None or b is None:
        return ""
    if a == b or (a and abs(b / a - 1) < SIMILAR):
        return "same"
    return "better" if (b > a) == more_is_better else "worse"
