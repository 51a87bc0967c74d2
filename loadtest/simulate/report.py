"""Shows a sweep: JSON, tables for a terminal, a page of plots as PNG."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from loadtest.simulate.offline import OfflineFigures
from loadtest.simulate.outcome import Bar, Figures
from loadtest.simulate.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_IN = (9.0, 3.4)
DPI = 90
COLOURS = {"ours": "tab:blue", "reference": "tab:red", "fcfs": "tab:gray"}


def write_json(path: Path, sweeps: Sequence[Sweep], offline: Sequence[OfflineFigures]) -> None:
    """Write all that was found. Raises: `OSError`."""
    found = {
        "sweeps": [dataclasses.asdict(sweep) for sweep in sweeps],
        "offline": [{**dataclasses.asdict(one), "speed": one.speed} for one in offline],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def points_table(sweep: Sweep) -> Table:
    """A row for each rate and policy."""
    window, seeds = sweep.window, ", ".join(map(str, sweep.seeds))
    table = Table(
        title=f"{sweep.profile}: {window.measured_s:g} s, seeds {seeds}",
        caption=f"good: first sound within {1000 * sweep.bound_s:g} ms and no late chunk",
    )
    table.add_column("offered/s", justify="right")
    table.add_column("policy")
    for name in ("good/s", "p50 ms", "p90 ms", "clean", "refused", "late"):
        table.add_column(name, justify="right")
    for point in sorted(sweep.points, key=lambda point: point.rate_hz):
        table.add_row(
            f"{point.rate_hz:g}",
            point.policy,
            f"{point.goodput_hz:.2f}",
            _ms(point.p50_ms),
            _ms(point.p90_ms),
            f"{point.clean_share:.1%}",
            f"{point.refused_share:.0%}",
            str(point.n_late),
        )
    return table


def bars_table(bars: Sequence[Bar]) -> Table:
    """What is promised, and whether it holds."""
    table = Table(title="ours against the reference")
    for name in ("promise", "asked", "measured", ""):
        table.add_column(name)
    for bar in bars:
        mark = "[green]met[/]" if bar.is_met else "[red]missed[/]"
        table.add_row(bar.name, bar.asked, bar.measured, mark)
    return table


def offline_table(found: Sequence[OfflineFigures]) -> Table:
    """Seconds of speech a second, for each policy."""
    table = Table(title=f"{found[0].n_texts} texts at once, nobody listens")
    table.add_column("policy")
    table.add_column("speech s/s", justify="right")
    for one in found:
        table.add_row(one.policy, f"{one.speed:.1f}")
    return table


def run_line(one: Figures) -> str:
    """One run in a line."""
    return (
        f"{one.policy} at {one.rate_hz:g}/s, seed {one.seed}: {one.goodput_hz:.2f} good/s, "
        f"p90 {_ms(one.ttfa_ms['p90'])} ms"
    )


def draw(path: Path, sweep: Sweep) -> None:
    """First sound and goodput against the rate.

    Raises:
        ImportError: no matplotlib.
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    first, good = figure.subplots(1, 2)
    policies = dict.fromkeys(point.policy for point in sweep.points)
    for policy in policies:
        points = sorted(
            (point for point in sweep.points if point.policy == policy),
            key=lambda point: point.rate_hz,
        )
        _line(first, policy, [(p.rate_hz, p.p90_ms) for p in points])
        _line(good, policy, [(p.rate_hz, p.goodput_hz) for p in points])
    bound_ms = 1000 * sweep.bound_s
    first.axhline(bound_ms, color="0.6", lw=1, ls=":")
    first.set(title="p90 of the first sound", ylabel="ms", ylim=(0, 2 * bound_ms))
    good.set(title="Good streams", ylabel="per s", ylim=(0, None))
    for axes in (first, good):
        axes.set_xlabel("offered, streams per s")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(sweep.profile)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)


def _line(axes: Axes, policy: str, points: Sequence[tuple[float, float | None]]) -> None:
    known = [(rate_hz, value) for rate_hz, value in points if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "o-", ms=3, color=COLOURS.get(policy), label=policy)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
