"""Measures what the gateway itself takes to stream audio: a table here, JSON in `bench-results/`.

    make bench-gateway                                            about two minutes
    make bench-gateway BENCH_ARGS="--streams 1 --seconds 5"       a quick look

Processor time of the server, of its own `/metrics` (10 ms fine), while every stream plays a tone
that cost nothing to make: coding, framing, sending, and what an open conversation takes by itself.
Nothing is judged: no figure fails the run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from loadtest.bench import machine
from loadtest.bench.__main__ import RESULTS, machine_line, write_results
from loadtest.server_process import ServerProcessError, running_command
from loadtest.server_state import read_state
from loadtest.target import Target
from realtime.client.spoken import ConnectError
from realtime.frames import HEADER_BYTES
from realtime.protocol import PACKET_MS, REALTIME_PATH, SUBPROTOCOL

SERVER: Final = ("-m", "loadtest.bench.tone_server")
N_STREAMS: Final = (1, 32)
SECONDS: Final = 30
PCM_BYTES_PER_S: Final = 48_000
SLACK_S: Final = 30.0
"""Longest time that a stream may take beyond its own length."""


class MeasureError(Exception):
    """The server did not stream what was asked for; the message says what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A wire form, and what is asked of it."""

    name: str
    audio: str
    subprotocols: tuple[Subprotocol, ...] | None


LANES: Final = (
    Lane(name="openai", audio="PCM16 as base64", subprotocols=None),
    Lane(name="parley", audio="Opus", subprotocols=(Subprotocol(SUBPROTOCOL),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What `n_streams` at once took.

    Args:
        lane: by name.
        audio: form of it.
        n_streams: that played at once.
        audio_s: received by all of them.
        wall_s: from the first request to the last end.
        cpu_s: of the server meanwhile.
        cpu_ms_per_audio_s: of one second of one stream.
        core_share_per_stream: of one processor core, while it plays.
    """

    lane: str
    audio: str
    n_streams: int
    audio_s: float
    wall_s: float
    cpu_s: float
    cpu_ms_per_audio_s: float
    core_share_per_stream: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make bench-gateway", description=__doc__)
    parser.add_argument("--streams", type=int, action="append", help="at once; may be repeated")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of audio for each stream")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    asked = parser.parse_args(arguments)
    console = Console(highlight=False)
    facts = machine.describe()
    costs: list[Cost] = []
    fault = ""
    try:
        with running_command([sys.executable, *SERVER]) as url:
            asyncio.run(
                _measure_all(url, asked.streams or N_STREAMS, asked.seconds, costs, console)
            )
    except (ServerProcessError, ConnectError, MeasureError, WebSocketException, OSError) as error:
        fault = str(error) or type(error).__name__
        console.print(f"[red]{fault}[/]", soft_wrap=True)
    if costs:
        console.print(_table(costs))
    console.print(machine_line(facts), soft_wrap=True)
    rows = [asdict(cost) for cost in costs]
    path = write_results(asked.out, {"on": facts, "fault": fault, "gateway_cost": rows})
    console.print(f"Written to {path}")
    return 1 if fault else 0


async def _measure_all(
    url: str, n_streams: Sequence[int], seconds: int, costs: list[Cost], console: Console
) -> None:
    columns = (TextColumn("Streams"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Streams", total=len(LANES) * len(n_streams))
        for lane in LANES:
            for n in n_streams:
                costs.append(await measure(url, lane, n, seconds))
                progress.advance(task)


async def measure(url: str, lane: Lane, n_streams: int, seconds: int) -> Cost:
    """Play `seconds` on `n_streams` sockets at once.

    Raises:
        ConnectError: the server tells nothing of itself.
        MeasureError: an answer failed, or did not come.
    """
    target = Target(url=url)
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(_open(url, lane)) for _ in range(n_streams)]
        for socket in sockets:
            await socket.recv()  # session.created
        before = await asyncio.to_thread(read_state, target)
        begun_s = time.monotonic()
        heard_s = await asyncio.gather(*(_play(socket, seconds) for socket in sockets))
        wall_s = time.monotonic() - begun_s
        after = await asyncio.to_thread(read_state, target)
    cpu_s, audio_s = after["cpu_s"] - before["cpu_s"], sum(heard_s)
    return Cost(
        lane=lane.name,
        audio=lane.audio,
        n_streams=n_streams,
        audio_s=audio_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        cpu_ms_per_audio_s=1000 * cpu_s / audio_s,
        core_share_per_stream=cpu_s / wall_s / n_streams,
    )


def _open(url: str, lane: Lane) -> connect:
    address = f"ws://{urlsplit(url).netloc}{REALTIME_PATH}"
    return connect(address, subprotocols=lane.subprotocols, compression=None, proxy=None)


async def _play(socket: ClientConnection, seconds: int) -> float:
    """Ask for so many seconds. Returns those that came; they are not decoded."""
    content = [{"type": "input_text", "text": str(seconds)}]
    asked = {"type": "message", "role": "user", "content": content}
    response = {"conversation": "none", "input": [asked]}
    await socket.send(json.dumps({"type": "response.create", "response": response}))
    heard_s = 0.0
    try:
        async with asyncio.timeout(seconds + SLACK_S):
            while True:
                message = await socket.recv()
                if isinstance(message, bytes):
                    assert len(message) > HEADER_BYTES, "no frame is empty"
                    heard_s += PACKET_MS / 1000
                    continue
                event = json.loads(message)
                if event["type"] == "response.output_audio.delta":
                    heard_s += len(base64.b64decode(event["delta"])) / PCM_BYTES_PER_S
                elif event["type"] == "response.done":
                    return _checked(event["response"], heard_s)
                elif event["type"] == "error":
                    raise MeasureError(event["error"]["message"])
    except TimeoutError:
        raise MeasureError(f"{seconds} s of audio were not there in time") from None


def _checked(response: dict[str, Any], heard_s: float) -> float:
    if response["status"] != "completed" or not heard_s:
        raise MeasureError(f"a response was {response['status']} after {heard_s:.1f} s of audio")
    return heard_s


def _table(costs: Sequence[Cost]) -> Table:
    table = Table(
        title="What the gateway takes for streamed audio",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for heading in ("lane", "audio"):
        table.add_column(heading)
    for heading in ("streams", "CPU s", "CPU ms/audio s", "% of a core each"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            cost.lane,
            cost.audio,
            str(cost.n_streams),
            f"{cost.cpu_s:.2f}",
            f"{cost.cpu_ms_per_audio_s:.2f}",
            f"{100 * cost.core_share_per_stream:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
