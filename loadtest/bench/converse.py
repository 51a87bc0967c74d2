"""Measures a conversation through a real server process: tables here, JSON under `bench-results/`.

    make bench-converse                                   about three minutes
    make bench-converse BENCH_ARGS="--turns 5"            a shorter conversation

Questions are asked at the pace of speech, one at a time. Nothing is judged: no figure fails the
run, a part that cannot be measured does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.bench import machine
from loadtest.bench.__main__ import RESULTS, machine_line, write_results
from loadtest.bench.talking import (
    STAGES,
    BargeIn,
    Conversation,
    Take,
    ask_all,
    barge_in,
    converse,
    say_questions,
)
from loadtest.server_process import ServerProcessError, running_server
from realtime.client.speech import ClientError

Results = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make bench-converse", description=__doc__)
    parser.add_argument("--model", default="pico", help="that speaks (default: pico)")
    parser.add_argument("--turns", type=int, default=20, help="of the one long conversation")
    parser.add_argument("--interruptions", type=int, default=6, help="answers that are interrupted")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    asked = parser.parse_args(arguments)
    console = Console(highlight=False)
    facts = machine.describe()
    results: Results = {}
    fault = ""
    try:
        # The process is asked for its size, so only a server of our own will do.
        with running_server("--model", asked.model, "--talk") as url:
            asyncio.run(_measure(url, asked.turns, asked.interruptions, results, console))
    except (ServerProcessError, ClientError, TimeoutError) as error:
        fault = str(error) or type(error).__name__
        console.print(f"[red]{fault}[/]", soft_wrap=True)
    console.print(machine_line(facts), soft_wrap=True)
    path = write_results(asked.out, {"on": facts, "model": asked.model, "fault": fault, **results})
    console.print(f"Written to {path}")
    return 1 if fault else 0


async def _measure(
    url: str, n_turns: int, n_interruptions: int, results: Results, console: Console
) -> None:
    questions, voice = await say_questions(url)
    results["voice_of_questions"] = voice
    console.print(f"Questions are spoken by {voice}.\n")
    takes = await ask_all(url, questions)
    results["takes"] = [take.as_row() for take in takes]
    console.print(_takes_table(takes))
    cuts = [await barge_in(url, questions) for _ in range(n_interruptions)]
    results["barge_in"] = [cut.as_row() for cut in cuts]
    console.print(_cuts_table(cuts))
    talk = await converse(url, questions, n_turns)
    results["conversation"] = talk.as_row()
    console.print(_conversation_table(talk))


def _takes_table(takes: Sequence[Take]) -> Table:
    table = Table(title="End of speech to first audible sound, ms", title_justify="left")
    table.add_column("question", no_wrap=True, overflow="ellipsis", max_width=11)
    for heading in (*STAGES, "rest", "total"):
        width = max(5, *map(len, heading.split("_")))
        table.add_column(heading.replace("_", " "), justify="right", min_width=width)
    rows = [
        [*(take.stages_ms.get(name) for name in STAGES), take.rest_ms, take.ttfa_ms]
        for take in takes
    ]
    for take, row in zip(takes, rows, strict=True):
        table.add_row(take.question, *map(_figure, row))
    columns = zip(*rows, strict=True)
    medians = [_median([value for value in column if value is not None]) for column in columns]
    table.add_row("[bold]median[/]", *map(_figure, medians))
    table.caption = "rest: Opus, socket, and the silence that the speech begins with"
    return table


def _cuts_table(cuts: Sequence[BargeIn]) -> Table:
    table = Table(title="Barge-in, ms", title_justify="left")
    table.add_column("")
    for heading in ("median", "worst"):
        table.add_column(heading, justify="right")
    rows = {
        "first loud sample sent to news of speech": [cut.detected_ms for cut in cuts],
        "news of speech to order of silence": [cut.silenced_ms for cut in cuts],
        "news of speech to last old frame (0: none after)": [cut.last_frame_ms for cut in cuts],
    }
    for name, values in rows.items():
        table.add_row(name, _figure(_median(values)), _figure(max(values, default=None)))
    return table


def _conversation_table(talk: Conversation) -> Table:
    table = Table(title=f"One conversation of {talk.n_turns} turns", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right")
    sizes = (talk.rss_before_mb, talk.rss_after_mb)
    table.add_row("resident size of the server, MB", *map(_figure, sizes))
    half = len(talk.ttfa_ms) // 2
    first, second = _median(talk.ttfa_ms[:half]), _median(talk.ttfa_ms[half:])
    table.add_row("first audible sound, ms (median of each half)", _figure(first), _figure(second))
    return table


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
