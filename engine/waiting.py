"""Streams that wait for a slot and pages: new ones, and those that gave way. Engine thread.

Who starts is `engine.admission`'s to say; here the groups are kept meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.admission import Admission, Giver, can_give_way
from engine.config import Limits
from engine.costs import StepCosts
from engine.groups import Groups, StreamGroup
from engine.types import StreamFailed, StreamId, StreamQueued


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a review decided, in the order in which it is to be done."""

    gave_way: tuple[StreamGroup, ...] = ()
    admitted: tuple[StreamGroup, ...] = ()
    refused: tuple[StreamFailed, ...] = ()


class WaitingRoom:
    """The groups that hold no memory, and the queue that most of them stand in.

    One that gave way because its client stalled stands in no queue until the client reads again.

    Args:
        limits: engine settings and the model's pace.
        groups: says what each will need.
    """

    def __init__(self, limits: Limits, groups: Groups) -> None:
        self._limits = limits
        self._groups = groups
        self._admission = Admission(limits, groups.pages.n_free)
        self._waiting: dict[StreamId, StreamGroup] = {}

    @property
    def n_queued(self) -> int:
        """Streams in the queue."""
        return self._admission.n_queued

    def get(self, stream_id: StreamId) -> StreamGroup | None:
        """A group that waits."""
        return self._waiting.get(stream_id)

    def add(self, group: StreamGroup, now_s: float) -> None:
        """Take a new group in, or one that gave way."""
        self._waiting[group.stream.stream_id] = group
        if group.kept is None or not group.stream.is_paused:
            self._admission.offer(self._groups.demand(group), now_s)

    def remove(self, stream_id: StreamId) -> bool:
        """Let a group go that waits no longer; False if it does not wait."""
        self._admission.cancel(stream_id)
        return self._waiting.pop(stream_id, None) is not None

    def set_paused(self, group: StreamGroup, now_s: float) -> None:
        """The client of a group has stalled, or reads again."""
        if group.kept is not None:
            self._admission.cancel(group.stream.stream_id)
            self.add(group, now_s)

    def clear(self) -> None:
        """Forget everybody: the engine has ended."""
        self._waiting.clear()

    def review(
        self, now_s: float, active: Mapping[StreamId, StreamGroup], costs: StepCosts
    ) -> Changes:
        """Who starts now, who gives way for them, and who is refused; they wait no longer."""
        slots, pages = self._groups.slots, self._groups.pages
        made = self._admission.review(
            now_s,
            [group.stream for group in active.values()],
            costs,
            slots.n_free,
            pages.n_free,
            self._givers(now_s, active) if self.n_queued else (),
        )
        for refusal in made.refused:
            del self._waiting[refusal.stream_id]
        return Changes(
            gave_way=tuple(active[stream_id] for stream_id in made.gave_way),
            admitted=tuple(self._waiting.pop(stream_id) for stream_id in made.admitted),
            refused=tuple(
                StreamFailed(
                    stream_id=refusal.stream_id,
                    code=refusal.code,
                    message=refusal.message,
                    retry_after_s=refusal.retry_after_s,
                )
                for refusal in made.refused
            ),
        )

    def newly_queued(self) -> list[StreamQueued]:
        """What to tell streams that wait and did not before."""
        told = []
        for stream_id, group in self._waiting.items():
            if not group.is_queue_told:
                group.is_queue_told = True
                n_ahead = self._admission.n_ahead(stream_id)
                told.append(StreamQueued(stream_id=stream_id, n_ahead=n_ahead or 0))
        return told

    def _givers(self, now_s: float, active: Mapping[StreamId, StreamGroup]) -> list[Giver]:
        """Those that can give way: the stalled first, then whoever has least to run again."""
        patience_s = self._limits.config.patience_s
        groups = [g for g in active.values() if can_give_way(g.stream, now_s, patience_s)]
        groups.sort(key=lambda g: (not g.stream.is_paused, g.prompts[0].n_given + g.n_fed))
        return [
            Giver(stream_id=group.stream.stream_id, n_pages=self._groups.n_pages_alone(group))
            for group in groups
        ]
