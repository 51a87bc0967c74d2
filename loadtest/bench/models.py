"""Published families on the engine against `transformers` generate: a table, and JSON.

    make bench-models                                           all, about twelve minutes
    make bench-models BENCH_ARGS="--only csm --only zonos"      some of them
    make bench-models BENCH_ARGS="--only token2wav"             flow matching and its vocoder

Each family has its published widths, fewer layers and random weights (`loadtest.bench.published`),
float32, one torch thread. `transformers` makes one stream after another, as a server without an
engine would; a ratio at 8 streams is its time for one over the engine's time for one of eight.
To add a family: a maker in `published.py`, and its reference in `references.py`, if it has one.
The detokenizer that the flow-matching families share is measured by itself
(`loadtest.bench.token2wav`).
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.bench import machine
from loadtest.bench.__main__ import RESULTS, machine_line, write_results
from loadtest.bench.decoding import BATCHES, TOKEN2WAV, n_ticks, reference_environment
from loadtest.bench.published import LAYERS
from loadtest.bench.token2wav import N_TICKS

LIMIT_S: Final = 300.0
"""How long one family may take."""
STEPS: Final = {
    "family": ("family", "s"),
    "layers": ("layers", "s"),
    **{f"step_{n}_ms": (f"{n}: ms", ".0f") for n in BATCHES},
    "reference_ms": ("generate", ".0f"),
    **{f"ratio_{n}": (f"at {n}", ".2f") for n in BATCHES},
}
DETOKENIZERS: Final = {
    "family": ("family", "s"),
    "chunk_frames": ("frames a call", "d"),
    "detokenizer_ms": ("ms a frame", ".1f"),
    "frame_ms": ("which lasts ms", ".1f"),
}
SOUND: Final = {
    "part": ("part", "s"),
    "streamed_ms": ("reference", ".0f"),
    "alone_ms": ("alone", ".0f"),
    **{f"at_{n}_ms": (f"{n}: ms", ".0f") for n in (1, 4, 8)},
    **{f"streamed_over_{n}": (f"at {n}", ".2f") for n in (1, 4, 8)},
    "alone_over_1": ("alone", ".2f"),
}

Row = dict[str, Any]


class BenchError(Exception):
    """A family could not be measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the families that are asked for. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make bench-models", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[*LAYERS, TOKEN2WAV], help="may be given again"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    asked = parser.parse_args(arguments)
    console = Console(highlight=False)
    facts, rows, faults = machine.describe(), [], {}
    names = [name for name in LAYERS if not asked.only or name in asked.only]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    has_sound, sound = not asked.only or TOKEN2WAV in asked.only, []
    n_all = sum(2 + n_ticks(name) for name in names) + N_TICKS * has_sound
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=n_all)
        for name in names:
            progress.update(task, description=name)
            try:
                rows.append(measure(name, lambda: progress.advance(task)))
            except BenchError as error:
                faults[name] = str(error)
                console.print(f"[red]{name}: {error}[/]")
        if has_sound:
            progress.update(task, description=TOKEN2WAV)
            try:
                sound = measure_sound(lambda: progress.advance(task))
            except BenchError as error:
                faults[TOKEN2WAV] = str(error)
                console.print(f"[red]{TOKEN2WAV}: {error}[/]")
    if rows:
        title = "Decode steps of 1, 8 and 16 streams, and generate's over ours for each"
        console.print(_table(title, STEPS, rows))
        console.print(_table("Detokenizers, one stream", DETOKENIZERS, rows))
    if sound:
        title = (
            "Speech tokens to PCM: ms for a second of 1, 4, 8 streams, and the reference over it"
        )
        console.print(_table(title, SOUND, sound))
    console.print(machine_line(facts))
    results = {"on": facts, "faults": faults, "models": rows, TOKEN2WAV: sound}
    path = write_results(asked.out, results)
    console.print(f"Written to {path}")
    return 1 if faults else 0


def measure(family: str, tick: Callable[[], None]) -> Row:
    """One family's figures, in processes of their own. Raises: `BenchError`."""
    with tempfile.TemporaryDirectory() as made:
        environment = reference_environment(family)
        _run(["-m", "loadtest.bench.published", family, made], environment, lambda line: None)
        tick()
        found: list[Row] = []

        def take(line: str) -> None:
            value = json.loads(line)
            if value is None:
                tick()
            else:
                found.append(value)

        own = {**environment, "PYTHONPATH": ""}
        _run(["-m", "loadtest.bench.decoding", family, made], own, take)
        tick()
    here, published = LAYERS[family]
    return {"family": family, "layers": f"{here} of {published}", **found[0]}


def measure_sound(tick: Callable[[], None]) -> list[Row]:
    """The rows of `loadtest.bench.token2wav`, in a process of its own. Raises: `BenchError`."""
    found: list[Row] = []

    def take(line: str) -> None:
        # Libraries print what they think of one another.
        if line.strip() == "null":
            tick()
        elif line.startswith("["):
            found.extend(json.loads(line))

    _run(["-m", "loadtest.bench.token2wav"], reference_environment(TOKEN2WAV), take)
    return found


def _run(arguments: list[str], environment: dict[str, str], take: Callable[[str], None]) -> None:
    """A Python process, `take` is given each of its lines. Raises: `BenchError`."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        assert process.stdout is not None, "made with a pipe"
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        clock = threading.Timer(LIMIT_S, stop)
        clock.start()
        try:
            for line in process.stdout:
                take(line)
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            clock.cancel()
            process.stdout.close()
        if is_late.is_set():
            raise BenchError(f"not done in {LIMIT_S:.0f} s")
        if code == -signal.SIGKILL:
            raise BenchError("killed by the system: there was not enough memory")
        if code:
            log.seek(0)
            last = next(iter(log.read().strip().splitlines()[-1:]), f"exit code {code}")
            raise BenchError(last)


def _table(title: str, columns: dict[str, tuple[str, str]], rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for heading, _ in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = ((row[key], form) for key, (_, form) in columns.items())
        table.add_row(*("-" if cell is None else format(cell, form) for cell, form in cells))
    return table


if __name__ == "__main__":
    sys.exit(main())
