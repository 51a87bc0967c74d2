"""`python -m loadtest sweep`: the largest rate that keeps a promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from loadtest.commands import options
from loadtest.commands.options import complete, draw, shares_of
from loadtest.display import console, live
from loadtest.measure.promise import Found, Promise, Search
from loadtest.report import RunReport, RunSettings
from loadtest.sweep import SweepReport, write_sweep
from loadtest.sweep import sweep as run_sweep
from loadtest.target import Target
from realtime.client.connect import DEFAULT_URL


def sweep(
    url: options.Url = DEFAULT_URL,
    api_key: options.ApiKey = None,
    low: Annotated[float, typer.Option(min=0.001, help="First rate tried.")] = 0.5,
    high: Annotated[float, typer.Option(min=0.001, help="Largest rate tried.")] = 64.0,
    tolerance: Annotated[float, typer.Option(min=0.01, help="Of the answer, as a share.")] = 0.1,
    seed: Annotated[list[int] | None, typer.Option(help="One or more; all must pass.")] = None,
    duration: options.Duration = 30.0,
    scenario: options.ScenarioName = "speech",
    share: options.Shares = None,
    warmup: options.Warmup = 10.0,
    drain: options.Drain = 60.0,
    percent: Annotated[int, typer.Option(help="Of first sounds: 50, 90, 95 or 99.")] = 95,
    ttfa_bound_ms: options.TtfaMs = 500.0,
    answer_bound_ms: options.AnswerMs = 1500.0,
    clean_pct: Annotated[float, typer.Option(help="Streams without an underrun, %.")] = 99.0,
    prebuffer_ms: Annotated[int, typer.Option(help="Of the listener: 0, 100 or 200.")] = 0,
    served_pct: Annotated[float, typer.Option(help="Not refused and no error, %.")] = 99.0,
    microphone: options.Microphone = "opus",
    stall_s: options.StallS = 30.0,
    model: options.Model = "",
    voice: options.Voice = "",
    out: options.Out = None,
    png: options.Png = None,
) -> None:
    """Find the largest rate that keeps a promise: double until one fails, then halve the gap.

    Exit status 3: it was the load generator that could do no more.
    """
    promise = Promise(
        percent=percent,
        ttfa_ms=ttfa_bound_ms,
        answer_ms=answer_bound_ms,
        clean_pct=clean_pct,
        prebuffer_ms=prebuffer_ms,
        served_pct=served_pct,
    )
    settings = RunSettings(
        scenario=scenario,
        shares=shares_of(scenario, share),
        rate_per_s=low,
        duration_s=duration,
        warmup_s=warmup,
        drain_s=drain,
        seed=0,
        ttfa_bound_ms=ttfa_bound_ms,
        answer_bound_ms=answer_bound_ms,
        microphone=microphone,
        stall_s=stall_s,
        model=model,
        voice=voice,
    )
    search = Search(low=low, high=high, tolerance=tolerance, seeds=seed or [0])
    report = search_shown(Target(url=url, api_key=api_key), settings, promise, search)
    console.print(found_line(report.found))
    if out is not None:
        write_sweep(out, report)
        console.print(f"Written to {out}")
    draw(png, report.runs)
    failed = [run for run in report.runs if run.settings.rate_per_s == report.found.failed]
    if any(not run.is_valid for run in failed):
        raise typer.Exit(options.EXIT_NOT_VALID)


def search_shown(
    target: Target, settings: RunSettings, promise: Promise, search: Search
) -> SweepReport:
    """Search, and print what is promised and a line for each run."""
    console.print(f"[bold]Promise[/]: {promise.words()}")
    seeds = ", ".join(map(str, search.seeds))
    console.print(
        f"Each rate: {settings.warmup_s:g} s of warm-up, {settings.duration_s:g} s measured, "
        f"seeds {seeds}; rates within {search.tolerance:.0%}"
    )
    with live(f"{settings.scenario} sweep") as show:
        return complete(run_sweep(target, settings, promise, search, show, _tell))


def _tell(report: RunReport, breaches: Sequence[str]) -> None:
    settings = report.settings
    verdict = "[red]fails[/]: " + "; ".join(breaches) if breaches else "[green]passes[/]"
    console.print(f"  {settings.rate_per_s:g}/s, seed {settings.seed}: {verdict}")


def found_line(found: Found) -> str:
    """The answer of a search, in one line."""
    if found.best is None:
        return f"[red]Not even {found.failed:g}/s keeps it.[/]"
    if found.failed is None:
        return f"[bold]{found.best:g}/s keeps it[/], and no larger rate was asked for."
    return f"[bold]{found.best:g}/s keeps it[/]; {found.failed:g}/s does not."
