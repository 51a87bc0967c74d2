"""Runs a soak: a steady load, the server's state beside it, and the verdict of `flatness`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.measure.flatness import Drift, Sample, Slack, drifts, faults_of_soak
from loadtest.report import FORMAT, RunReport, RunSettings, plain_report
from loadtest.run import Show, run_load
from loadtest.sweep import wait_for_rest
from loadtest.target import Target

MAX_ERRORS_PCT: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """A soak.

    Args:
        run: the load, with the server's state over time.
        before: the state at rest before it.
        after: the state at rest after it.
        drifts: of what must be flat.
        faults: what was not; empty: it passed.
    """

    run: RunReport
    before: Sample
    after: Sample
    drifts: Sequence[Drift]
    faults: Sequence[str]


async def soak(target: Target, settings: RunSettings, slack: Slack, show: Show) -> SoakReport:
    """Load a server that has spoken already, and see whether it stays as it is."""
    before = await wait_for_rest(target)
    run = await run_load(target, settings, show)
    after = await wait_for_rest(target)
    end_s = settings.warmup_s + settings.duration_s
    loaded = [one for one in run.server if settings.warmup_s <= one["at_s"] <= end_s]
    return SoakReport(
        run=run,
        before=before,
        after=after,
        drifts=drifts(loaded, slack),
        faults=[*_errors(run), *faults_of_soak(loaded, before, after, slack)],
    )


def _errors(run: RunReport) -> list[str]:
    """A server that serves nobody stays flat with ease."""
    faults = [] if run.figures else ["no stream was measured"]
    for kind, figures in run.figures.items():
        errors_pct = figures["errors_pct"] or 0.0
        if errors_pct > MAX_ERRORS_PCT:
            faults.append(f"{errors_pct:.1f} % of streams ({kind}) were in error")
    return faults


def write_soak(path: Path, report: SoakReport) -> None:
    """Write a soak as JSON."""
    body = {
        "kind": "soak",
        "format": FORMAT,
        "faults": list(report.faults),
        "before": report.before,
        "after": report.after,
        "drifts": [dataclasses.asdict(one) for one in report.drifts],
        "run": plain_report(report.run),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")
