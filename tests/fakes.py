"""A fake engine: the door's contract without a model. Its audio is a known tone for each text.

The test drives it: `step()` by hand, or `start()` for a thread that steps by itself. Faults are
chosen by what a text contains (see `FakeEngine`).
"""

from __future__ import annotations

import itertools
import threading
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.errors import EngineStoppedError
from engine.histogram import Histogram
from engine.types import (
    AudioChunk,
    EngineEvent,
    EngineStats,
    EventSink,
    Pcm,
    StreamAdmitted,
    StreamFailed,
    StreamFinished,
    StreamId,
)
from models.errors import PlanError
from models.options import check_language, check_options, check_voice
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
    PlanRequest,
)
from models.text.scripts import unspeakable_scripts

RATE_HZ = 24_000
FRAME_SAMPLES = 240
SAMPLES_PER_CHARACTER = 240
"""10 ms a character, faster than speech: quick to code."""


def fake_spec(**changes: Any) -> ModelSpec:
    """A spec that nothing but its facts stands behind."""
    rate_hz = changes.pop("rate_hz", RATE_HZ)
    frame_samples = changes.pop("frame_samples", FRAME_SAMPLES)
    spec = ModelSpec(
        name="fake",
        tasks=("speak",),
        columns=(ColumnSpec(name="codes", role="acoustic", ids=(0, 16), pad_id=0),),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=rate_hz / frame_samples,
            sample_rate_hz=rate_hz,
            samples_per_frame=frame_samples,
        ),
        backbone=BackboneSpec(
            n_layers=1, n_query_heads=1, n_kv_heads=1, head_dim=4, hidden=4, max_positions=1024
        ),
        phases=(PhaseSpec(name="audio", columns=(PhaseColumn(fill="sampled"),), feeds_codec=True),),
        codec=CodecSpec(chunk_frames=(1, 8)),
        state_size=1,
        voices=("ada", "bob"),
        languages=("en", "de"),
        options=(
            OptionSpec(
                name="speed",
                kind="number",
                default=1.0,
                description="rate of speech",
                minimum=0.5,
                maximum=2.0,
            ),
            OptionSpec(
                name="style",
                kind="string",
                default="calm",
                description="manner",
                choices=("calm", "loud"),
            ),
        ),
        weights_licence="none",
        weights_source="made up",
    )
    return replace(spec, **changes)


def tone(text: str, *, rate_hz: int = RATE_HZ, per_character: int = SAMPLES_PER_CHARACTER) -> Pcm:
    """The audio of a text: a tone of its own pitch, faded in and out."""
    n_samples = per_character * len(text)
    pitch_hz = 200 + zlib.crc32(text.encode()) % 400
    at_s = np.arange(n_samples) / rate_hz
    fade = np.minimum(1.0, np.minimum(at_s, at_s[::-1]) / 0.01)
    return (0.4 * fade * np.sin(2 * np.pi * pitch_hz * at_s)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class FakePlan:
    """What the fake makes of a request."""

    text: str
    is_text_final: bool


@dataclass(slots=True, kw_only=True)
class FakeStream:
    """A stream as the test may look at it."""

    stream_id: StreamId
    plan: FakePlan
    seed: int
    asked_s: float
    play_from_s: float | None
    is_paced: bool
    pcm: Pcm
    text: str
    is_text_final: bool
    n_sent: int = 0
    chunk_idx: int = 0
    is_paused: bool = False
    is_aborted: bool = False
    is_over: bool = False
    pauses: list[bool] = field(default_factory=list)
    playout: list[tuple[float, float]] = field(default_factory=list)


class FakeEngine:
    """Implements `engine.handle.EngineHandle`.

    What a text contains decides what goes wrong: a script that is not Latin (a `PlanError`),
    `plancrash` (any other exception), `streamfail` (fails after one chunk), `overload` (refused),
    `toolong` (ends by length), `silent` (no event ever), `skipchunk` (a chunk is lost).

    Args:
        sink: where events go.
        spec: its facts.
        chunk_samples: of every chunk but the last.
        step_s: pause between steps of the thread.
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        spec: ModelSpec | None = None,
        chunk_samples: int = 8 * FRAME_SAMPLES,
        step_s: float = 0.0,
    ) -> None:
        self._sink = sink
        self._spec = spec or fake_spec()
        self._chunk_samples = chunk_samples
        self._step_s = step_s
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self.is_ready = True
        self.failure = ""
        self.planned: list[PlanRequest] = []
        self.streams: list[FakeStream] = []

    # The door.

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def plan(self, request: PlanRequest) -> Any:
        self.planned.append(request)
        check_voice(self._spec, request.voice)
        check_language(self._spec, request.language)
        check_options(self._spec, request.options)
        if scripts := unspeakable_scripts(request.text):
            raise PlanError("unsupported_script", f"cannot speak {', '.join(scripts)}", "text")
        if "plancrash" in request.text:
            raise RuntimeError("a bug in a model")
        if not any(one.isalnum() for one in request.text):
            raise PlanError("empty_text", "nothing to speak", "text")
        return FakePlan(request.text, request.is_text_final)

    def open_stream(
        self,
        plan: Any,
        *,
        seed: int,
        asked_s: float,
        play_from_s: float | None = None,
        is_paced: bool = True,
    ) -> StreamId:
        with self._changed:
            if self._is_stopped:
                raise EngineStoppedError("the engine was stopped")
            stream = FakeStream(
                stream_id=StreamId(next(self._ids)),
                plan=plan,
                seed=seed,
                asked_s=asked_s,
                play_from_s=play_from_s,
                is_paced=is_paced,
                pcm=self.tone(plan.text) if plan.is_text_final else np.zeros(0, np.float32),
                text=plan.text,
                is_text_final=plan.is_text_final,
            )
            self.streams.append(stream)
            self._changed.notify_all()
            return stream.stream_id

    def extend_text(self, stream_id: StreamId, plan: Any, text: str, *, is_final: bool) -> None:
        with self._changed:
            stream = self._stream(stream_id)
            stream.text += text
            if is_final:
                stream.is_text_final = True
                stream.pcm = self.tone(stream.text)
            self._changed.notify_all()

    def report_playout(self, stream_id: StreamId, heard_s: float, at_s: float) -> None:
        self._stream(stream_id).playout.append((heard_s, at_s))

    def set_paused(self, stream_id: StreamId, *, is_paused: bool) -> None:
        with self._changed:
            stream = self._stream(stream_id)
            stream.is_paused = is_paused
            stream.pauses.append(is_paused)
            self._changed.notify_all()

    def abort(self, stream_id: StreamId) -> None:
        with self._changed:
            self._stream(stream_id).is_aborted = True
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        return EngineStats(
            is_ready=self.is_ready,
            is_alive=not self.failure,
            failure=self.failure,
            n_active=self.n_open,
            n_finished=sum(stream.is_over for stream in self.streams),
        )

    @property
    def histograms(self) -> dict[str, Histogram]:
        return {}

    # The test's side.

    @property
    def n_open(self) -> int:
        """Streams that have not ended."""
        return sum(not stream.is_over for stream in self.streams)

    def tone(self, text: str) -> Pcm:
        """What a text sounds like."""
        return tone(text, rate_hz=self._spec.frame.sample_rate_hz)

    def step(self) -> bool:
        """One chunk of every stream that may go on. Returns whether there was anything to do."""
        with self._changed:
            events = self._step_locked()
        if events:
            self._sink(events)
        return bool(events)

    def finish(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError("the fake engine did not come to an end")

    def crash(self, message: str = "CUDA error") -> None:
        """End everything, loudly."""
        with self._changed:
            self.failure = message
            self._is_stopped = True
            events: list[EngineEvent] = []
            for stream in self.streams:
                if not stream.is_over:
                    stream.is_over = True
                    events.append(_failed(stream, "engine_stopped", message))
            self._changed.notify_all()
        if events:
            self._sink(events)

    def start(self) -> None:
        """Step by itself, in a thread."""
        self._thread = threading.Thread(target=self._run, name="fake engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_stopped and not any(map(self._can_step, self.streams)):
                    self._changed.wait()
                if self._is_stopped:
                    return
                if self._step_s:
                    self._changed.wait_for(lambda: self._is_stopped, self._step_s)
            self.step()

    def _can_step(self, stream: FakeStream) -> bool:
        if stream.is_over:
            return False
        if stream.is_aborted:
            return True
        return not stream.is_paused and stream.is_text_final and "silent" not in stream.text

    def _step_locked(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        for stream in self.streams:
            if self._can_step(stream):
                self._step_stream(stream, events)
        return events

    def _step_stream(self, stream: FakeStream, events: list[EngineEvent]) -> None:
        if stream.is_aborted:
            events.append(self._finished(stream, "aborted"))
            return
        if "overload" in stream.text:
            stream.is_over = True
            events.append(_failed(stream, "overloaded", "no room", retry_after_s=1.5))
            return
        if not stream.chunk_idx:
            events.append(StreamAdmitted(stream_id=stream.stream_id))
        elif "streamfail" in stream.text:
            stream.is_over = True
            events.append(_failed(stream, "numerical_error", "not a number"))
            return
        pcm = stream.pcm[stream.n_sent : stream.n_sent + self._chunk_samples]
        if "skipchunk" not in stream.text or stream.chunk_idx != 1:
            events.append(
                AudioChunk(stream_id=stream.stream_id, chunk_idx=stream.chunk_idx, pcm=pcm)
            )
        stream.n_sent += len(pcm)
        stream.chunk_idx += 1
        if stream.n_sent >= len(stream.pcm):
            events.append(self._finished(stream, "length" if "toolong" in stream.text else "stop"))

    def _finished(self, stream: FakeStream, reason: Any) -> StreamFinished:
        stream.is_over = True
        return StreamFinished(
            stream_id=stream.stream_id,
            reason=reason,
            n_prompt_rows=1,
            n_frames=stream.n_sent // self._spec.frame.samples_per_frame,
            n_samples=stream.n_sent,
        )

    def _stream(self, stream_id: StreamId) -> FakeStream:
        return next(stream for stream in self.streams if stream.stream_id == stream_id)


def _failed(
    stream: FakeStream, code: str, message: str, retry_after_s: float | None = None
) -> StreamFailed:
    return StreamFailed(
        stream_id=stream.stream_id, code=code, message=message, retry_after_s=retry_after_s
    )
