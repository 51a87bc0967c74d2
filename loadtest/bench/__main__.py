"""Measures this machine with real server processes: tables here, JSON under `bench-results/`.

    make bench                                        everything, about ten minutes
    make bench BENCH_ARGS="--only engine_step"        one part

Nothing is judged: no figure fails the run, a part that cannot be measured does.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.bench import machine
from loadtest.bench.parts import PARTS, Part, Row
from loadtest.server_process import ServerProcessError
from realtime.client.speech import ClientError

RESULTS = Path("bench-results")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", action="append", choices=names, help="may be given several times")
    parser.add_argument("--model", default="pico", help="that speaks (default: pico)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    asked = parser.parse_args(arguments)
    console = Console(highlight=False)
    facts = machine.describe()
    results: dict[str, list[Row]] = {}
    faults: dict[str, str] = {}
    for part in PARTS:
        if asked.only and part.name not in asked.only:
            continue
        rows: list[Row] = []
        results[part.name] = rows
        fault = _run(part, asked.model, rows, console)
        if rows:
            console.print(_table(part, rows))
        if fault:
            faults[part.name] = fault
            console.print(f"[red]{part.title}: {fault}[/]\n")
    console.print(machine_line(facts))
    path = write_results(
        asked.out, {"on": facts, "model": asked.model, "faults": faults, **results}
    )
    console.print(f"Written to {path}")
    return 1 if faults else 0


def _run(part: Part, model: str, rows: list[Row], console: Console) -> str:
    """Measure one part into `rows`; gives why it could not be finished, empty if it was."""
    columns = (TextColumn(part.title), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(part.name, total=part.n_steps)

        async def measure() -> None:
            async with asyncio.timeout(part.limit_s):
                async for row in part.measure(model, lambda: progress.advance(task)):
                    rows.append(row)

        try:
            asyncio.run(measure())
        except TimeoutError:
            return f"not done in {part.limit_s:.0f} s"
        except (ClientError, ServerProcessError, subprocess.SubprocessError) as error:
            return str(error)
    return ""


def _table(part: Part, rows: list[Row]) -> Table:
    table = Table(title=part.title, title_justify="left", title_style="bold", box=None)
    for heading, _ in part.columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        cells = ((row[key], form) for key, (_, form) in part.columns.items())
        table.add_row(*("-" if cell is None else format(cell, form) for cell, form in cells))
    return table


def machine_line(facts: machine.Facts) -> str:
    """The machine in one line, to be shown under its figures."""
    return (
        f"\nOn {facts['processor'] or facts['machine']}, {facts['n_cores']} cores, "
        f"{facts['system']}, Python {facts['python']}, torch {facts['torch']}, "
        f"load average {facts['load_average_at_start']}"
    )


def write_results(folder: Path, value: dict[str, object]) -> Path:
    """Write `value` as JSON into `folder`, named by the time. Gives the file."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    path = folder / f"{stamp}.json"
    path.write_text(json.dumps(value, indent=2) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
