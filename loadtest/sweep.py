"""Runs a sweep against a server, and keeps it in a file. The search is in `measure.promise`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadtest.measure.flatness import Sample, is_at_rest
from loadtest.measure.promise import Found, Promise, Search, find_largest
from loadtest.report import FORMAT, RunReport, RunSettings, load, plain_report, report_of
from loadtest.run import Show, run_load
from loadtest.server_state import read_state
from loadtest.target import Target
from realtime.client.spoken import ConnectError

REST_TIMEOUT_S: Final = 60.0
REST_S: Final = 1.0
"""How often a server is asked whether it has come to rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """A search and all of its runs, in the order of trial."""

    promise: Promise
    found: Found
    runs: Sequence[RunReport]


async def sweep(
    target: Target,
    settings: RunSettings,
    promise: Promise,
    search: Search,
    show: Show,
    tell: Callable[[RunReport, Sequence[str]], None],
) -> SweepReport:
    """Find the largest rate that keeps `promise`.

    Args:
        target: the server.
        settings: of every run, but for rate and seed.
        promise: what a rate must keep.
        search: where to look.
        show: the live display.
        tell: told of each run and what it broke.
    """
    runs: list[RunReport] = []

    async def passes(rate: float) -> bool:
        for seed in search.seeds:
            await wait_for_rest(target)
            report = await run_load(target, replace(settings, rate_per_s=rate, seed=seed), show)
            # A rate that the client cannot make is none that was measured.
            breaches = [*report.faults, *promise.breaches(report.figures)]
            runs.append(report)
            tell(report, breaches)
            if breaches:
                return False
        return True

    found = await find_largest(passes, search)
    return SweepReport(promise=promise, found=found, runs=runs)


async def wait_for_rest(target: Target) -> Sample:
    """Wait until the server serves nobody, or for a while. Gives its last state, if it tells."""
    end_s = time.monotonic() + REST_TIMEOUT_S
    while True:
        try:
            sample = await asyncio.to_thread(read_state, target)
        except ConnectError:
            sample = {}
        if is_at_rest(sample) or time.monotonic() > end_s:
            return sample
        await asyncio.sleep(REST_S)


def write_sweep(path: Path, report: SweepReport) -> None:
    """Write a sweep as JSON."""
    body = {
        "kind": "sweep",
        "format": FORMAT,
        "promise": dataclasses.asdict(report.promise),
        "words": report.promise.words(),
        "found": dataclasses.asdict(report.found),
        "runs": [plain_report(run) for run in report.runs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def read_runs(path: Path) -> list[RunReport]:
    """All runs in a file of a run or a sweep. Raises: `ReportError`."""
    body: dict[str, Any]
    try:
        body = load(path, "sweep")
    except ValueError:
        return [report_of(load(path, "run"), str(path))]
    return [report_of(run, str(path)) for run in body["runs"]]
