"""The engine's thread-safe door: the only thing of the engine that the gateway holds.

Every method may be called from any thread and returns at once; `plan` alone takes time (tokenizing,
encoders) and belongs in a worker thread. Answers come as events through the sink given at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from engine.histogram import Histogram
from engine.types import EngineStats, StreamId
from models.spec import ModelSpec, PlanRequest

if TYPE_CHECKING:
    from models.base import PromptPlan


class EngineHandle(Protocol):
    """What a caller may ask of a running engine (one model)."""

    @property
    def spec(self) -> ModelSpec:
        """The model's facts."""
        ...

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt of a request. Blocking; any thread. Raises: `PlanError`."""
        ...

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
        ...

    def extend_text(
        self, stream_id: StreamId, plan: PromptPlan, text: str, *, is_final: bool
    ) -> None:
        """Give a streamed-text model more text."""
        ...

    def report_playout(self, stream_id: StreamId, heard_s: float, at_s: float) -> None:
        """Tell how much of a stream the client has heard."""
        ...

    def set_paused(self, stream_id: StreamId, *, is_paused: bool) -> None:
        """Leave a stream out while its client is too slow, or take it in again."""
        ...

    def abort(self, stream_id: StreamId) -> None:
        """End a stream within one step. Unknown or ended streams are ignored."""
        ...

    def stats(self) -> EngineStats:
        """The latest snapshot."""
        ...

    @property
    def histograms(self) -> Mapping[str, Histogram]:
        """Distributions since the start by their names; the engine thread goes on writing them."""
        ...
