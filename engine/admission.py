"""Who may start: a bounded queue before the engine's slots, pages and time. No torch, no clock.

A stream is admitted when the measured step cost says that all admitted streams keep their
deadlines; until then it waits in order; when the wait would be too long it is refused at once, with
a hint when to come back. So overload costs the refused, not those who already listen.

Where slots or pages are short, a stream that nobody hears gives way to one that somebody waits for,
and waits for room in its turn. A stream that plays never does: it is ahead by `lead_s` at most, and
whoever took its place would stay for longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine import deadlines
from engine.calls import MOST
from engine.config import Limits
from engine.costs import StepCosts
from engine.stream import Stream
from engine.types import StreamId

KEPT_SHARE = 8
"""One slot in so many is kept for the next parts of replies that play."""
CODEC_SHARE = 0.5
"""Part of its time that the detokenizer has for the chunks of streams that play. The rest goes to
first sounds, calls that are not full, and rows."""
LIFE_SHARE = 0.05
"""Weight of one ended stream in the running average of how long streams stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a waiting stream will need.

    Args:
        stream_id: given by the handle.
        asked_s: when the caller began to wait.
        n_prompt_rows: prompt rows of all sequences.
        n_pages: KV pages of the worst case, prompt and all rows to the limit, all sequences.
        n_step_rows: LM rows of one decode step (2 if ever guided).
        is_continuation: a later part of a reply that already plays: goes before new ones, and the
            place in time that the part before it gives up is its own.
        is_awaited: somebody listens for it.
        is_back: it gave way before; it is never refused.
    """

    stream_id: StreamId
    asked_s: float
    n_prompt_rows: int
    n_pages: int
    n_step_rows: int = 1
    is_continuation: bool = False
    is_awaited: bool = True
    is_back: bool = False

    @property
    def rank(self) -> int:
        """Its place in the queue, among others of the same rank by age."""
        if self.is_continuation:
            return 0
        if self.is_awaited:
            return 1
        return 2 if self.is_back else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Giver:
    """A stream that can give way: a slot, and `n_pages` pages, would be free without it."""

    stream_id: StreamId
    n_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A stream that will not be served. `retry_after_s` is None where asking again is no use."""

    stream_id: StreamId
    code: str
    message: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Decisions of one review. Streams in none of the lists stay where they are.

    Those in `gave_way` make the room that the admitted ones take.
    """

    gave_way: tuple[StreamId, ...] = ()
    admitted: tuple[StreamId, ...] = ()
    refused: tuple[Refusal, ...] = ()


class Admission:
    """The queue. Engine thread only.

    Args:
        limits: engine settings and the model's pace.
        n_pages: pages that the pool has when nothing is used.
    """

    def __init__(self, limits: Limits, n_pages: int) -> None:
        self._limits = limits
        self._n_pages = n_pages
        self._queue: list[tuple[Demand, float]] = []
        self._admitted_s: dict[StreamId, float] = {}
        self._mean_life_s: float | None = None

    @property
    def n_queued(self) -> int:
        """Streams that wait."""
        return len(self._queue)

    def n_ahead(self, stream_id: StreamId) -> int | None:
        """Streams that wait before this one; None if it does not wait."""
        for idx, (demand, _) in enumerate(self._queue):
            if demand.stream_id == stream_id:
                return idx
        return None

    def offer(self, demand: Demand, now_s: float) -> None:
        """Put a stream in the queue; the next review decides about it."""
        assert self.n_ahead(demand.stream_id) is None, "a stream is offered once"
        at = sum(waiting.rank <= demand.rank for waiting, _ in self._queue)
        self._queue.insert(at, (demand, now_s))

    def cancel(self, stream_id: StreamId) -> bool:
        """Take a stream out of the queue; False if it does not wait."""
        idx = self.n_ahead(stream_id)
        if idx is None:
            return False
        del self._queue[idx]
        return True

    def review(
        self,
        now_s: float,
        active: Sequence[Stream],
        costs: StepCosts,
        n_free_slots: int,
        n_free_pages: int,
        givers: Sequence[Giver] = (),
    ) -> Review:
        """Admit in order while time, slots and pages last; refuse whoever would wait too long.

        Wanted in each step, also while nobody waits: streams that end are seen here, and how long
        they stayed decides who would wait too long.

        Args:
            now_s: monotonic clock.
            active: admitted streams.
            costs: measured step costs.
            n_free_slots: slots that can be allocated.
            n_free_pages: pages that can be allocated.
            givers: streams that can give way, in the order in which they should.
        """
        self._note_ended(now_s, active)
        if not self._queue:
            return Review()
        refused = self._refuse_impossible()
        admitted: list[StreamId] = []
        gave_way: list[StreamId] = []
        running = [(s.n_step_rows, s.is_paced) for s in active if not s.is_generation_done]
        has_deadlines = self._limits.config.policy == "latency"
        n_kept = self._n_kept_slots() if active else 0
        is_behind = has_deadlines and self._is_behind(active, now_s, costs)
        left = list(givers) if has_deadlines else []
        while self._queue:
            demand = self._queue[0][0]
            # Rows that nobody waits for are left out where they would make a listener's late.
            n_rows = [n for n, is_paced in running if is_paced or not demand.is_awaited]
            load = self.predicted_load([*n_rows, demand.n_step_rows], demand, costs)
            is_over = is_behind or (has_deadlines and load > self._limits.config.target_load)
            if n_rows and is_over and not demand.is_continuation:
                break
            n_least = 1 if demand.is_continuation else 1 + n_kept
            giving = _givers_for(demand, left, n_least - n_free_slots, n_free_pages)
            if giving is None:
                break
            del self._queue[0], left[: len(giving)]
            gave_way += (giver.stream_id for giver in giving)
            admitted.append(demand.stream_id)
            self._admitted_s[demand.stream_id] = now_s
            running.append((demand.n_step_rows, demand.is_awaited))
            n_free_slots += len(giving) - 1
            n_free_pages += sum(giver.n_pages for giver in giving) - demand.n_pages
        for stream_id in gave_way:
            self._admitted_s.pop(stream_id, None)
        refused += self._refuse_late(now_s, len(running))
        return Review(gave_way=tuple(gave_way), admitted=tuple(admitted), refused=tuple(refused))

    def predicted_load(self, n_step_rows: Sequence[int], demand: Demand, costs: StepCosts) -> float:
        """Share of real time that these streams take, with the new ones that follow them.

        Args:
            n_step_rows: LM rows of each stream in a step.
            demand: a typical newcomer, for the prompts that go on arriving.
            costs: measured step costs.
        """
        codec, frame_s = self._limits.codec, self._limits.frame_s
        decode = costs.step_s(sum(n_step_rows), 0) / self._limits.row_s
        prefill = self._turnover_hz(len(n_step_rows)) * costs.step_s(0, demand.n_prompt_rows)
        size = codec.chunk_frames[-1]
        n_streams = len(n_step_rows)
        n_call = min(n_streams, costs.n_full_call(size), codec.max_batch)
        calls_hz = n_streams / n_call / (size * frame_s)
        return costs.both_s(decode + prefill, calls_hz * costs.chunk_s(n_call, size))

    def _n_kept_slots(self) -> int:
        """Slots that newcomers leave free while others play.

        A part of a reply ends some steps before the gateway opens the next: a newcomer that takes
        its slot meanwhile makes the listener wait for another stream to end, seconds of silence.
        """
        config = self._limits.config
        has_room = config.policy == "latency" and config.max_streams > 2
        return -(-config.max_streams // KEPT_SHARE) if has_room else 0

    def _is_behind(self, active: Sequence[Stream], now_s: float, costs: StepCosts) -> bool:
        """More is promised than is kept. The prediction can be wrong; this cannot."""
        has_lost_lead = any(self._has_lost_lead(stream, now_s) for stream in active)
        return has_lost_lead or self._is_codec_behind(active, now_s, costs)

    def _has_lost_lead(self, stream: Stream, now_s: float) -> bool:
        """A stream that has long played runs low. Young ones have no lead yet and say nothing."""
        config = self._limits.config
        if not stream.can_decode or not stream.wants_pcm or stream.sent_s < config.lead_s / 2:
            return False
        slack_s = deadlines.generated_slack_s(stream, now_s, self._limits.frame_s)
        return slack_s < config.urgent_s

    def _is_codec_behind(self, active: Sequence[Stream], now_s: float, costs: StepCosts) -> bool:
        """The detokenizer alone, with the rest of its time left over, could not keep all deadlines.

        Each stream is due a largest chunk in a full call, earliest deadline first, after the first
        sounds that are owed.
        """
        codec = self._limits.codec
        size = codec.chunk_frames[-1]
        n_call = min(MOST * costs.n_full_call(size), codec.max_batch)
        each_s = costs.chunk_s(n_call, size) / (n_call * CODEC_SHARE)
        heard = [
            stream
            for stream in active
            if stream.is_paced and stream.wants_pcm and not stream.is_paused
            if stream.frames_waiting or stream.can_decode or stream.can_prefill
        ]
        n_silent = sum(deadlines.is_startup(stream) for stream in heard)
        ends_s = now_s + n_silent * costs.chunk_s(1, codec.chunk_frames[0])
        playing = [stream for stream in heard if not deadlines.is_startup(stream)]
        for due_s in sorted(deadlines.next_chunk_deadline(stream) for stream in playing):
            ends_s += each_s
            if due_s < ends_s:
                return True
        return False

    def _note_ended(self, now_s: float, active: Sequence[Stream]) -> None:
        """Learn how long streams stay."""
        present = {stream.stream_id for stream in active}
        for stream_id in [i for i in self._admitted_s if i not in present]:
            life_s = now_s - self._admitted_s.pop(stream_id)
            mean_s = life_s if self._mean_life_s is None else self._mean_life_s
            self._mean_life_s = mean_s + LIFE_SHARE * (life_s - mean_s)

    def _turnover_hz(self, n_streams: int) -> float:
        """Streams that end, and make room, in a second; 0 if that is not known yet."""
        return n_streams / self._mean_life_s if self._mean_life_s else 0.0

    def _refuse_impossible(self) -> list[Refusal]:
        refused = [d for d, _ in self._queue if d.n_pages > self._n_pages]
        self._queue = [entry for entry in self._queue if entry[0].n_pages <= self._n_pages]
        return [
            Refusal(
                stream_id=demand.stream_id,
                code="prompt_too_long",
                message=f"needs {demand.n_pages} KV pages, the engine has {self._n_pages}; "
                "shorten it, or let the server have more memory",
                retry_after_s=None,
            )
            for demand in refused
        ]

    def _refuse_late(self, now_s: float, n_active: int) -> list[Refusal]:
        """Refuse those beyond the queue's length, and those whose turn would come too late."""
        config = self._limits.config
        rate_hz = self._turnover_hz(n_active)
        kept: list[tuple[Demand, float]] = []
        refused: list[Refusal] = []
        n_new = 0
        for demand, offered_s in self._queue:
            waited_s = max(0.0, now_s - offered_s)
            wait_s = (len(kept) + 1) / rate_hz if rate_hz > 0 else 0.0
            is_late = waited_s > config.queue_timeout_s or wait_s > config.queue_timeout_s
            if demand.is_back or (n_new < config.max_queue and not is_late):
                kept.append((demand, offered_s))
                n_new += not demand.is_back
                continue
            refused.append(
                Refusal(
                    stream_id=demand.stream_id,
                    code="overloaded",
                    message=f"no room after {waited_s:.1f} s; {len(kept)} streams wait before it",
                    retry_after_s=min(max(wait_s, 1.0), 60.0),
                )
            )
        self._queue = kept
        return refused


def can_give_way(stream: Stream, now_s: float, patience_s: float) -> bool:
    """Nobody hears it now: it is not paced, or its client has read nothing for `patience_s`."""
    is_stalled = stream.is_paused and now_s - stream.paused_since_s >= patience_s
    return is_stalled or not stream.is_paced


def _givers_for(
    demand: Demand, givers: Sequence[Giver], n_slots: int, n_free_pages: int
) -> list[Giver] | None:
    """The first of `givers`, as many as make room for a stream; None if there is none for it.

    `n_slots` more slots are wanted than are free. Only a stream that somebody waits for takes room.
    """
    giving: list[Giver] = []
    for giver in givers if demand.is_awaited else ():
        if n_slots <= len(giving) and demand.n_pages <= n_free_pages:
            break
        giving.append(giver)
        n_free_pages += giver.n_pages
    has_room = n_slots <= len(giving) and demand.n_pages <= n_free_pages
    return giving if has_room else None
