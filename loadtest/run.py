"""One run: callers arrive by their schedule, whatever the server does (an open loop)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.bench import machine
from loadtest.client_health import ClientHealth, faults_of
from loadtest.measure.figures import Bounds, figures_of
from loadtest.measure.streams import ERRORS, StreamRecord
from loadtest.report import RunReport, RunSettings
from loadtest.server_state import ServerLog, read_models
from loadtest.target import Target
from loadtest.traffic.conversing import TalkCaller
from loadtest.traffic.ears import Ears
from loadtest.traffic.recordings import load_recordings
from loadtest.traffic.scenarios import TALK_PARTS, scenario_of
from loadtest.traffic.schedule import Call, poisson_calls
from loadtest.traffic.setting import Setting
from loadtest.traffic.speaking import SpeechCaller

SHOW_S = 0.5
"""Between updates of the live display."""
SAMPLE_S = 1.0
"""Between samples of the server's state."""
MAX_DETAIL = 200
Caller = SpeechCaller | TalkCaller


@dataclass(slots=True)
class Progress:
    """A run while it goes on, for a live display.

    Args:
        elapsed_s: since its start.
        total_s: until the last arrival.
        n_calls: callers that have come.
        n_open: callers that are here.
        records: streams that are over, warm-up included.
        health: of the client.
    """

    elapsed_s: float = 0.0
    total_s: float = 0.0
    n_calls: int = 0
    n_open: int = 0
    records: list[StreamRecord] = field(default_factory=list)
    health: ClientHealth = field(default_factory=ClientHealth)


Show = Callable[[Progress], None]


async def run_load(target: Target, settings: RunSettings, show: Show) -> RunReport:
    """Load a server.

    Raises:
        ConnectError: nobody answers at all.
        ScenarioError: the settings name no scenario.
        AudioFileError: a recording cannot be read.
    """
    scenario = scenario_of(settings.scenario, settings.shares, settings.stall_s)
    models = await asyncio.to_thread(read_models, target)
    recordings = None
    if scenario.has_talk:
        recordings = await asyncio.to_thread(load_recordings, settings.microphone)
    progress = Progress(total_s=settings.warmup_s + settings.duration_s)
    calls = poisson_calls(scenario, settings.rate_per_s, progress.total_s, settings.seed)
    clock, ears, server = time.monotonic, Ears(), ServerLog()
    setting = Setting(
        target=target,
        scenario=scenario,
        recordings=recordings,
        ears=ears,
        health=progress.health,
        zero_s=clock(),
        clock=clock,
        model=settings.model or None,
        voice=settings.voice or None,
    )
    try:
        async with (
            progress.health.watch(),
            server.keep(target, SAMPLE_S, setting.now_s),
        ):
            measured = await _Floor(setting, progress, settings, show).open(calls)
    finally:
        ears.close()
    bounds = Bounds(ttfa_ms=settings.ttfa_bound_ms, answer_ms=settings.answer_bound_ms)
    client = progress.health.figures()
    return RunReport(
        settings=settings,
        machine=machine.describe(),
        url=target.url,
        models=models,
        faults=faults_of(client),
        figures=figures_of(measured, settings.duration_s, bounds),
        client=client,
        details=_details(measured),
        streams=measured,
        server=server.samples,
    )


class _Floor:
    """Lets callers in when they are due, and counts them."""

    def __init__(
        self, setting: Setting, progress: Progress, settings: RunSettings, show: Show
    ) -> None:
        self._setting = setting
        self._progress = progress
        self._settings = settings
        self._show = show
        self._tasks: set[asyncio.Task[None]] = set()
        self._measured: list[Caller] = []
        self._shown_s = 0.0
        self._bug: BaseException | None = None

    async def open(self, calls: Sequence[Call]) -> list[StreamRecord]:
        """Let all callers in, wait for them to go, and give the streams of the measured time."""
        try:
            for call in calls:
                await self._wait_until(call.at_s)
                if call.at_s >= self._settings.warmup_s and not self._measured:
                    self._progress.health.begin()
                self._progress.health.schedule_lags_s.append(self._setting.now_s() - call.at_s)
                self._let_in(call)
            await self._wait_until(self._progress.total_s)
            end_s = self._progress.total_s + self._settings.drain_s
            while self._tasks and self._setting.now_s() < end_s:
                await self._wait_until(min(self._setting.now_s() + SHOW_S, end_s))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bug is not None:
            raise self._bug
        return [record for caller in self._measured for record in caller.records]

    def _let_in(self, call: Call) -> None:
        is_talk = call.part in TALK_PARTS
        caller = TalkCaller(call, self._setting) if is_talk else SpeechCaller(call, self._setting)
        if call.at_s >= self._settings.warmup_s:
            self._measured.append(caller)
        task = asyncio.create_task(caller.run(), name=f"caller {call.number}")
        self._tasks.add(task)
        self._progress.n_calls += 1
        task.add_done_callback(lambda done: self._gone(done, caller))

    def _gone(self, task: asyncio.Task[None], caller: Caller) -> None:
        self._tasks.discard(task)
        self._progress.records.extend(caller.records)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug of the load generator, not of the server: it must not look like a figure.
            self._bug = error

    async def _wait_until(self, due_s: float) -> None:
        """Sleep, and show how it goes meanwhile."""
        while True:
            now_s = self._setting.now_s()
            if now_s >= self._shown_s + SHOW_S:
                self._shown_s = now_s
                self._progress.elapsed_s = now_s
                self._progress.n_open = len(self._tasks)
                self._show(self._progress)
            if now_s >= due_s:
                return
            await asyncio.sleep(min(due_s - now_s, SHOW_S))


def _details(records: Sequence[StreamRecord]) -> dict[str, int]:
    """Why streams were refused or failed, or what became of slow readers; by number."""
    wanted = ERRORS | {"refused", "slow"}
    words = (f"{o.outcome}: {o.detail}" for o in records if o.outcome in wanted and o.detail)
    lines = (" ".join(one.split())[:MAX_DETAIL] for one in words)
    return dict(Counter(lines).most_common(20))
