"""The engine thread: steps its loops in turn, sleeps when there is nothing to do, fails loudly.

`EngineThread` owns the one thread that touches the device. `ThreadHandle` is the door to one of its
loops; its methods may be called from any thread.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.errors import EngineStoppedError
from engine.histogram import Histogram
from engine.loop import EngineLoop
from engine.memory import MemoryPlan
from engine.sharing import Turns
from engine.types import (
    AbortStream,
    Command,
    EngineStats,
    ExtendText,
    OpenStream,
    ReportPlayout,
    SetPaused,
    StreamId,
)
from engine.watchdog import Watchdog
from models.base import PromptPlan
from models.spec import ModelSpec, PlanRequest

HEARTBEAT_S = 1.0
"""Longest sleep of an idle engine: so often it shows that it is alive."""

logger = logging.getLogger(__name__)
_stream_ids = itertools.count(1)


class EngineThread:
    """Runs loops until `stop`, or until one of them crashes.

    Args:
        loops: one for each model; warmed up when the thread starts.
        clock: monotonic seconds, of the watchdog.
    """

    def __init__(
        self, loops: Sequence[EngineLoop], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loops = tuple(loops)
        self._watchdog = Watchdog(clock)
        self._turns = Turns(len(self._loops))
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._wake = threading.Event()
        self._is_ready = threading.Event()
        self._is_stopping = False
        # Guards the moment after which no command is taken: none may slip in unanswered.
        self._door = threading.Lock()
        self._is_closed = False
        self.failure = ""
        self.handles = tuple(ThreadHandle(self, loop) for loop in self._loops)

    @property
    def is_alive(self) -> bool:
        """The thread runs and takes commands."""
        return self._thread.is_alive() and not self._is_closed

    @property
    def fault(self) -> str:
        """Why it serves nobody: it has crashed, or it is stuck. Empty while all is well."""
        return self.failure or self._watchdog.fault

    def start(self) -> None:
        """Start the thread; it warms up first."""
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the warm-up. False if it failed or takes longer."""
        return self._is_ready.wait(timeout_s) and self.is_alive

    def stop(self, timeout_s: float | None = None) -> None:
        """End all streams with `engine_stopped` and join the thread."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def put(self, loop: EngineLoop, command: Command) -> None:
        """Hand a command to a loop and wake the thread. Raises: `EngineStoppedError`."""
        with self._door:
            if self._is_closed:
                raise EngineStoppedError(self.failure or "the engine was stopped")
            loop.inbox.put(command)
        self._wake.set()

    def _run(self) -> None:
        try:
            for loop in self._loops:
                loop.warm_up()
            self._is_ready.set()
            while not self._is_stopping:
                self._turn()
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            logger.critical("the engine thread ended", exc_info=error)
        finally:
            self._close()

    def _turn(self) -> None:
        """Step the loops whose turn it is, then sleep as long as all of them may."""
        self._wake.clear()
        self._watchdog.begin()
        steps = self._turns.next([loop.is_pressing for loop in self._loops])
        wanted = [
            loop.step(stands_back=not is_on) for loop, is_on in zip(self._loops, steps, strict=True)
        ]
        self._watchdog.end()
        sleep_s = min((HEARTBEAT_S if w is None else w for w in wanted), default=HEARTBEAT_S)
        if sleep_s > 0:
            self._wake.wait(min(sleep_s, HEARTBEAT_S))

    def _close(self) -> None:
        """Take no more commands and end every stream."""
        self._watchdog.end()
        with self._door:
            self._is_closed = True
        message = self.failure or "the engine was stopped"
        for loop in self._loops:
            try:
                loop.end_all(message)
            except Exception:
                logger.exception("streams of %s were not told of the end", loop.model.spec.name)
        self._is_ready.set()


class ThreadHandle:
    """The door to one loop; implements `engine.handle.EngineHandle`."""

    def __init__(self, thread: EngineThread, loop: EngineLoop) -> None:
        self._thread = thread
        self._loop = loop
        phases = loop.model.spec.phases
        self._gives_pcm = any(phase.feeds_codec for phase in phases)

    @property
    def spec(self) -> ModelSpec:
        """The model's facts."""
        return self._loop.model.spec

    @property
    def memory(self) -> MemoryPlan:
        """What it takes of its device."""
        return self._loop.memory

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt of a request. Blocking; any thread. Raises: `PlanError`."""
        return self._loop.plan(request)

    def open_stream(
        self,
        plan: PromptPlan,
        *,
        seed: int,
        asked_s: float,
        play_from_s: float | None = None,
        is_paced: bool = True,
    ) -> StreamId:
        """Start a stream; events with its id follow. Raises: `EngineStoppedError`."""
        if fault := self._thread.fault:
            raise EngineStoppedError(fault)
        stream_id = StreamId(next(_stream_ids))
        command = OpenStream(
            stream_id=stream_id,
            plan=plan,
            seed=seed,
            asked_s=asked_s,
            play_from_s=play_from_s,
            is_paced=is_paced,
            wants_pcm=self._gives_pcm,
        )
        self._thread.put(self._loop, command)
        return stream_id

    def extend_text(
        self, stream_id: StreamId, plan: PromptPlan, text: str, *, is_final: bool
    ) -> None:
        """Give a streamed-text model more text. Raises: `PlanError`."""
        ids = tuple(self._loop.model.extend(plan, text, is_final=is_final).tolist())
        self._put_late(ExtendText(stream_id=stream_id, ids=ids, is_final=is_final))

    def report_playout(self, stream_id: StreamId, heard_s: float, at_s: float) -> None:
        """Tell how much of a stream the client has heard."""
        self._put_late(ReportPlayout(stream_id=stream_id, heard_s=heard_s, at_s=at_s))

    def set_paused(self, stream_id: StreamId, *, is_paused: bool) -> None:
        """Leave a stream out while its client is too slow, or take it in again."""
        self._put_late(SetPaused(stream_id=stream_id, is_paused=is_paused))

    def abort(self, stream_id: StreamId) -> None:
        """End a stream within one step. Unknown or ended streams are ignored."""
        self._put_late(AbortStream(stream_id=stream_id))

    def stats(self) -> EngineStats:
        """The latest snapshot."""
        stats = replace(self._loop.stats, n_commands=self._loop.inbox.n_waiting)
        if stats.is_alive and (fault := self._thread.fault):
            return replace(stats, is_alive=False, is_ready=False, failure=fault)
        return stats

    @property
    def histograms(self) -> dict[str, Histogram]:
        """Distributions since the start by their names; the engine thread goes on writing them."""
        return self._loop.metrics.histograms

    def _put_late(self, command: Command) -> None:
        """Send a command about an open stream; after the end there is none left to mind it."""
        try:
            self._thread.put(self._loop, command)
        except EngineStoppedError:
            logger.debug("the engine has ended: %s is moot", command)
