"""`python -m loadtest simulate`: the engine's scheduler on a virtual clock, beside others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.display import console
from loadtest.plots import PlotError
from loadtest.simulate import report
from loadtest.simulate.device import Profile, ProfileError, load_profile
from loadtest.simulate.offline import OfflineFigures, run_offline
from loadtest.simulate.outcome import Figures
from loadtest.simulate.sweep import POLICIES, Sweep, Sweeper, Window


def simulate(
    profile: Annotated[Path, typer.Option(help="Device profile: JSON, see loadtest/profiles.")],
    rates: Annotated[str, typer.Option(help="Streams per s to offer, as 4,6,8.")] = "",
    policies: Annotated[
        str, typer.Option(help=f"Of {', '.join(POLICIES)}; the first three by default.")
    ] = "ours,fcfs,reference",
    seed: Annotated[list[int] | None, typer.Option(help="One or more; means are shown.")] = None,
    duration: Annotated[float, typer.Option(min=1.0, help="Measured virtual time, s.")] = 120.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Load before that, s.")] = 30.0,
    ttfa_bound_ms: Annotated[float, typer.Option(help="First sound in good time, ms.")] = 500.0,
    offline: Annotated[
        int, typer.Option(min=0, help="Instead or besides: so many texts at once, no listeners.")
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Write JSON.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw p90 and goodput against the rate.")] = None,
) -> None:
    """Run the engine's own scheduling on a virtual clock, beside other policies. No server needed.

    Listeners arrive at random and play at once; a profile says what work costs on a device. With
    ours and reference together the promises of docs/scheduling.md are checked: exit status 1 if
    one is missed.
    """
    rates_hz, names = _numbers(rates), _names(policies)
    if not rates_hz and not offline:
        raise typer.BadParameter("give --rates 4,6,8 or --offline 400", param_hint="--rates")
    try:
        device = load_profile(profile)
    except ProfileError as error:
        raise typer.BadParameter(str(error), param_hint="--profile") from error
    sweeps = []
    if rates_hz:
        window = Window(warm_up_s=warmup, measured_s=duration)
        sweeps = [_sweep(device, names, rates_hz, seed or [0], ttfa_bound_ms / 1000, window)]
    spoken = [
        run_offline(device, name, offline, seed[0] if seed else 0) for name in names if offline
    ]
    _show(sweeps, spoken)
    _write(sweeps, spoken, out, png)
    if any(not bar.is_met for sweep in sweeps for bar in sweep.bars):
        raise typer.Exit(1)


def _sweep(
    profile: Profile,
    policies: Sequence[str],
    rates_hz: Sequence[float],
    seeds: Sequence[int],
    bound_s: float,
    window: Window,
) -> Sweep:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        n_runs = len(policies) * len(rates_hz) * len(seeds)
        task = progress.add_task(profile.name, total=n_runs)

        def tell(one: Figures) -> None:
            progress.update(task, advance=1, description=report.run_line(one))

        return Sweeper(profile, seeds, bound_s, window, tell).sweep(policies, rates_hz)


def _show(sweeps: Sequence[Sweep], spoken: Sequence[OfflineFigures]) -> None:
    for sweep in sweeps:
        console.print(report.points_table(sweep))
        if sweep.bars:
            console.print(report.bars_table(sweep.bars))
    if spoken:
        console.print(report.offline_table(spoken))


def _write(
    sweeps: Sequence[Sweep], spoken: Sequence[OfflineFigures], out: Path | None, png: Path | None
) -> None:
    if out is not None:
        report.write_json(out, sweeps, spoken)
        console.print(f"Written to {out}")
    if png is not None and sweeps:
        try:
            report.draw(png, sweeps[0])
        except ImportError as error:
            raise PlotError('plots need matplotlib: pip install -e ".[loadtest]"') from error
        console.print(f"Drawn in {png}")


def _numbers(text: str) -> list[float]:
    try:
        rates_hz = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rates") from error
    if any(rate_hz <= 0 for rate_hz in rates_hz):
        raise typer.BadParameter("rates are above 0", param_hint="--rates")
    return rates_hz


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        message = f"no policy {', '.join(unknown) or 'given'}; there are {', '.join(POLICIES)}"
        raise typer.BadParameter(message, param_hint="--policies")
    return names
