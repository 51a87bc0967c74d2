"""The engine loop of one model: drain, admit, plan, launch, collect, publish. Engine thread only.

Slots and pages change hands at the drain and at the end of a step, never under a launched one. The
device is read in one place, `_collect`, with one transfer a step.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine import chunks, deadlines, scheduler, sharing
from engine.admission import Admission
from engine.attention import make_attention
from engine.chunks import ChunkWork
from engine.codec_runner import CodecRunner
from engine.config import EngineConfig, Limits
from engine.costs import StepCosts
from engine.errors import StreamError
from engine.groups import Groups, StreamGroup
from engine.inbox import Inbox
from engine.launch import Launcher, PendingStep
from engine.metrics import LoopMetrics
from engine.readback import ChunkAudio, read_back
from engine.runner import EMITS, IS_BAD, IS_FINISHED, IS_STARVED, PHASE, TEXT_ID, Runner
from engine.scheduler import StepPlan
from engine.spans import Clock
from engine.text_feed import TextFeed
from engine.types import (
    AbortStream,
    AudioChunk,
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
    StreamQueued,
    TextDelta,
)
from engine.warmup import warm_up
from models.base import SpeechModel

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
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        sink: EventSink,
        clock: Clock,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        device = torch.device("cpu") if device is None else device
        spec = model.spec
        attention = make_attention(spec, config, device, dtype)
        self.model = model
        self.inbox = Inbox()
        self.metrics = LoopMetrics()
        self.stats = EngineStats()
        self._sink = sink
        self._clock = clock
        self._config = config
        self._limits = Limits(config=config, frame=spec.frame, codec=spec.codec)
        self.costs = StepCosts(spec.codec.left_context_frames)
        self._runner = Runner(model, attention, config.max_streams, device, dtype)
        self._codec = CodecRunner(model, self._runner.slots, device)
        self._launcher = Launcher(self._runner, self._codec, config.max_streams, device, clock)
        self._groups = Groups(spec, config, self._runner)
        self._admission = Admission(self._limits, self._groups.pages.n_free)
        self._active: dict[StreamId, StreamGroup] = {}
        self._waiting: dict[StreamId, StreamGroup] = {}
        self._text = TextFeed(self._runner.slots, spec.text_capacity)
        self._events: list[EngineEvent] = []
        # Streams whose end has not been told: whatever else is lost in a crash, these are not.
        self._open_ids: set[StreamId] = set()

    def warm_up(self) -> None:
        """Run every shape once, measure what it costs, then be ready."""
        with torch.inference_mode():
            warm_up(self._runner, self._codec, self.costs, self._config, self._clock)
        self._refresh_stats(self._clock())
        self.stats = replace(self.stats, is_ready=True)

    @property
    def is_pressing(self) -> bool:
        """Whether somebody waits for a stream of this loop now."""
        streams = (group.stream for group in self._active.values())
        return sharing.is_pressing(streams, self._clock(), self._limits)

    @torch.inference_mode()
    def step(self, *, stands_back: bool = False) -> float | None:
        """Do what there is to do.

        Args:
            stands_back: the device is left to another loop: commands are taken, nothing is run.

        Returns:
            Seconds after which a step is wanted although no command came; None if never.
        """
        start_s = self._clock()
        self._drain()
        self._admit(start_s)
        streams = [group.stream for group in self._active.values()]
        plan = StepPlan(idle_s=0.0 if streams else None)
        if not stands_back:
            plan = scheduler.plan(streams, start_s, self._limits, self.costs)
        resumed = [] if stands_back else self._text.take_resumed()
        pending = self._launcher.launch(plan, resumed, self._active)
        is_idle = plan.is_empty and not pending.rows and not pending.failures
        if not is_idle:
            self._collect(pending)
            pending.observe(self.costs, self.metrics, self._clock() - start_s)
            self.metrics.count_step(plan, pending.n_decode_rows, self._clock() - start_s)
        self._end_delivered()
        self._publish()
        self._refresh_stats(start_s)
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
        """Assert that no slot or page is lost."""
        self._groups.check()
        assert len(self._active) == self._groups.slots.n_used, "a slot is held by nobody"

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
                group.stream.is_paused = command.is_paused

    def _open(self, command: OpenStream) -> None:
        try:
            group = self._groups.make(command)
        except StreamError as error:
            self._tell_failure(command.stream_id, error.code, error.message)
            return
        self._waiting[command.stream_id] = group
        self._admission.offer(self._groups.demand(group), self._clock())

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
        active = [group.stream for group in self._active.values()]
        slots, pages = self._groups.slots, self._groups.pages
        review = self._admission.review(now_s, active, self.costs, slots.n_free, pages.n_free)
        for refusal in review.refused:
            del self._waiting[refusal.stream_id]
            self.metrics.n_refused += 1
            self._events.append(
                StreamFailed(
                    stream_id=refusal.stream_id,
                    code=refusal.code,
                    message=refusal.message,
                    retry_after_s=refusal.retry_after_s,
                )
            )
        for stream_id in review.admitted:
            self._start(self._waiting.pop(stream_id))
        self._tell_queued()

    def _start(self, group: StreamGroup) -> None:
        stream_id = group.stream.stream_id
        try:
            self._groups.admit(group)
        except StreamError as error:
            self._tell_failure(stream_id, error.code, error.message)
            return
        self._active[stream_id] = group
        self._events.append(StreamAdmitted(stream_id=stream_id))
        if group.new_text or group.is_text_final != group.plan.is_text_final:
            self._text.hand_over(group)

    def _tell_queued(self) -> None:
        """Tell streams that wait now and did not before."""
        for stream_id, group in self._waiting.items():
            if not group.is_queue_told:
                group.is_queue_told = True
                n_ahead = self._admission.n_ahead(stream_id)
                self._events.append(StreamQueued(stream_id=stream_id, n_ahead=n_ahead or 0))

    # Collect.

    def _collect(self, pending: PendingStep) -> None:
        """Read the step's results: the one place where the host waits for the device."""
        results = read_back(pending)
        for group, error in pending.failures:
            self._fail(group, error)
        for launch, rows in zip(pending.rows, results.rows, strict=True):
            for group, row in zip(launch.groups, rows, strict=True):
                self._take_row(group, row)
        for call, audio in zip(pending.chunks, results.chunks, strict=True):
            for row_idx, (group, work) in enumerate(zip(call.groups, call.works, strict=True)):
                self._take_chunk(group, work, audio, row_idx)

    def _take_row(self, group: StreamGroup, row: list[int]) -> None:
        stream = group.stream
        if stream.stream_id not in self._active:
            return
        if row[IS_BAD]:
            message = f"row {stream.n_rows} has no finite logits to draw from"
            self._fail(group, StreamError("numerical_error", message))
            return
        stream.frames_ready += row[EMITS]
        stream.is_starved = bool(row[IS_STARVED])
        if row[TEXT_ID] >= 0 and not self._take_text(group, row[TEXT_ID]):
            return
        if row[IS_FINISHED]:
            self._stop_generating(group, "stop")
        elif stream.frames_ready >= stream.max_frames or stream.n_rows >= group.max_rows:
            self._stop_generating(group, "length")
        if not group.is_prompt_shared:
            self._groups.share_prompts(group)
        if row[PHASE] != stream.phase_idx and not stream.is_generation_done:
            stream.phase_idx = row[PHASE]
            self._groups.update_guidance(group)

    def _stop_generating(self, group: StreamGroup, reason: FinishReason) -> None:
        group.stream.is_generation_done = True
        group.stream.is_starved = False
        group.stream.finish_reason = reason

    def _take_text(self, group: StreamGroup, text_id: int) -> bool:
        """Publish what a text id adds; False if that failed the stream."""
        try:
            new = group.text.push(text_id, self.model.detokenize_text)
        except Exception as error:  # noqa: BLE001  a model may raise anything; here it is held
            self._fail(group, StreamError("model_error", f"{type(error).__name__}: {error}"))
            return False
        stream = group.stream
        if new:
            if stream.first_sent_s is None and not stream.wants_pcm:
                stream.first_sent_s = self._clock()
            self._events.append(TextDelta(stream_id=stream.stream_id, text=new))
        return True

    def _take_chunk(
        self, group: StreamGroup, work: ChunkWork, audio: ChunkAudio, row_idx: int
    ) -> None:
        stream = group.stream
        if stream.stream_id not in self._active:
            return
        n_samples = audio.n_samples[row_idx]
        if not audio.is_finite[row_idx] or n_samples > audio.pcm.shape[1]:
            message = f"chunk {work.chunk_idx} is not sound audio"
            self._fail(group, StreamError("numerical_error", message))
            return
        now_s = self._clock()
        self.metrics.count_chunk(stream, n_samples, now_s)
        deadlines.record_sent(stream, n_samples, self.model.spec.frame.sample_rate_hz, now_s)
        # A copy: a slice would keep the whole batch's audio alive in a slow client's queue.
        pcm = audio.pcm[row_idx, :n_samples].copy()
        self._events.append(
            AudioChunk(stream_id=stream.stream_id, chunk_idx=work.chunk_idx, pcm=pcm)
        )

    # Ends.

    def _end_delivered(self) -> None:
        codec = self._limits.codec
        done = [g for g in self._active.values() if chunks.is_delivered(g.stream, codec)]
        for group in done:
            self._finish(group, group.stream.finish_reason or "stop")

    def _finish(self, group: StreamGroup, reason: FinishReason) -> None:
        stream = group.stream
        self._release(group, is_suspect=reason == "aborted")
        if reason == "aborted":
            self.metrics.n_aborted += 1
        else:
            self.metrics.n_finished += 1
        self._events.append(
            StreamFinished(
                stream_id=stream.stream_id,
                reason=reason,
                n_prompt_rows=group.prompts[0].n_rows,
                n_frames=stream.frames_ready,
                n_samples=stream.samples_sent,
            )
        )

    def _fail(self, group: StreamGroup, error: StreamError) -> None:
        """End one stream with a failure; the others do not notice."""
        if group.stream.stream_id in self._active or group.stream.stream_id in self._waiting:
            self._release(group, is_suspect=True)
            self._tell_failure(group.stream.stream_id, error.code, error.message)

    def _release(self, group: StreamGroup, *, is_suspect: bool) -> None:
        stream_id = group.stream.stream_id
        self._text.forget(stream_id)
        if self._waiting.pop(stream_id, None) is not None:
            self._admission.cancel(stream_id)
        if self._active.pop(stream_id, None) is not None:
            self._groups.close(group, is_suspect=is_suspect)

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
        if not self._waiting:
            return idle_s
        return QUEUE_POLL_S if idle_s is None else min(idle_s, QUEUE_POLL_S)

    def _refresh_stats(self, last_step_s: float) -> None:
        """Replace the snapshot that other threads read."""
        slots, pages = self._groups.slots, self._groups.allocator
        self.stats = replace(
            self.metrics.shown_in(self.stats),
            n_active=len(self._active),
            n_queued=len(self._waiting),
            n_pages_used=pages.n_used,
            n_pages=pages.n_pages - 1,
            n_pages_cached=self.n_cached_pages,
            n_slots_used=slots.n_used,
            n_slots=slots.n_slots,
            last_step_s=last_step_s,
        )
