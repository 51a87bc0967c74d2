"""Measures a conversation through a real server process: tables here, JSON under `bench-results/`.

    make bench-converse                                        about four minutes
    make bench-converse BENCH_ARGS="--turns 5 --takes 5"       a quick look

Questions are asked at the pace of speech, one at a time. Nothing is judged: no figure fails the
run, a part that cannot be measured does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.bench import machine
from loadtest.bench.__main__ import RESULTS, machine_line, write_results
from loadtest.bench.interrupting import BargeIn, barge_in
from loadtest.bench.talking import (
    QUESTIONS,
    STAGES,
    Conversation,
    Take,
    Tick,
    ask_all,
    converse,
    say_questions,
)
from loadtest.server_process import ServerProcessError, running_server
from realtime.client.speech import ClientError

Results = dict[str, object]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured.

    Args:
        n_questions: each in a conversation of its own.
        n_takes: answers that are interrupted.
        n_turns: of the one long conversation.
    """

    n_questions: int
    n_takes: int
    n_turns: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show. Returns the exit code."""
    asked = _parser().parse_args(arguments)
    amount = Amount(n_questions=asked.questions, n_takes=asked.takes, n_turns=asked.turns)
    console = Console(highlight=False)
    facts = machine.describe()
    results: Results = {}
    fault = ""
    try:
        # The process is asked for its size, so only a server of our own will do.
        with running_server("--model", asked.model, "--talk") as url:
            asyncio.run(_measure(url, amount, results, console))
    except (ServerProcessError, ClientError, TimeoutError) as error:
        fault = str(error) or type(error).__name__
        console.print(f"[red]{fault}[/]", soft_wrap=True)
    console.print(machine_line(facts), soft_wrap=True)
    path = write_results(asked.out, {"on": facts, "model": asked.model, "fault": fault, **results})
    console.print(f"Written to {path}")
    return 1 if fault else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-converse", description=__doc__)
    parser.add_argument("--model", default="pico", help="that speaks (default: pico)")
    most = len(QUESTIONS)
    parser.add_argument(
        "--questions", type=int, choices=range(1, most + 1), default=most, help="asked one by one"
    )
    parser.add_argument("--takes", type=int, default=24, help="answers that are interrupted")
    parser.add_argument("--turns", type=int, default=20, help="of the one long conversation")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    return parser


async def _measure(url: str, amount: Amount, results: Results, console: Console) -> None:
    (*questions, interruption), voice = await say_questions(url)
    questions = questions[: amount.n_questions]
    results["voice_of_questions"] = voice
    console.print(f"Questions are spoken by {voice}.\n")

    takes = await _with_bar(
        console, "Questions", len(questions) + 1, lambda tick: ask_all(url, questions, tick)
    )
    results["takes"] = [take.as_row() for take in takes]
    console.print(_takes_table(takes))

    cuts = await _with_bar(
        console,
        "Barge-in",
        amount.n_takes,
        lambda tick: barge_in(url, interruption, amount.n_takes, tick),
    )
    results["barge_in"] = [cut.as_row() for cut in cuts]
    console.print(_cuts_table(cuts))

    talk = await _with_bar(
        console,
        "One conversation",
        amount.n_turns,
        lambda tick: converse(url, questions, amount.n_turns, tick),
    )
    results["conversation"] = talk.as_row()
    console.print(_conversation_table(talk))


async def _with_bar(
    console: Console, title: str, n_steps: int, work: Callable[[Tick], Awaitable[Result]]
) -> Result:
    columns = (TextColumn(title), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=n_steps)
        return await work(lambda: progress.advance(task))


def _takes_table(takes: Sequence[Take]) -> Table:
    table = _table("End of speech to first audible sound, ms")
    table.add_column("question", no_wrap=True, overflow="ellipsis", max_width=16)
    for heading in (*STAGES, "total"):
        width = max(map(len, heading.split("_")))
        table.add_column(heading.replace("_", " "), justify="right", min_width=width)
    rows = [[*(take.stages_ms.get(name) for name in STAGES), take.ttfa_ms] for take in takes]
    for take, row in zip(takes, rows, strict=True):
        table.add_row(take.question, *map(_figure, row))
    columns = zip(*rows, strict=True)
    medians = [_median([value for value in column if value is not None]) for column in columns]
    table.add_row("[bold]median[/]", *map(_figure, medians))
    table.caption = "lead in: the silence that the speech begins with"
    table.caption_justify = "left"
    return table


def _cuts_table(cuts: Sequence[BargeIn]) -> Table:
    table = _table(f"Barge-in, ms, of {len(cuts)} answers")
    table.add_column("")
    for heading in ("p50", "p95", "worst"):
        table.add_column(heading, justify="right", min_width=5)
    rows = {
        "first loud sample to the order of silence": [cut.heard_ms for cut in cuts],
        "sample that decides to the order of silence": [cut.decided_ms for cut in cuts],
        "order of silence to last old frame (0: none)": [cut.last_frame_ms for cut in cuts],
    }
    for name, values in rows.items():
        table.add_row(name, *map(_figure, (_median(values), percentile_95(values), max(values))))
    return table


def _conversation_table(talk: Conversation) -> Table:
    table = _table(f"One conversation of {talk.n_turns} turns")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right")
    sizes = (talk.rss_before_mb, talk.rss_after_mb)
    table.add_row("resident size of the server, MB", *map(_figure, sizes))
    half = len(talk.ttfa_ms) // 2
    first, second = _median(talk.ttfa_ms[:half]), _median(talk.ttfa_ms[half:])
    table.add_row("first audible sound, ms (median of each half)", _figure(first), _figure(second))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def percentile_95(values: Sequence[float]) -> float:
    """The value that 95 % do not exceed, interpolated; of one value, itself."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
