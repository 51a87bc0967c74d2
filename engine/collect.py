"""Takes the results of a step into its streams, and tells what came of it. Engine thread."""

from __future__ import annotations

from collections.abc import Callable, Container

from engine import deadlines
from engine.chunks import ChunkWork
from engine.errors import StreamError
from engine.groups import Groups, StreamGroup
from engine.in_flight import Flight, hold
from engine.metrics import LoopMetrics
from engine.readback import ChunkAudio
from engine.row_step import EMITS, IS_BAD, IS_FINISHED, IS_STARVED, PHASE, TEXT_ID
from engine.runner import Runner
from engine.spans import Clock
from engine.stream import Stream
from engine.text_feed import TextFeed
from engine.types import AudioChunk, EngineEvent, FinishReason, StreamId, TextDelta
from models.base import SpeechModel

Fail = Callable[[StreamGroup, StreamError], None]
Tell = Callable[[EngineEvent], None]


class Collector:
    """What a loop does with results.

    Args:
        model: turns ids into text.
        groups: told of prompts that proved sound, and of new phases.
        runner: lets streams go on that the device held.
        text: lets streams go on that starved.
        metrics: counts chunks.
        clock: monotonic seconds.
        tell: takes events, in order.
        fail: ends a stream.
    """

    def __init__(
        self,
        model: SpeechModel,
        groups: Groups,
        runner: Runner,
        text: TextFeed,
        metrics: LoopMetrics,
        clock: Clock,
        tell: Tell,
        fail: Fail,
    ) -> None:
        self._model = model
        self._groups = groups
        self._runner = runner
        self._text = text
        self._metrics = metrics
        self._clock = clock
        self._tell = tell
        self._fail = fail
        self._sample_rate_hz = model.spec.frame.sample_rate_hz

    def collect(self, flight: Flight, active: Container[StreamId]) -> None:
        """Wait for a step and take its results; streams that are not `active` mind nothing more."""
        results, step = flight.results(), flight.step
        for group, error in step.failures:
            self._fail(group, error)
        for launch, rows in zip(step.rows, results.rows, strict=True):
            for group, row in zip(launch.groups, rows, strict=True):
                is_blind, is_void = _note_landed(group.stream)
                if not is_void and group.stream.stream_id in active:
                    self._take_row(group, row, is_blind=is_blind)
        for call, audio in zip(step.chunks, results.chunks, strict=True):
            for row_idx, (group, work) in enumerate(zip(call.groups, call.works, strict=True)):
                group.stream.n_chunks_in_flight -= 1
                if group.stream.stream_id in active:
                    self._take_chunk(group, work, audio, row_idx)

    def _take_row(self, group: StreamGroup, row: list[int], *, is_blind: bool) -> None:
        stream = group.stream
        if row[IS_BAD]:
            message = f"row {stream.n_rows} has no finite logits to draw from"
            self._fail(group, StreamError("numerical_error", message))
            return
        n_rows = stream.n_rows - stream.n_rows_in_flight
        stream.frames_ready += row[EMITS]
        stream.is_starved = bool(row[IS_STARVED])
        if stream.is_starved:
            hold(stream)
            if is_blind:
                self._text.resume(group)
        if row[TEXT_ID] >= 0 and not self._take_text(group, row[TEXT_ID]):
            return
        if row[IS_FINISHED]:
            _stop_generating(group, "stop")
        elif stream.frames_ready >= stream.max_frames or n_rows >= group.max_rows:
            _stop_generating(group, "length")
        if not group.is_prompt_shared:
            self._groups.share_prompts(group)
        if row[PHASE] != stream.phase_idx and not stream.is_generation_done:
            self._enter_phase(group, row[PHASE])

    def _enter_phase(self, group: StreamGroup, phase_idx: int) -> None:
        stream = group.stream
        if self._groups.changes_guidance(stream.phase_idx, phase_idx):
            hold(stream)
            self._runner.let_go(stream.slot)
        stream.phase_idx = phase_idx
        self._groups.update_guidance(group)

    def _take_text(self, group: StreamGroup, text_id: int) -> bool:
        """Tell what a text id adds; False if that failed the stream."""
        try:
            new = group.text.push(text_id, self._model.detokenize_text)
        except Exception as error:  # noqa: BLE001  a model may raise anything; here it is held
            self._fail(group, StreamError("model_error", f"{type(error).__name__}: {error}"))
            return False
        stream = group.stream
        if new:
            if stream.first_sent_s is None and not stream.wants_pcm:
                stream.first_sent_s = self._clock()
            self._tell(TextDelta(stream_id=stream.stream_id, text=new))
        return True

    def _take_chunk(
        self, group: StreamGroup, work: ChunkWork, audio: ChunkAudio, row_idx: int
    ) -> None:
        stream = group.stream
        n_samples = audio.n_samples[row_idx]
        if not audio.is_finite[row_idx] or n_samples > audio.pcm.shape[1]:
            message = f"chunk {work.chunk_idx} is not sound audio"
            self._fail(group, StreamError("numerical_error", message))
            return
        now_s = self._clock()
        self._metrics.count_chunk(stream, n_samples, now_s)
        deadlines.record_sent(stream, n_samples, self._sample_rate_hz, now_s)
        # A copy: a slice would keep the whole batch's audio alive in a slow client's queue.
        pcm = audio.pcm[row_idx, :n_samples].copy()
        self._tell(AudioChunk(stream_id=stream.stream_id, chunk_idx=work.chunk_idx, pcm=pcm))


def _note_landed(stream: Stream) -> tuple[bool, bool]:
    """Count a row that has come; whether it has not seen the newest text, and is void."""
    is_blind, is_void = stream.n_blind_rows > 0, stream.n_void_rows > 0
    stream.n_rows_in_flight -= 1
    stream.n_blind_rows -= is_blind
    stream.n_void_rows -= is_void
    return is_blind, is_void


def _stop_generating(group: StreamGroup, reason: FinishReason) -> None:
    hold(group.stream)
    group.stream.is_generation_done = True
    group.stream.is_starved = False
    group.stream.finish_reason = reason
