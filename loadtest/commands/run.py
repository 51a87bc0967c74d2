"""`python -m loadtest run`: one rate."""

from __future__ import annotations

from typing import Annotated

import typer

from loadtest.commands import options
from loadtest.commands.options import complete, draw, shares_of
from loadtest.display import console, live, show_report
from loadtest.report import RunSettings, write_report
from loadtest.run import run_load
from loadtest.target import Target
from realtime.client.connect import DEFAULT_URL


def run(
    rate: Annotated[float, typer.Option(min=0.001, help="Callers that arrive each second.")],
    url: options.Url = DEFAULT_URL,
    api_key: options.ApiKey = None,
    duration: options.Duration = 60.0,
    seed: options.Seed = 0,
    scenario: options.ScenarioName = "speech",
    share: options.Shares = None,
    warmup: options.Warmup = 5.0,
    drain: options.Drain = 60.0,
    ttfa_bound_ms: options.TtfaMs = 500.0,
    answer_bound_ms: options.AnswerMs = 1500.0,
    microphone: options.Microphone = "opus",
    stall_s: options.StallS = 30.0,
    model: options.Model = "",
    voice: options.Voice = "",
    out: options.Out = None,
    png: options.Png = None,
) -> None:
    """Load a server at one rate, and measure what its callers hear.

    Exit status 3: the load generator itself was late, and the figures are worth nothing.
    """
    settings = RunSettings(
        scenario=scenario,
        shares=shares_of(scenario, share),
        rate_per_s=rate,
        duration_s=duration,
        warmup_s=warmup,
        drain_s=drain,
        seed=seed,
        ttfa_bound_ms=ttfa_bound_ms,
        answer_bound_ms=answer_bound_ms,
        microphone=microphone,
        stall_s=stall_s,
        model=model,
        voice=voice,
    )
    with live(f"{scenario} at {rate:g}/s") as show:
        report = complete(run_load(Target(url=url, api_key=api_key), settings, show))
    show_report(report)
    if out is not None:
        write_report(out, report)
        console.print(f"Written to {out}")
    draw(png, [report])
    if not report.is_valid:
        raise typer.Exit(options.EXIT_NOT_VALID)
