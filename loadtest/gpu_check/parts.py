"""Runs the parts of the check, each in a process with a time of its own.

A part tells what it finds in lines of JSON (`telling`), and everything that it has told counts,
however it ends. A part that serves tells its address; then this process makes the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

from loadtest.gpu_check.telling import MARK, URL

STOP_S: Final = 5.0
"""How long a part may take to end when it is told to."""
N_TAIL: Final = 12
"""Lines of what a failed part wrote that are kept."""
Facts = dict[str, Any]
Load = Callable[[str, Callable[[Facts], None]], Awaitable[None]]
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part.

    Args:
        name: in the results.
        title: for people.
        module: that is run.
        arguments: of it.
        budget_s: after which it is ended.
    """

    name: str
    title: str
    module: str
    arguments: Sequence[str] = ()
    budget_s: float


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a part went: `fault` is empty if it went well, `facts` are what it told."""

    seconds: float = 0.0
    fault: str = ""
    facts: Facts = field(default_factory=dict)

    def plain(self) -> Mapping[str, Any]:
        """For the file."""
        return {"seconds": round(self.seconds, 1), "fault": self.fault, **self.facts}


async def run_part(part: Part, budget_s: float, load: Load, show: Show) -> Outcome:
    """Run one part; never raises for what it does.

    Args:
        part: which.
        budget_s: of it, perhaps less than its own.
        load: what to do with the address of a part that serves; it tells what it finds.
        show: told of each fact.
    """
    outcome, start_s = Outcome(), time.monotonic()

    def take(facts: Facts) -> None:
        outcome.facts |= facts
        for name, value in facts.items():
            show(f"{name}: {_shortly(value)}")

    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", part.module, *part.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # A group of its own: compilers that it has started are ended with it.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(budget_s):
                has_served = await _follow(process, load, take)
                await process.wait()
            if process.returncode and not has_served:
                outcome.fault = f"ended with {process.returncode}: {_tail(log)}"
        except TimeoutError:
            outcome.fault = f"not done in {budget_s:.0f} s: {_tail(log)}"
        # The load is a part's too: whatever it meets, the other parts are run.
        except Exception as error:  # noqa: BLE001
            outcome.fault = f"{type(error).__name__}: {error}"
        finally:
            await _end(process)
    outcome.seconds = time.monotonic() - start_s
    return outcome


async def _follow(
    process: asyncio.subprocess.Process, load: Load, take: Callable[[Facts], None]
) -> bool:
    """Read what a part tells until it ends (False), or until the load on it is over."""
    assert process.stdout is not None, "opened with a pipe"
    async for line in process.stdout:
        if not line.startswith(MARK):
            continue
        facts: Facts = json.loads(line.removeprefix(MARK))
        url = facts.pop(URL, None)
        take(facts)
        if url is not None:
            await load(url, take)
            process.terminate()
            return True
    return False


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-N_TAIL:])


def _shortly(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
