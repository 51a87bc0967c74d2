"""`python -m loadtest profile`: a device profile for the simulator, measured here."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.bench import machine
from loadtest.display import console


def profile(
    out: Annotated[Path, typer.Argument(help="JSON to write, e.g. my-machine.json.")],
    model: Annotated[str, typer.Option(help="By name, or a folder of weights.")] = "pico",
    max_streams: Annotated[int, typer.Option(min=1, help="Streams that speak at once.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="torch threads.")] = 1,
) -> None:
    """Measure a model on this machine, and write a profile for `simulate`."""
    # Before torch is imported: its thread pools read these once.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    from loadtest.profiler import UnmeasurableError, measure, n_ticks

    columns = (TextColumn("Measuring {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(model, total=n_ticks(max_streams))
        try:
            found = measure(model, max_streams, lambda: progress.advance(task))
        except UnmeasurableError as error:
            raise typer.BadParameter(str(error), param_hint="--model") from error
    facts = machine.describe()
    about = f"{found.about} on {facts['processor']}, {facts['n_cores']} cores, {threads} thread(s)"
    body = {**dataclasses.asdict(found), "about": about}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(body, indent=1) + "\n")
    costs = {"decode": found.decode_ms, "prefill": found.prefill_ms, "chunk": found.chunk_ms}
    for name, cost in costs.items():
        console.print(f"  {name:8} {cost.fixed:.3f} + {cost.each:.4f} n ms")
    console.print(f"  not hidden {found.not_hidden:.2f}, noise {found.noise:.2f}")
    console.print(f"Written to {out}")
