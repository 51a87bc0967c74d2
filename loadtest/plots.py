"""A page of plots, as PNG: first sound and goodput against the rate, and the course of one run.

Needs matplotlib: `pip install -e ".[loadtest]"`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from loadtest.measure.figures import Bounds
from loadtest.measure.playout import PREBUFFERS_MS
from loadtest.measure.streams import Heard, StreamRecord
from loadtest.report import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, ROW_IN = 13.0, 3.6
DPI: Final = 110
PERCENTS: Final = ("p50", "p90", "p95", "p99")
STYLES: Final = {"speech": "-", "answer": "--"}
GOOD, LATE, GAPPY = "tab:green", "tab:orange", "tab:red"


class PlotError(Exception):
    """No plot can be drawn. The message is one line and says what to do."""


def draw_page(path: Path, reports: Sequence[RunReport]) -> None:
    """Draw all runs against their rates, if there are several, and the course of the last one.

    Raises:
        PlotError: no matplotlib, or a file that cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError('plots need matplotlib: pip install -e ".[loadtest]"') from error
    ordered = sorted(reports, key=lambda report: report.settings.rate_per_s)
    has_rates = len({report.settings.rate_per_s for report in reports}) > 1
    n_rows = 3 + has_rates
    figure = Figure(figsize=(WIDTH_IN, n_rows * ROW_IN), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(n_rows, 2)
    if has_rates:
        _first_sound(figure.add_subplot(grid[0, 0]), ordered)
        _goodput(figure.add_subplot(grid[0, 1]), ordered)
    last = reports[-1]
    callers = figure.add_subplot(grid[-3, :])
    _concurrency(callers, last)
    _sounds(figure.add_subplot(grid[-2, :], sharex=callers), last)
    _gaps(figure.add_subplot(grid[-1, :], sharex=callers), last)
    figure.suptitle(_title(last))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise PlotError(f"cannot write {path}: {error.strerror or error}") from error


def _title(report: RunReport) -> str:
    settings = report.settings
    machine = report.machine
    valid = "" if report.is_valid else "  NOT VALID: the client lagged"
    return (
        f"{settings.scenario} of {', '.join(report.models)}, seed {settings.seed}, "
        f"{machine.get('processor', '')}, {machine.get('n_cores', '?')} cores{valid}"
    )


def _first_sound(axes: Axes, reports: Sequence[RunReport]) -> None:
    """First audible sample against the rate, a line for each percentile."""
    for kind, style in STYLES.items():
        for number, percent in enumerate(PERCENTS):
            label, color = f"{kind} {percent}", f"C{number}"
            _line(axes, reports, kind, f"ttfa_audible_{percent}_ms", style, color, label)
    axes.set(title="First audible sample against rate", xlabel="callers per s", ylabel="ms")
    axes.set_ylim(bottom=0)
    _finish(axes)


def _goodput(axes: Axes, reports: Sequence[RunReport]) -> None:
    """Good streams against the rate, for each prebuffer, under what was offered."""
    for kind, style in STYLES.items():
        _line(axes, reports, kind, "offered_per_s", style, "0.6", f"{kind} offered")
        for number, ms in enumerate(PREBUFFERS_MS):
            label, color = f"{kind} good, {ms} ms prebuffer", f"C{number}"
            _line(axes, reports, kind, f"goodput_{ms}ms_per_s", style, color, label)
    axes.set(title="Goodput against rate", xlabel="callers per s", ylabel="streams per s")
    axes.set_ylim(bottom=0)
    _finish(axes)


def _line(
    axes: Axes,
    reports: Sequence[RunReport],
    kind: str,
    name: str,
    style: str,
    color: str,
    label: str,
) -> None:
    """A figure against the rate: a dot for each run, the line through the means of the seeds."""
    by_rate: dict[float, list[float]] = defaultdict(list)
    for report in reports:
        value = report.figures.get(kind, {}).get(name)
        if value is not None:
            by_rate[report.settings.rate_per_s].append(value)
    if not by_rate:
        return
    means = [sum(values) / len(values) for values in by_rate.values()]
    axes.plot(list(by_rate), means, style, color=color, label=label)
    dots = [(rate, value) for rate, values in by_rate.items() for value in values]
    axes.plot(*zip(*dots, strict=True), "o", ms=4, color=color)


def _concurrency(axes: Axes, report: RunReport) -> None:
    """Streams between their asking and their last packet, and what the server had."""
    from matplotlib.ticker import MaxNLocator

    ends = [(o.asked_s, _end_s(o)) for o in report.streams]
    moments = sorted([(at_s, 1) for at_s, _ in ends] + [(at_s, -1) for _, at_s in ends])
    if moments:
        times = np.array([at_s for at_s, _ in moments])
        axes.step(
            times, np.cumsum([step for _, step in moments]), where="post", label="being heard"
        )
    for name, label in (("n_active", "active in the engine"), ("n_queued", "queued in the engine")):
        points = [(one["at_s"], one[name]) for one in report.server if name in one]
        if points:
            axes.plot(*zip(*points, strict=True), lw=1, label=label)
    axes.axvspan(0.0, report.settings.warmup_s, color="0.92", label="warm-up")
    axes.set(
        title=f"The run at {report.settings.rate_per_s:g}/s: streams at a time", ylabel="streams"
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(axes)


def _sounds(axes: Axes, report: RunReport) -> None:
    """The wait for each stream's first sound; crosses have none."""
    bounds = Bounds(
        ttfa_ms=report.settings.ttfa_bound_ms, answer_ms=report.settings.answer_bound_ms
    )
    dots = [(o, o.first_sound_in_s) for o in report.streams if o.first_sound_in_s is not None]
    axes.scatter(
        [o.asked_s for o, _ in dots],
        [1000 * (wait_s or 0.0) for _, wait_s in dots],
        s=14,
        c=[_colour(o, bounds) for o, _ in dots],
    )
    none = [
        o.asked_s
        for o in report.streams
        if o.outcome in ("refused", "failed", "lost", "unfinished")
    ]
    if none:
        axes.scatter(none, [0.0] * len(none), marker="x", c="black", label="refused or failed")
    for kind in report.figures:
        bound_ms = bounds.ttfa_ms if kind == "speech" else bounds.answer_ms
        axes.axhline(bound_ms, color="0.6", lw=1, ls=":", label=f"bound of {kind}")
    axes.set(title="First audible sample of each stream (red: had a gap)", ylabel="ms")
    axes.set_ylim(bottom=0)
    _finish(axes)


def _gaps(axes: Axes, report: RunReport) -> None:
    """Each stream as a line from first to last packet, its silences in red."""
    heard = [(row, o.heard) for row, o in enumerate(report.streams) if o.heard is not None]
    for row, one in heard:
        axes.plot([one.first_packet_s, _played_s(one)], [row, row], color="0.75", lw=1)
        for gap in one.gaps:
            axes.plot([gap.at_s, gap.at_s + gap.duration_s], [row, row], color=GAPPY, lw=3)
    axes.set(
        title="Streams as they are heard without a prebuffer; silences in red",
        xlabel="s since the start of the run",
        ylabel="stream",
    )
    axes.grid(alpha=0.3)


def _colour(record: StreamRecord, bounds: Bounds) -> str:
    heard = record.listened
    if heard is not None and heard.listening[0].n_underruns:
        return GAPPY
    return GOOD if record.is_good(bounds.of(record.kind), 0) else LATE


def _end_s(record: StreamRecord) -> float:
    return record.asked_s if record.heard is None else record.heard.last_packet_s


def _played_s(heard: Heard) -> float:
    return heard.first_packet_s + heard.audio_s + heard.listening[0].underrun_s


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="x-small", ncols=2)
