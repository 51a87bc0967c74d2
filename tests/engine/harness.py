"""What engine tests share: a clock that only moves when told, and a loop with its events sorted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from engine.config import EngineConfig
from engine.costs import CostLine, StepCosts
from engine.loop import EngineLoop
from engine.types import (
    AbortStream,
    AudioChunk,
    EngineEvent,
    ExtendText,
    OpenStream,
    SetPaused,
    StreamFailed,
    StreamFinished,
    StreamId,
    TextDelta,
)
from models.base import Advance, PromptPlan, SpeechModel, TextFeed
from models.spec import OptionValue, PlanRequest, SamplingParams
from models.toy.catalogue import TOYS

CONFIG = EngineConfig(
    max_streams=8,
    max_batch_rows=64,
    prefill_rows_per_step=64,
    lead_s=1000.0,
    queue_timeout_s=1000.0,
)
"""On a clock that hardly moves no stream is left out for being ahead, or refused for waiting."""

ONE_SLOT = replace(CONFIG, max_streams=1, prefill_rows_per_step=20, page_size=8)
"""Whoever is waited for takes the place of a file; its rows come back in pieces."""

TEXTS = ("hello", "a longer sentence, spoken", "no", "three words here")


class FakeClock:
    """Monotonic seconds that move when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def load_toy(name: str) -> SpeechModel:
    return TOYS[name][1]()


def make_plan(
    model: SpeechModel,
    text: str = "hello",
    *,
    is_greedy: bool = False,
    is_text_final: bool = True,
    **options: OptionValue,
) -> PromptPlan:
    audio = np.sin(np.arange(4000, dtype=np.float32)) if model.spec.takes_audio else None
    request = PlanRequest(
        text=text,
        options=options,
        audio=audio,
        audio_rate_hz=16_000 if audio is not None else None,
        is_text_final=is_text_final,
    )
    plan = model.plan(request)
    return greedy(model, plan) if is_greedy else plan


def greedy(model: SpeechModel, plan: PromptPlan) -> PromptPlan:
    names = [column.name for column in model.spec.columns]
    return replace(plan, sampling=dict.fromkeys(names, SamplingParams(temperature=0.0)))


class TickingClock(FakeClock):
    """Every look at it takes a millisecond."""

    def __call__(self) -> float:
        self.now_s += 1e-3
        return self.now_s


class FreeCosts(StepCosts):
    """Nothing takes time on a clock that stands still: slots and pages alone decide admission."""

    def __init__(self) -> None:
        super().__init__()
        self.decode, self.prefill, self.chunk = (CostLine(1e-9, 1e-9) for _ in range(3))

    def observe_step(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """Learn nothing."""

    def observe_chunk(self, n_streams: int, n_frames: int, seconds: float) -> None:
        """Learn nothing."""


class Engine:
    """A loop stepped by hand."""

    def __init__(
        self, model: SpeechModel, config: EngineConfig = CONFIG, clock: FakeClock | None = None
    ) -> None:
        self.model = model
        self.clock = clock or FakeClock()
        self.events: list[EngineEvent] = []
        self.n_publishes = 0
        self.loop = EngineLoop(model, config, self._take, self.clock)
        self.loop.costs = FreeCosts()
        self._ids = itertools.count(1)

    def _take(self, events: Sequence[EngineEvent]) -> None:
        assert events, "a step without events publishes nothing"
        self.n_publishes += 1
        self.events += events

    def open(
        self,
        plan: PromptPlan,
        *,
        seed: int = 0,
        play_from_s: float | None = None,
        is_paced: bool = True,
    ) -> StreamId:
        stream_id = StreamId(next(self._ids))
        has_codec = any(phase.feeds_codec for phase in self.model.spec.phases)
        self.loop.inbox.put(
            OpenStream(
                stream_id=stream_id,
                plan=plan,
                seed=seed,
                asked_s=self.clock.now_s,
                play_from_s=play_from_s,
                is_paced=is_paced,
                wants_pcm=has_codec,
            )
        )
        return stream_id

    def abort(self, stream_id: StreamId) -> None:
        self.loop.inbox.put(AbortStream(stream_id=stream_id))

    def pause(self, stream_id: StreamId, *, is_paused: bool) -> None:
        self.loop.inbox.put(SetPaused(stream_id=stream_id, is_paused=is_paused))

    def extend(self, stream_id: StreamId, ids: Sequence[int], *, is_final: bool) -> None:
        self.loop.inbox.put(ExtendText(stream_id=stream_id, ids=tuple(ids), is_final=is_final))

    def step(self) -> float | None:
        """One step; the clock moves on by what it cost or by how long the engine would sleep."""
        wanted_in_s = self.loop.step()
        self.clock.advance(max(wanted_in_s or 0.0, 1e-3))
        return wanted_in_s

    def run(self, *, n_most: int = 5000, until: Callable[[], bool] | None = None) -> int:
        """Step until nothing is left to do (or `until`); the number of steps."""
        for n in range(n_most):
            if until is not None and until():
                return n
            if self.step() is None and self.loop.stats.n_queued == 0:
                return n
        raise AssertionError(f"not done after {n_most} steps: {self.loop.stats}")

    def run_with_breaks(self, after: Sequence[int], plan: PromptPlan) -> list[StreamId]:
        """Run to the end; so many steps apart a stream of `plan` is waited for, and is heard."""
        ids = []
        for n_steps in after:
            for _ in range(n_steps):
                self.step()
            ids.append(self.open(plan, seed=9))
            self.run(until=lambda: any(isinstance(e, StreamFinished) for e in self.of(ids[-1])))
        self.run()
        return ids

    def speak(self, plans: Sequence[PromptPlan], seeds: Sequence[int]) -> list[np.ndarray]:
        """PCM of streams that run together to their end."""
        ids = [self.open(plan, seed=seed) for plan, seed in zip(plans, seeds, strict=True)]
        self.run()
        return [self.pcm(stream_id) for stream_id in ids]

    def of(self, stream_id: StreamId) -> list[EngineEvent]:
        return [event for event in self.events if event.stream_id == stream_id]

    def chunks(self, stream_id: StreamId) -> list[AudioChunk]:
        return [event for event in self.of(stream_id) if isinstance(event, AudioChunk)]

    def pcm(self, stream_id: StreamId) -> np.ndarray:
        parts = [chunk.pcm for chunk in self.chunks(stream_id)]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts])

    def text(self, stream_id: StreamId) -> str:
        return "".join(e.text for e in self.of(stream_id) if isinstance(e, TextDelta))

    def finished(self, stream_id: StreamId) -> StreamFinished:
        last = self.of(stream_id)[-1]
        assert isinstance(last, StreamFinished), last
        return last

    def failed(self, stream_id: StreamId) -> StreamFailed:
        last = self.of(stream_id)[-1]
        assert isinstance(last, StreamFailed), last
        return last

    def check_is_empty(self) -> None:
        """No stream holds anything; the prefix cache may keep pages."""
        self.loop.check()
        stats = self.loop.stats
        assert (stats.n_active, stats.n_queued, stats.n_slots_used) == (0, 0, 0)
        assert stats.n_pages_used == self.loop.n_cached_pages

    def check_each_ended_once(self, ids: Sequence[StreamId]) -> None:
        for stream_id in ids:
            ends = [e for e in self.of(stream_id) if isinstance(e, StreamFinished | StreamFailed)]
            assert len(ends) == 1, f"stream {stream_id} ended {len(ends)} times"
            assert self.of(stream_id)[-1] is ends[0], "something follows the end"


def check_giving_way(model: SpeechModel, plan: PromptPlan, *, n_frames: int = 24) -> None:
    """Greedy and drawn, a stream that gives way three times sounds as it does alone."""
    plan = replace(plan, max_frames=n_frames)
    engine = Engine(model, ONE_SLOT)
    for seed, one in enumerate((greedy(model, plan), replace(plan, sampling={}))):
        (alone,) = engine.speak([one], seeds=[seed])
        stream_id = engine.open(one, seed=seed, is_paced=False)
        engine.run_with_breaks((2, 20, 3), replace(one, max_frames=1))
        assert engine.loop.metrics.n_gave_way == 3 * (seed + 1)
        assert len(alone) > 0
        # Chunks of other sizes are rounded in another order; another code is another sound.
        np.testing.assert_allclose(engine.pcm(stream_id), alone, rtol=0, atol=1e-4)
    engine.check_is_empty()


def let_it_end(
    monkeypatch: pytest.MonkeyPatch, model: SpeechModel, end: Tensor, n_rows: int
) -> None:
    """After so many rows of a stream that is alone, `end` (K,) is what the model draws."""
    advance, rows = model.advance, itertools.count()

    def ending(state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        return advance(state, end.expand_as(ids) if next(rows) == n_rows else ids, feed)

    monkeypatch.setattr(model, "advance", ending)
