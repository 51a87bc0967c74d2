"""`python -m loadtest compare` and `plot`: runs that are in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from loadtest.commands.options import EXIT_NOT_VALID, draw
from loadtest.compare import Compared, compared, obstacles
from loadtest.display import console, number, show_rows
from loadtest.report import read_report
from loadtest.sweep import read_runs

HEADINGS: Final = ("figure", "first", "second", "ratio", "verdict")


def compare(
    first: Annotated[Path, typer.Argument(help="JSON of a run.")],
    second: Annotated[Path, typer.Argument(help="JSON of another.")],
) -> None:
    """Put two runs beside each other; says so if they do not measure the same thing.

    Exit status 3: they do not.
    """
    one, other = read_report(first), read_report(second)
    rows = [_row(found) for found in compared(one, other)]
    show_rows(f"{first.name} (first) and {second.name} (second)", HEADINGS, rows)
    differences = obstacles(one, other)
    for difference in differences:
        console.print(f"[yellow]NOT COMPARABLE: {difference}[/]")
    if differences:
        raise typer.Exit(EXIT_NOT_VALID)


def plot(
    files: Annotated[list[Path], typer.Argument(help="JSON of runs or sweeps.")],
    out: Annotated[Path, typer.Option(help="PNG to write.")] = Path("bench-results/loadtest.png"),
) -> None:
    """Draw runs and sweeps: first sound and goodput against rate, and the course of the last."""
    draw(out, [report for path in files for report in read_runs(path)])


def _row(found: Compared) -> tuple[str, ...]:
    return (
        f"{found.kind} {found.name}",
        number(found.first, ".4g"),
        number(found.second, ".4g"),
        number(found.ratio, ".2f"),
        found.verdict,
    )
