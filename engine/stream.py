"""The engine's record of one stream (a StreamGroup: one sequence, or two when guided). No torch.

Plain state that the loop writes and the policy reads; engine thread only. What follows from time is
in `engine.deadlines`, what follows from the codec in `engine.chunks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.kv_pages import PageTable
from engine.types import FinishReason, StreamId


@dataclass(slots=True, kw_only=True)
class Stream:
    """One generation, from admission to its last event.

    Args:
        stream_id: given by the handle.
        asked_s: when the caller began to wait.
        max_frames: cap on generated frames.
        n_prompt_rows: prompt rows of each sequence; the companion's, if any, is second. A lazily
            created companion is appended at phase entry.
        slot: row index in the device tensors.
        sequences: pages of each sequence.
        n_prefilled: prompt rows of each sequence that have been run (or came from the cache).
        play_from_s: for a later part of a reply: earlier audio plays until then.
        is_paced: somebody listens while it is made, and it must keep up; False: it has no deadline.
        wants_pcm: False for text output only; then there are no chunks.
        phase_idx: the model's phase.
        is_guided: the present phase is guided: a decode step takes two rows.
        n_rows: rows generated, launched ones included.
        n_rows_in_flight: of these, rows whose results have not been collected.
        n_void_rows: rows in flight that count for nothing (`engine.in_flight`).
        n_blind_rows: rows in flight that were launched before the newest text came.
        n_chunks_in_flight: detokenizer calls whose audio has not been collected.
        frames_ready: frames generated.
        frames_decoded: frames handed to the detokenizer, launched calls included.
        is_flushed: the last chunk was handed to the detokenizer.
        chunk_idx: index of the next chunk.
        samples_sent: PCM samples published.
        sent_s: the same in seconds.
        first_sent_s: when the first audio (or text, without PCM) was published.
        playout_offset_s: how much later than assumed the client plays: underruns and reports.
        held_s: sent audio that may not have left the gateway: chunks are due so much earlier.
        n_late_chunks: chunks that came after they were due.
        late_s: sum of their lateness.
        is_paused: the client reads too slowly; left out of the plan.
        paused_since_s: since when.
        is_starved: waits for streamed text; left out of decoding.
        is_generation_done: no more rows will be generated.
        finish_reason: why generation ended.
    """

    stream_id: StreamId
    asked_s: float
    max_frames: int
    n_prompt_rows: list[int]
    slot: int = -1
    sequences: list[PageTable] = field(default_factory=list)
    n_prefilled: list[int] = field(default_factory=list)
    play_from_s: float | None = None
    is_paced: bool = True
    wants_pcm: bool = True
    phase_idx: int = 0
    is_guided: bool = False
    n_rows: int = 0
    n_rows_in_flight: int = 0
    n_void_rows: int = 0
    n_blind_rows: int = 0
    n_chunks_in_flight: int = 0
    frames_ready: int = 0
    frames_decoded: int = 0
    is_flushed: bool = False
    chunk_idx: int = 0
    samples_sent: int = 0
    sent_s: float = 0.0
    first_sent_s: float | None = None
    playout_offset_s: float = 0.0
    held_s: float = 0.0
    n_late_chunks: int = 0
    late_s: float = 0.0
    is_paused: bool = False
    paused_since_s: float = 0.0
    is_starved: bool = False
    is_generation_done: bool = False
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        """Start every sequence with nothing prefilled and no page, unless given."""
        if not self.n_prefilled:
            self.n_prefilled = [0] * len(self.n_prompt_rows)
        if not self.sequences:
            self.sequences = [PageTable() for _ in self.n_prompt_rows]

    @property
    def prefill_left(self) -> list[int]:
        """Prompt rows of each sequence that have not been run."""
        return [total - n for total, n in zip(self.n_prompt_rows, self.n_prefilled, strict=True)]

    @property
    def is_prefilled(self) -> bool:
        """Every sequence has run its prompt."""
        return self.n_prefilled == self.n_prompt_rows

    @property
    def can_prefill(self) -> bool:
        """There are prompt rows to run and the stream is not left out."""
        return not (self.is_prefilled or self.is_generation_done or self.is_paused)

    @property
    def can_decode(self) -> bool:
        """The stream can generate a row now."""
        is_held = self.is_paused or self.is_starved or self.is_generation_done
        return self.is_prefilled and not is_held

    @property
    def is_in_flight(self) -> bool:
        """A launched step that has not been collected works for it."""
        return self.n_rows_in_flight > 0 or self.n_chunks_in_flight > 0

    @property
    def n_step_rows(self) -> int:
        """LM rows that one decode step of this stream takes."""
        return 2 if self.is_guided else 1

    @property
    def frames_waiting(self) -> int:
        """Frames that were generated and not handed to the detokenizer."""
        return self.frames_ready - self.frames_decoded
