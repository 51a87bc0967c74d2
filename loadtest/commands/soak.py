"""`python -m loadtest soak`: a long load, under which a server must stay as it is."""

from __future__ import annotations

import contextlib
from typing import Annotated, Final

import typer

from loadtest.commands import options
from loadtest.commands.options import complete, shares_of
from loadtest.commands.sweep import found_line, search_shown
from loadtest.display import console, live, show_report, show_rows
from loadtest.measure.flatness import Slack
from loadtest.measure.promise import Promise, Search
from loadtest.report import RunSettings
from loadtest.server_process import ServerProcessError, running_server
from loadtest.soak import SoakReport, write_soak
from loadtest.soak import soak as run_soak
from loadtest.target import Target

CAPACITY: Final = Search(low=0.25, high=64.0, tolerance=0.25)
CAPACITY_S: Final = 20.0
CAPACITY_WARMUP_S: Final = 5.0
HEADINGS: Final = ("under load", "second quarter", "last quarter", "may grow by", "verdict")


def soak(
    url: Annotated[str | None, typer.Option(help="Server to load. Else one is started.")] = None,
    api_key: options.ApiKey = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Of load.")] = 30.0,
    load: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of what it can.")] = 0.7,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Callers each second. Else found by a sweep.")
    ] = None,
    scenario: options.ScenarioName = "mixed",
    share: options.Shares = None,
    seed: options.Seed = 0,
    stall_s: options.StallS = 30.0,
    rss_mb: Annotated[float, typer.Option(help="Growth of memory that counts as none, MB.")] = 16.0,
    server_arg: Annotated[
        list[str] | None, typer.Option(help="Argument of the server that is started.")
    ] = None,
    out: options.Out = None,
) -> None:
    """Load a server for long, and require that memory, tasks and descriptors stay flat.

    Exit status 1: they do not.
    """
    promise = Promise()
    settings = RunSettings(
        scenario=scenario,
        shares=shares_of(scenario, share),
        rate_per_s=rate or CAPACITY.low,
        duration_s=CAPACITY_S,
        warmup_s=CAPACITY_WARMUP_S,
        drain_s=60.0,
        seed=seed,
        ttfa_bound_ms=promise.ttfa_ms,
        answer_bound_ms=promise.answer_ms,
        microphone="opus",
        stall_s=stall_s,
    )
    with contextlib.ExitStack() as stack:
        at = url or stack.enter_context(running_server(*(server_arg or ())))
        target = Target(url=at, api_key=api_key)
        asked = rate or load * _capacity(target, settings, promise)
        loaded = settings.lasting(asked, 60.0 * minutes)
        with live(f"soak at {asked:.3g}/s") as show:
            report = complete(run_soak(target, loaded, Slack(rss_mb=rss_mb), show))
    show_report(report.run)
    _show(report)
    if out is not None:
        write_soak(out, report)
        console.print(f"Written to {out}")
    if report.faults:
        raise typer.Exit(1)


def _capacity(target: Target, settings: RunSettings, promise: Promise) -> float:
    """The largest rate that keeps the promise, roughly; warms the server up, too."""
    report = search_shown(target, settings, promise, CAPACITY)
    console.print(found_line(report.found))
    if report.found.best is None:
        raise ServerProcessError("no rate keeps the promise; give one with --rate")
    return report.found.best


def _show(report: SoakReport) -> None:
    rows = [
        (
            one.name,
            f"{one.early:.0f}",
            f"{one.late:.0f}",
            f"{one.allowed:.0f}",
            "flat" if one.is_flat else "GROWS",
        )
        for one in report.drifts
    ]
    show_rows("The server", HEADINGS, rows)
    for fault in report.faults:
        console.print(f"[red]NOT FLAT: {fault}[/]")
    if not report.faults:
        console.print("[green]Nothing has grown, and nothing was left behind.[/]")
