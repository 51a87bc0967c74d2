"""The engine loop of one model: drain, admit, plan, launch, collect, publish. Engine thread only.

Slots and pages change hands at the drain and at the end of a step, never under a launched one. The
device is read in one place, `Collector.collect`, with one transfer a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine import chunks, deadlines, scheduler, sharing
from engine.collect import Collector
from engine.config import EngineConfig, Limits
from engine.costs import StepCosts
from engine.device import DeviceSide
from engine.errors import StreamError
from engine.groups import Groups, StreamGroup
from engine.in_flight import Flight
from engine.inbox import Inbox
from engine.kept_turns import keep_turn
from engine.memory import plan_memory, telling_what_to_lower
from engine.metrics import LoopMetrics
from engine.scheduler import StepPlan
from engine.spans import Clock
from engine.text_feed import TextFeed
from engine.trace import NoTrace, Trace
from engine.types import (
    AbortStream,
    Command,
    EngineEvent,
    EngineStats,
    EventSink,
    ExtendText,
    FinishReason,
    OpenStream,
    ReportPlayout,
    SetPaused,
    StreamAdmitted,
    StreamFailed,
    StreamFinished,
    StreamId,
)
from engine.waiting import WaitingRoom
from engine.warmup import warm_up
from models.base import PromptPlan, SpeechModel
from models.spec import PlanRequest

QUEUE_POLL_S = 0.05
"""How often waiting streams are reviewed while nothing else happens."""


class EngineLoop:
    """Everything that one model needs to serve streams.

    Args:
        model: on `device`.
        config: sizes and policy.
        sink: gets the events of each step.
        clock: monotonic seconds.
        device: where the model and all state live.
        dtype: of KV.
        detokenizer: the same model on `codec_device`, where that is not `device`.
        codec_device: where chunks are detokenized.
        trace: is told what happens when.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        sink: EventSink,
        clock: Clock,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        detokenizer: SpeechModel | None = None,
        codec_device: torch.device | None = None,
        trace: Trace | None = None,
    ) -> None:
        device = torch.device("cpu") if device is None else device
        spec = model.spec
        self.memory = plan_memory(
            model, config, device, dtype, detokenizer=detokenizer, codec_device=codec_device
        )
        config = replace(config, n_pages=self.memory.n_pages)
        self.model = model
        self.inbox = Inbox()
        self.metrics = LoopMetrics()
        self.stats = EngineStats()
        self._sink = sink
        self._clock = clock
        self._config = config
        self._limits = Limits(config=config, frame=spec.frame, codec=spec.codec)
        self.costs = StepCosts(spec.codec.left_context_frames)
        self._trace: Trace = NoTrace() if trace is None else trace
        self._device = DeviceSide(
            model, config, device, dtype, clock, detokenizer=detokenizer, codec_device=codec_device
        )
        self._groups = Groups(spec, config, self._device.runner)
        self._waiting = WaitingRoom(self._limits, self._groups)
        self._active: dict[StreamId, StreamGroup] = {}
        # Ended, but a step that is under way works for them.
        self._leaving: list[tuple[StreamGroup, bool]] = []
        self._text = TextFeed(self._device.runner.slots, spec.text_capacity)
        self._events: list[EngineEvent] = []
        self._collector = Collector(
            model,
            self._groups,
            self._device.runner,
            self._text,
            self.metrics,
            clock,
            self._tell,
            self._fail,
        )
        # Streams whose end has not been told: whatever else is lost in a crash, these are not.
        self._open_ids: set[StreamId] = set()

    def warm_up(self) -> None:
        """Run every shape once, measure what it costs, then be ready."""
        queue = self._device.streams.queue()
        with torch.inference_mode(), telling_what_to_lower("warming up"), queue:
            warm_up(self._device, self.costs, self._config, self._clock)
        self.memory = self.memory.recorded(self._device.recorded_bytes)
        self._trace.begin(self._device.streams.all)
        self._refresh_stats(self._clock())
        self.stats = replace(self.stats, is_ready=True)

    @property
    def is_pressing(self) -> bool:
        """Whether somebody waits for a stream of this loop now."""
        streams = (group.stream for group in self._active.values())
        return sharing.is_pressing(streams, self._clock(), self._limits)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt of a request. Blocking; any thread. Raises: `PlanError`."""
        prompts = self._device.streams.prompt
        with prompts.queue():
            plan = self.model.plan(request)
        prompts.mark().wait()
        return plan

    @torch.inference_mode()
    def step(self, *, stands_back: bool = False) -> float | None:
        """Do what there is to do.

        Args:
            stands_back: the device is left to another loop: commands are taken, nothing is run.

        Returns:
            Seconds after which a step is wanted although no command came; None if never.
        """
        with self._device.streams.queue():
            return self._step(stands_back=stands_back)

    def _step(self, *, stands_back: bool) -> float | None:
        start_s = self._clock()
        self._trace.enter("drain")
        self._drain()
        self._admit(start_s)
        self._trace.enter("plan")
        streams = [group.stream for group in self._active.values()]
        plan = StepPlan(idle_s=0.0 if streams else None)
        if not stands_back:
            plan = scheduler.plan(streams, start_s, self._limits, self.costs)
        self._trace.enter("launch")
        resumed = [] if stands_back else self._text.take_resumed()
        launched = self._device.launcher.launch(plan, resumed, self._active)
        flights = self._device.in_flight.add(launched)
        self._trace.enter("collect")
        self._collect(flights, start_s)
        if not launched.is_empty:
            self.metrics.count_step(plan, launched.n_decode_rows, self._clock() - start_s)
        self._trace.enter("publish")
        self._end_delivered()
        self._publish()
        self._refresh_stats(start_s)
        self._trace.leave()
        is_idle = launched.is_empty and not flights
        if is_idle and not self._active:
            self.check()
        return self._next_step_in(plan.idle_s) if is_idle else 0.0

    def end_all(self, message: str) -> None:
        """End every stream with a failure, also such as a crash caught between two places."""
        self._publish()
        opened = {c.stream_id for c in self.inbox.drain() if isinstance(c, OpenStream)}
        for stream_id in sorted(self._open_ids | opened):
            self._tell_failure(stream_id, "engine_stopped", message)
        self._active.clear()
        self._waiting.clear()
        self._refresh_stats(self._clock())
        self.stats = replace(self.stats, is_ready=False, is_alive=False, failure=message)
        self._publish()

    @property
    def n_cached_pages(self) -> int:
        """Pages that the prefix cache holds."""
        return self._groups.pages.n_cached

    def check(self) -> None:
        """Assert that no slot or page is lost. Raises: `GraphError`, weights have moved."""
        self._groups.check()
        n_held = len(self._active) + len(self._leaving)
        assert n_held == self._groups.slots.n_used, "a slot is held by nobody"
        self._device.check()

    # Drain.

    def _drain(self) -> None:
        commands = self.inbox.drain()
        self._open_ids |= {c.stream_id for c in commands if isinstance(c, OpenStream)}
        for command in commands:
            self._apply(command)

    def _apply(self, command: Command) -> None:
        if isinstance(command, OpenStream):
            self._open(command)
            return
        stream_id = command.stream_id
        group = self._active.get(stream_id) or self._waiting.get(stream_id)
        if group is None:
            return  # Ended while the command was on its way.
        match command:
            case AbortStream():
                self._finish(group, "aborted")
            case ExtendText():
                self._extend_text(group, command)
            case ReportPlayout():
                deadlines.record_playout(group.stream, command.heard_s, command.at_s)
            case SetPaused():
                self._set_paused(group, is_paused=command.is_paused)

    def _open(self, command: OpenStream) -> None:
        try:
            group = self._groups.make(command)
        except StreamError as error:
            self._tell_failure(command.stream_id, error.code, error.message)
            return
        self._waiting.add(group, self._clock())

    def _set_paused(self, group: StreamGroup, *, is_paused: bool) -> None:
        group.stream.is_paused = is_paused
        group.stream.paused_since_s = self._clock()
        self._waiting.set_paused(group, self._clock())

    def _extend_text(self, group: StreamGroup, command: ExtendText) -> None:
        try:
            self._text.extend(group, command)
        except StreamError as error:
            self._fail(group, error)
            return
        if group.stream.stream_id in self._active:
            self._text.hand_over(group)

    # Admit.

    def _admit(self, now_s: float) -> None:
        changes = self._waiting.review(now_s, self._active, self.costs)
        if changes.gave_way:
            # What is under way for them is theirs to keep.
            self._collect(self._device.in_flight.take_all(), now_s)
        for group in changes.gave_way:
            if group.stream.stream_id in self._active:
                self._give_way(group, now_s)
        self.metrics.n_refused += len(changes.refused)
        self._events += changes.refused
        for group in changes.admitted:
            self._start(group)
        self._events += self._waiting.newly_queued()

    def _give_way(self, group: StreamGroup, now_s: float) -> None:
        """Take memory back from a stream that nobody hears; it goes on when there is room again."""
        stream_id = group.stream.stream_id
        del self._active[stream_id]
        self._text.forget(stream_id)
        self._groups.give_way(group)
        self._waiting.add(group, now_s)
        self.metrics.n_gave_way += 1

    def _start(self, group: StreamGroup) -> None:
        stream_id, is_back = group.stream.stream_id, group.kept is not None
        try:
            self._groups.admit(group)
        except StreamError as error:
            self._tell_failure(stream_id, error.code, error.message)
            return
        self._active[stream_id] = group
        if is_back:
            self._device.streams.settle()
        else:
            self._events.append(StreamAdmitted(stream_id=stream_id))
        has_new_text = bool(group.new_text) or group.is_text_final != group.plan.is_text_final
        if has_new_text or group.stream.is_starved:
            self._text.hand_over(group)

    # Collect.

    def _collect(self, flights: Sequence[Flight], start_s: float) -> None:
        """Take the results of launched steps, and what they tell of the cost of steps."""
        for flight in flights:
            self._collector.collect(flight, self._active)
            flight.step.observe(self.costs, self.metrics)
            self._trace.device(flight.step.spans)
        if flights:
            flights[-1].step.observe_total(self.costs, self._clock() - start_s)
        self._free_leaving()

    # Ends.

    def _end_delivered(self) -> None:
        codec = self._limits.codec
        done = [g for g in self._active.values() if chunks.is_delivered(g.stream, codec)]
        for group in done:
            if not group.stream.is_in_flight:
                self._finish(group, group.stream.finish_reason or "stop")

    def _finish(self, group: StreamGroup, reason: FinishReason) -> None:
        stream, is_aborted = group.stream, reason == "aborted"
        rows = None if is_aborted else keep_turn(group, self._groups.pages, self._device.runner)
        self._release(group, is_suspect=is_aborted)
        self.metrics.n_aborted += is_aborted
        self.metrics.n_finished += not is_aborted
        event = StreamFinished(
            stream_id=stream.stream_id,
            reason=reason,
            n_prompt_rows=group.prompts[0].n_given,
            n_frames=stream.frames_ready,
            n_samples=stream.samples_sent,
            rows=rows,
        )
        self._events.append(event)

    def _fail(self, group: StreamGroup, error: StreamError) -> None:
        """End one stream with a failure; the others do not notice."""
        stream_id = group.stream.stream_id
        if stream_id in self._active or self._waiting.get(stream_id) is not None:
            self._release(group, is_suspect=True)
            self._tell_failure(stream_id, error.code, error.message)

    def _release(self, group: StreamGroup, *, is_suspect: bool) -> None:
        stream_id = group.stream.stream_id
        self._text.forget(stream_id)
        self._waiting.remove(stream_id)
        if self._active.pop(stream_id, None) is not None:
            self._leaving.append((group, is_suspect))
            self._free_leaving()

    def _free_leaving(self) -> None:
        """Free streams that have ended, once no launched step works for them."""
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        for group, is_suspect in leaving:
            if group.stream.is_in_flight:
                self._leaving.append((group, is_suspect))
            else:
                self._groups.close(group, is_suspect=is_suspect)

    def _tell(self, event: EngineEvent) -> None:
        self._events.append(event)

    def _tell_failure(self, stream_id: StreamId, code: str, message: str) -> None:
        self.metrics.n_failed += 1
        self._events.append(StreamFailed(stream_id=stream_id, code=code, message=message))

    # Publish.

    def _publish(self) -> None:
        if self._events:
            events, self._events = self._events, []
            ended = {e.stream_id for e in events if isinstance(e, StreamFinished | StreamFailed)}
            self._open_ids -= ended
            self._sink(events)

    def _next_step_in(self, idle_s: float | None) -> float | None:
        if not self._waiting.n_queued:
            return idle_s
        return QUEUE_POLL_S if idle_s is None else min(idle_s, QUEUE_POLL_S)

    def _refresh_stats(self, last_step_s: float) -> None:
        """Replace the snapshot that other threads read."""
        slots, pages = self._groups.slots, self._groups.allocator
        self.stats = replace(
            self.metrics.shown_in(self.stats),
            n_active=len(self._active),
            n_queued=self._waiting.n_queued,
            n_pages_used=pages.n_used,
            n_pages=pages.n_pages - 1,
            n_pages_cached=self.n_cached_pages,
            n_slots_used=slots.n_used,
            n_slots=slots.n_slots,
            last_step_s=last_step_s,
        )
