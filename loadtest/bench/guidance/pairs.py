"""Pairs: a stream and its companion, stepped and merged by the engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.loop import EngineLoop
from engine.types import EngineEvent, OpenStream, StreamFinished, StreamId
from loadtest.bench.guidance.model import SCALE, Size, config_of, prompt_of
from models.bagpiper.config import SPOKEN_ORDER
from models.bagpiper.model import BagpiperModel
from models.bagpiper.prompt import start_state
from models.base import PromptPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Frames a second of each stream: in steps of speech, and over whole answers."""

    in_speech: float
    of_answers: float


class Together:
    """The engine, with or without companions."""

    def __init__(self, model: BagpiperModel, size: Size) -> None:
        self.model, self.size = model, size
        self.n_finished = 0
        self._next_id = 0
        self.loop = EngineLoop(model, config_of(size), self._take, time.monotonic)
        self.loop.warm_up()

    def _take(self, events: Sequence[EngineEvent]) -> None:
        self.n_finished += sum(isinstance(event, StreamFinished) for event in events)

    def measure(self, *, is_guided: bool) -> Rates:
        """Answers of all streams side by side; steps of speech are those with all rows in them."""
        n_rows = 2 * self.size.n_pairs
        n_streams = n_rows // 2 if is_guided else n_rows
        for _ in range(n_streams):
            self._open(SCALE if is_guided else 1.0)
        self.n_finished = 0
        steps_s = []
        begin_s = time.perf_counter()
        while self.n_finished < n_streams:
            n_before = self.loop.metrics.decode_rows.sum
            start_s = time.perf_counter()
            self.loop.step()
            step_s = time.perf_counter() - start_s
            if self.loop.metrics.decode_rows.sum - n_before == n_rows:
                steps_s.append(step_s)
        total_s = time.perf_counter() - begin_s
        return Rates(
            in_speech=1.0 / statistics.median(steps_s), of_answers=self.size.n_frames / total_s
        )

    def _open(self, scale: float) -> None:
        self._next_id += 1
        plan = PromptPlan(
            ids=prompt_of(self.model, self._next_id),
            state=start_state(self.model.spec, SPOKEN_ORDER, n_most=len(SPOKEN_ORDER)),
            max_frames=self.size.n_frames,
            guidance_scale=scale,
        )
        command = OpenStream(
            stream_id=StreamId(self._next_id),
            plan=plan,
            seed=self._next_id,
            asked_s=time.monotonic(),
            is_paced=False,
            wants_pcm=False,
        )
        self.loop.inbox.put(command)
