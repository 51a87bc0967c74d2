"""Values that cross the engine's borders: commands down, events up. No torch, no asyncio.

Commands are immutable and travel through `engine.inbox`; events leave once a step as one list.
Times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NewType

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from models.base import PromptPlan

StreamId = NewType("StreamId", int)
FinishReason = Literal["stop", "length", "aborted"]
Pcm = npt.NDArray[np.float32]


# Commands: gateway to engine.


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Start a stream.

    Args:
        stream_id: given by the handle, never used again.
        plan: what the model made of the request (opaque here).
        seed: of the stream's random draws.
        asked_s: when the caller began to wait (TTFA counts from here).
        play_from_s: None: the first chunk is wanted at once (startup phase). Otherwise the client
            plays earlier audio until then, and the stream starts as a steady one with that deadline
            (the later sentences of one reply).
        is_paced: False: nobody listens while it is made (a file is written). The stream has no
            deadline, is never left out for being ahead, and yields to streams that are listened to.
        wants_pcm: False asks for text output only.
    """

    stream_id: StreamId
    plan: PromptPlan
    seed: int
    asked_s: float
    play_from_s: float | None = None
    is_paced: bool = True
    wants_pcm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendText:
    """More streamed text ids for a stream; `is_final` ends its text."""

    stream_id: StreamId
    ids: tuple[int, ...]
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlayout:
    """The client has heard `heard_s` seconds of the stream at `at_s`: corrects its slack."""

    stream_id: StreamId
    heard_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPaused:
    """Leave a stream out of the plan (its client reads too slowly), or take it in again."""

    stream_id: StreamId
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortStream:
    """End a stream now; it is freed at the next drain and answers with `StreamFinished`."""

    stream_id: StreamId


Command = OpenStream | ExtendText | ReportPlayout | SetPaused | AbortStream


# Events: engine to gateway.


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamQueued:
    """The stream waits for admission behind `n_ahead` others."""

    stream_id: StreamId
    n_ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAdmitted:
    """The stream holds a slot and its prompt is being run."""

    stream_id: StreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioChunk:
    """PCM of one chunk, float32 mono in [-1, 1] at the model's sample rate; may be empty.

    `chunk_idx` counts from 0.
    """

    stream_id: StreamId
    chunk_idx: int
    pcm: Pcm


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Newly generated text of a stream."""

    stream_id: StreamId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFinished:
    """The stream ended and is freed. Always the last event of a stream that did not fail.

    `length` means that the cap on frames cut it. `rows` `(T, K)`, of a model that keeps turns: the
    prompt and what was drawn after it, from which a later stream may go on.
    """

    stream_id: StreamId
    reason: FinishReason
    n_prompt_rows: int
    n_frames: int
    n_samples: int
    rows: npt.NDArray[np.int64] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFailed:
    """The stream ended by a fault of its own, or by the engine's end; it is freed.

    `code` is stable: `overloaded` (refused; `retry_after_s` is set), `prompt_too_long`,
    `model_error`, `numerical_error`, `engine_stopped`.
    """

    stream_id: StreamId
    code: str
    message: str
    retry_after_s: float | None = None


EngineEvent = StreamQueued | StreamAdmitted | AudioChunk | TextDelta | StreamFinished | StreamFailed
EventSink = Callable[[Sequence[EngineEvent]], None]
"""Called once a step, on the engine thread, with at least one event. Must not block or raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot for metrics and readiness; written by the engine thread, read by any.

    Commands are those that wait in the inbox when the snapshot is asked for. Cached pages, which
    the prefix cache holds, are among the used ones.
    """

    is_ready: bool = False
    is_alive: bool = True
    failure: str = ""
    n_steps: int = 0
    n_active: int = 0
    n_queued: int = 0
    n_pages_used: int = 0
    n_pages: int = 0
    n_pages_cached: int = 0
    n_slots_used: int = 0
    n_slots: int = 0
    last_step_s: float = 0.0
    last_step_ms: float = 0.0
    n_refused: int = 0
    n_failed: int = 0
    n_finished: int = 0
    n_aborted: int = 0
    n_gave_way: int = 0
    n_late_chunks: int = 0
    n_frames: int = 0
    n_samples: int = 0
    n_commands: int = 0
