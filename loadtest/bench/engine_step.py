"""What a step of the engine costs beside the model; a process of its own for `loadtest.bench`.

    python -m loadtest.bench.engine_step        prints one JSON list

The model's own time is what passes inside its functions, attention included; the rest of the step
(plan, batch, sampling, collecting, publishing) is the engine's. The only part of `loadtest` that
knows the engine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.types import OpenStream, StreamId
from models import registry
from models.spec import PlanRequest

MODEL = "toy-interleaved"
SIZES = (1, 16, 64)
N_WARM = 30
N_STEPS = 200
N_FRAMES = 400  # more than the steps need, less than a stream may hold
TIMED = ("embed", "backbone", "heads", "constrain", "advance", "decode")


class Stopwatch:
    """Seconds spent inside the calls that it wraps; calls inside a timed call count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, timed."""

        def timed(*args: object, **kwargs: object) -> object:
            self._depth += 1
            start_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - start_s

        return timed


def measure(n_streams: int) -> dict[str, float]:
    """Median milliseconds of a step with `n_streams` streams that all decode."""
    model = registry.load(MODEL)
    watch = Stopwatch()
    for name in TIMED:
        setattr(model, name, watch.wrap(getattr(model, name)))
    config = EngineConfig(max_streams=max(n_streams, 2), policy="throughput", max_queue=n_streams)
    loop = EngineLoop(model, config, lambda events: None, time.monotonic)
    loop.warm_up()
    for number in range(n_streams):
        request = PlanRequest(text="x", options={"frames": N_FRAMES}, seed=number)
        plan = model.plan(request)
        loop.inbox.put(
            OpenStream(stream_id=StreamId(number), plan=plan, seed=number, asked_s=time.monotonic())
        )
    for _ in range(N_WARM):
        loop.step()
    assert loop.stats.n_active == n_streams, f"not all decode: {loop.stats}"
    steps_ms, models_ms = [], []
    for _ in range(N_STEPS):
        watch.seconds = 0.0
        start_s = time.perf_counter()
        loop.step()
        steps_ms.append((time.perf_counter() - start_s) * 1000)
        models_ms.append(watch.seconds * 1000)
    overheads_ms = [step - own for step, own in zip(steps_ms, models_ms, strict=True)]
    return {
        "n_streams": n_streams,
        "step_ms": statistics.median(steps_ms),
        "model_ms": statistics.median(models_ms),
        "overhead_ms": statistics.median(overheads_ms),
    }


if __name__ == "__main__":
    json.dump([measure(n_streams) for n_streams in SIZES], sys.stdout)
