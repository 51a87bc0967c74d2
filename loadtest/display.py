"""What a run shows: one live line while it goes on, and a table of its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from loadtest.bench.__main__ import machine_line
from loadtest.client_health import ClientHealth
from loadtest.measure.audible import AUDIBLE_DBFS, WINDOW_MS
from loadtest.measure.playout import PREBUFFERS_MS
from loadtest.measure.spread import Figures
from loadtest.measure.streams import ERRORS
from loadtest.report import RunReport
from loadtest.run import Progress, Show

console = Console(highlight=False)
RECENT = 200
"""Streams that the live line tells of."""
TITLES = {"speech": "Texts that were spoken", "answer": "Answers to spoken questions"}
PERCENTS = ("p50", "p90", "p95", "p99")
TIMES = {
    "ttfa_packet": "first packet",
    "ttfa_audible": "first audible sample",
    "connect": "connected and set up",
    "cancel_to_silence": "cancel to silence",
    "cancel_to_done": "cancel to last word",
}


@contextmanager
def live(title: str) -> Iterator[Show]:
    """A bar and a line that tell how a run goes; nothing where the output is no terminal."""
    bar = Bar(TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    task = bar.add_task(title, total=None)
    # Drawn by hand: a thread that draws would take time from the clockwork that is measured.
    with Live(console=console, transient=True, auto_refresh=False) as screen:

        def show(progress: Progress) -> None:
            elapsed_s = min(progress.elapsed_s, progress.total_s)
            bar.update(task, total=progress.total_s, completed=elapsed_s)
            if console.is_terminal:
                screen.update(
                    Group(bar, Text(state_of(progress), overflow="ellipsis")), refresh=True
                )

        yield show


def state_of(progress: Progress) -> str:
    """How a run goes, in one line."""
    recent = progress.records[-RECENT:]
    sounds_ms = [1000 * one.first_sound_in_s for one in recent if one.first_sound_in_s is not None]
    listened = [one.listened for one in recent if one.listened is not None]
    n_gaps = sum(one.listening[0].n_underruns > 0 for one in listened)
    n_refused = sum(one.outcome == "refused" for one in progress.records)
    n_errors = sum(one.outcome in ERRORS for one in progress.records)
    p50, p95 = np.percentile(sounds_ms, (50, 95)) if sounds_ms else (0.0, 0.0)
    return (
        f"{progress.n_open} here of {progress.n_calls} · first sound {p50:.0f}/{p95:.0f} ms · "
        f"{n_gaps} gaps · {n_refused} refused · {n_errors} errors · "
        f"lag {_recent_lag_ms(progress.health):.0f} ms"
    )


def _recent_lag_ms(health: ClientHealth) -> float:
    return 1000 * max(health.loop_lags_s[-RECENT:], default=0.0)


def show_report(report: RunReport) -> None:
    """Print a run."""
    settings = report.settings
    shares = ", ".join(f"{part} {share:.0%}" for part, share in settings.shares.items() if share)
    console.print(
        f"[bold]{settings.scenario}[/] at {settings.rate_per_s:g}/s for {settings.duration_s:g} s "
        f"(after {settings.warmup_s:g} s of warm-up), seed {settings.seed}: {shares}"
    )
    for kind, figures in report.figures.items():
        bound_ms = settings.ttfa_bound_ms if kind == "speech" else settings.answer_bound_ms
        console.print(f"[bold]{TITLES[kind]}[/]: {_outcomes(figures)}")
        console.print(
            _times_table(figures), _gaps_table(figures), _rest(figures, bound_ms), sep="\n"
        )
    for detail, n in report.details.items():
        console.print(f"  {n} x {detail}", markup=False)
    _show_client(report)
    console.print(machine_line(dict(report.machine)).strip())


def _outcomes(figures: Figures) -> str:
    outcomes = ("completed", "cut", "left", "slow", "refused", "failed", "lost", "unfinished")
    counts = ((figures[f"n_{one}"], one) for one in outcomes)
    return ", ".join(f"{number(n, '.0f')} {one}" for n, one in counts if n)


def _times_table(figures: Figures) -> Table:
    table = Table(box=None)
    table.add_column("ms")
    for heading in ("mean", *PERCENTS):
        table.add_column(heading, justify="right")
    for name, words in TIMES.items():
        if figures[f"{name}_p50_ms"] is not None:
            cells = (figures[f"{name}_{what}_ms"] for what in ("mean", *PERCENTS))
            table.add_row(words, *(number(cell, ".0f") for cell in cells))
    return table


def _gaps_table(figures: Figures) -> Table:
    table = Table(box=None)
    table.add_column("prebuffer")
    for heading in ("underruns", "ms in all", "longest ms", "% of streams"):
        table.add_column(heading, justify="right")
    table.add_column("good/s", justify="right")
    for ms in PREBUFFERS_MS:
        table.add_row(
            f"{ms} ms",
            number(figures[f"underruns_{ms}ms_n"], ".0f"),
            number(figures[f"underruns_{ms}ms_total_ms"], ".0f"),
            number(figures[f"max_gap_{ms}ms_ms"], ".0f"),
            number(figures[f"underruns_{ms}ms_streams_pct"], ".1f"),
            number(figures[f"goodput_{ms}ms_per_s"], ".2f"),
        )
    return table


def _rest(figures: Figures, bound_ms: float) -> str:
    return (
        f" good: first sound within {bound_ms:g} ms, prebuffer included, and no underrun\n"
        f" streaming viability: {number(figures['viable_chunks_pct'], '.1f')} % of chunks, "
        f"{number(figures['viable_streams_pct'], '.1f')} % of streams\n"
        f" real-time factor {number(figures['real_time_factor_p50_ratio'], '.2f')} (median); "
        f"{number(figures['audio_s_per_s'], '.2f')} s of audio per s"
    )


def _show_client(report: RunReport) -> None:
    client = report.client
    console.print(
        f"Audible: {WINDOW_MS} ms of {AUDIBLE_DBFS:g} dBFS. Client: loop lag "
        f"{number(client['loop_lag_p99_ms'], '.1f')} ms and schedule lag "
        f"{number(client['schedule_lag_p99_ms'], '.1f')} ms at p99, "
        f"{number(client['busy_pct'], '.0f')} % of a core"
    )
    for fault in report.faults:
        console.print(f"[red]NOT VALID: {fault}[/]")


def number(value: float | None, form: str) -> str:
    """A figure; a dash where there is none."""
    return "-" if value is None else format(value, form)


def show_rows(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of words; the first column is left-justified."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for idx, heading in enumerate(headings):
        table.add_column(heading, justify="right" if idx else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
