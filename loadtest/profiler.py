"""Measures a model on this machine, for the simulator: what each kind of work costs, and overlaps.

Two sources, both the engine's own: its warm-up, which runs every size of every call, made several
times; and streams that speak, for how far the parts of a step hide each other, how much times vary,
and how long speech is. Knows the engine, unlike the rest of the load generator.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.config import EngineConfig
from engine.costs import CostLine, Sample, StepCosts
from engine.device import load_on
from engine.loop import EngineLoop
from engine.types import EngineEvent, OpenStream, StreamFinished, StreamId
from loadtest.traffic.texts import texts
from models.errors import ModelError
from models.spec import ModelSpec, PlanRequest

N_WARM_UPS: Final = 7
MAX_NOISE: Final = 0.5
NORMAL: Final = 1.4826
"""Standard deviation of a normal distribution for each unit of its median absolute deviation."""
MS: Final = 1000.0
Tick = Callable[[], None]


class UnmeasurableError(Exception):
    """A model that cannot be measured. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostMs:
    """Milliseconds of a call of `n` units: `fixed + each * n`."""

    fixed: float
    each: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A profile as `loadtest.simulate` reads it; see there for what each field means."""

    about: str
    frame: dict[str, int]
    codec: dict[str, int | list[int]]
    fixed_chunk: dict[str, int]
    decode_ms: CostMs
    prefill_ms: CostMs
    chunk_ms: CostMs
    not_hidden: float
    noise: float
    speech: dict[str, float]
    engine: dict[str, int]


def n_ticks(max_streams: int) -> int:
    """How often `measure` reports progress."""
    return N_WARM_UPS + len(_batches(max_streams))


def measure(name: str, max_streams: int, tick: Tick) -> Measured:
    """Measure a model by its name or folder, with up to `max_streams` at once.

    Raises:
        UnmeasurableError: no such model, its weights are missing, or it does not speak.
    """
    try:
        model = load_on(name)
    except ModelError as error:
        raise UnmeasurableError(str(error)) from error
    if "speak" not in model.spec.tasks:
        raise UnmeasurableError(f"{model.spec.name} does not speak: there is nothing to simulate")
    page_size = EngineConfig().page_size
    pages = math.ceil(model.spec.backbone.max_positions / page_size)
    # Nobody is held back: what is measured is the device, not the policy.
    config = EngineConfig(
        max_streams=max_streams,
        max_batch_rows=max(EngineConfig().max_batch_rows, max_streams),
        n_pages=max_streams * pages,
        max_queue=max_streams,
        policy="throughput",
    )
    costs = Recorder(model.spec.codec.left_context_frames)
    spoken = Spoken()
    loop = EngineLoop(model, config, spoken.take, time.monotonic)
    loop.costs = costs
    for _ in range(N_WARM_UPS):
        loop.warm_up()
        tick()
    return profile_of(loop, config, costs, spoken, _batches(max_streams), tick)


def profile_of(
    loop: EngineLoop,
    config: EngineConfig,
    costs: Recorder,
    spoken: Spoken,
    batches: Sequence[int],
    tick: Tick,
) -> Measured:
    """The profile of a loop that is warm, once it has spoken so many texts at once.

    Args:
        loop: whose costs are `costs`, and whose events reach `spoken`.
        config: of it.
        costs: what the warm-ups have taught it.
        spoken: hears what is said.
        batches: streams at once.
        tick: called after each batch.
    """
    for n_streams in batches:
        _speak(loop, n_streams)
        tick()
    n_pages = config.n_pages or loop.memory.n_pages
    return _profile(loop.model.spec, dataclasses.replace(config, n_pages=n_pages), costs, spoken)


def _batches(max_streams: int) -> list[int]:
    return sorted({1, max(1, max_streams // 2), max_streams})


class _Line(CostLine):
    """A cost line that keeps what it was measured by: seconds, by units."""

    def __init__(self) -> None:
        super().__init__(5e-3, 1e-3)
        self.seconds: dict[int, list[float]] = defaultdict(list)

    def calibrate(self, samples: Sequence[Sample]) -> None:
        """See `CostLine.calibrate`."""
        super().calibrate(samples)
        for n, seconds in samples:
            self.seconds[n].append(seconds)


class Recorder(StepCosts):
    """The engine's cost model, which keeps everything that it is told."""

    def __init__(self, n_context_frames: int) -> None:
        super().__init__(n_context_frames)
        self.lines = {"decode": _Line(), "prefill": _Line(), "chunk": _Line()}
        self.decode = self.lines["decode"]
        self.prefill = self.lines["prefill"]
        self.chunk = self.lines["chunk"]
        self.decode_steps: list[Sample] = []
        self.overlaps: list[float] = []

    def observe_step(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """See `StepCosts.observe_step`."""
        super().observe_step(n_decode, n_prefill, seconds)
        if n_decode and not n_prefill:
            self.decode_steps.append((n_decode, seconds))

    def observe_total(self, lm_s: float, codec_s: float, total_s: float) -> None:
        """See `StepCosts.observe_total`."""
        super().observe_total(lm_s, codec_s, total_s)
        shorter_s = min(lm_s, codec_s)
        if shorter_s > 0:
            self.overlaps.append((total_s - max(lm_s, codec_s)) / shorter_s)


class Spoken:
    """How long prompts and speech were."""

    def __init__(self) -> None:
        self.finished: list[StreamFinished] = []

    def take(self, events: Sequence[EngineEvent]) -> None:
        """The engine's sink."""
        self.finished += [event for event in events if isinstance(event, StreamFinished)]


def _speak(loop: EngineLoop, n_streams: int) -> None:
    """Have `n_streams` texts spoken at once, to their ends."""
    for number in range(n_streams):
        text = texts()[(number * 7) % len(texts())]
        plan = loop.model.plan(PlanRequest(text=text, seed=number))
        # Ids need not be unique over batches: the one before is over.
        loop.inbox.put(
            OpenStream(
                stream_id=StreamId(number),
                plan=plan,
                seed=number,
                asked_s=time.monotonic(),
                is_paced=False,
            )
        )
    loop.step()
    while loop.stats.n_active or loop.stats.n_queued:
        loop.step()


def _profile(spec: ModelSpec, config: EngineConfig, costs: Recorder, spoken: Spoken) -> Measured:
    sizes, context = spec.codec.chunk_frames, spec.codec.left_context_frames
    step = sizes[len(sizes) // 2]
    rate_hz = spec.frame.sample_rate_hz
    lengths_s = [one.n_samples / rate_hz for one in spoken.finished if one.n_samples]
    return Measured(
        about=f"{spec.name}, measured with up to {config.max_streams} streams at once",
        frame={
            "n_codebooks": spec.frame.n_codebooks,
            "rows_per_frame": spec.frame.rows_per_frame,
            "sample_rate_hz": rate_hz,
            "samples_per_frame": spec.frame.samples_per_frame,
        },
        codec={
            "chunk_frames": list(sizes),
            "left_context_frames": context,
            "lookahead_frames": spec.codec.lookahead_frames,
            "max_batch": spec.codec.max_batch,
        },
        # A policy with one size takes the middle one; its window has what the codec sees around it.
        fixed_chunk={
            "window_frames": context + step + spec.codec.lookahead_frames,
            "step_frames": step,
            "max_batch": max(8, config.max_streams),
        },
        decode_ms=fit(costs.lines["decode"].seconds),
        prefill_ms=fit(costs.lines["prefill"].seconds),
        chunk_ms=fit(costs.lines["chunk"].seconds),
        not_hidden=round(min(max(statistics.median(costs.overlaps or [1.0]), 0.0), 1.0), 3),
        noise=_noise(costs.decode_steps),
        speech={
            "n_prompt_rows": round(statistics.mean(one.n_prompt_rows for one in spoken.finished)),
            "mean_s": round(statistics.mean(lengths_s), 3),
            "sigma": round(float(np.std(np.log(lengths_s))), 3),
        },
        engine={
            "max_streams": config.max_streams,
            "max_batch_rows": config.max_batch_rows,
            "n_pages": config.n_pages,
        },
    )


def fit(seconds: Mapping[int, Sequence[float]]) -> CostMs:
    """The line through the medians of each size, in ms; large and small sizes weigh alike.

    Neither part is under 0: where the best line would have it so, the other carries all.
    """
    sizes = np.array(sorted(seconds), dtype=np.float64)
    times_ms = np.array([MS * statistics.median(seconds[int(n)]) for n in sizes])
    # Relative errors: a batch of 64 must not drown the single stream that the first sound needs.
    weights = 1.0 / times_ms
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
    fixed, each = np.linalg.lstsq(columns, np.ones_like(sizes), rcond=None)[0]
    if each < 0 or len(sizes) == 1:
        fixed, each = float(np.sum(weights) / np.sum(weights**2)), 0.0
    elif fixed < 0:
        scaled = sizes * weights
        fixed, each = 0.0, float(np.sum(scaled) / np.sum(scaled**2))
    return CostMs(fixed=round(float(fixed), 4), each=round(float(each), 5))


def _noise(steps: Sequence[Sample]) -> float:
    """Sigma of the logarithm of step times around the median of their size.

    By the median deviation: what else ran on the machine for a moment is not the device's noise.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for n, seconds in steps:
        by_size[n].append(seconds)
    ratios = [
        math.log(one / statistics.median(found)) for found in by_size.values() for one in found
    ]
    sigma = NORMAL * statistics.median(map(abs, ratios)) if ratios else 0.0
    return round(min(sigma, MAX_NOISE), 3)
