"""One model of a published size: what its steps take, then a server with it.

    python -m loadtest.gpu_check.serving qwen3-tts-1.7b [--dry-run]

Serves until SIGTERM.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Final

import torch

from engine.loop import EngineLoop
from engine.thread import EngineThread
from engine.types import EngineEvent, EventSink
from loadtest.gpu_check.building import copy_bytes_per_s
from loadtest.gpu_check.depth import depth_loop_seconds
from loadtest.gpu_check.random_models import MODELS
from loadtest.gpu_check.reading import step_bytes
from loadtest.gpu_check.telling import tell
from loadtest.gpu_check.where import Where, parse
from loadtest.profiler import Recorder, Spoken, profile_of
from models.base import SpeechModel
from realtime.bridge import EventRelay
from realtime.compose import Engines
from realtime.config import GatewayConfig
from realtime.server import run

BATCHES: Final = (1, 8, 32, 64)
N_SPOKEN: Final = (1, 8)
"""Streams that speak at once to learn what overlaps, and how times vary."""
MS: Final = 1000.0


class Sink:
    """Hands events to whoever wants them at the time."""

    def __init__(self, to: EventSink) -> None:
        self.to = to

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        """The engine's sink."""
        self.to(events)


def main() -> None:
    """Measure, tell, serve."""
    where, (name,) = parse(__doc__, "name")
    start_s = time.monotonic()
    model = MODELS[name](where, is_small=where.is_dry)
    tell(made_s=round(time.monotonic() - start_s, 1), step_bytes=step_bytes(model, where))
    spoken, costs = Spoken(), Recorder(model.spec.codec.left_context_frames)
    sink = Sink(spoken.take)
    loop = EngineLoop(model, where.config(), sink, time.monotonic, where.device, where.dtype)
    loop.costs = costs
    loop.warm_up()
    tell(ready_s=round(time.monotonic() - start_s, 1), memory=loop.memory.lines())
    _tell_steps(costs, model, where)
    _tell_depth(model, where)
    batches = N_SPOKEN[:1] if where.is_dry else N_SPOKEN
    profile = profile_of(loop, where.config(), costs, spoken, batches, lambda: None)
    tell(profile=dataclasses.asdict(profile))
    _serve(loop, sink)


def _tell_steps(costs: Recorder, model: SpeechModel, where: Where) -> None:
    """What the warm-up has measured: steps by streams, prompts by rows, chunks by frames."""
    by_kind = {
        kind: {n: round(MS * statistics.median(s), 3) for n, s in sorted(line.seconds.items())}
        for kind, line in costs.lines.items()
    }
    decode = by_kind["decode"]
    # A copy reads as much as it writes; a step only reads.
    n_bytes = step_bytes(model, where)
    least_ms = MS * n_bytes / copy_bytes_per_s(n_bytes, where)
    tell(
        decode_ms={n: decode[n] for n in BATCHES if n in decode},
        prefill_ms=by_kind["prefill"],
        codec_ms=by_kind["chunk"],
        weights_read_ms=round(least_ms, 3),
        decode_over_weights={n: round(decode[n] / least_ms, 2) for n in BATCHES if n in decode},
    )


def _tell_depth(model: SpeechModel, where: Where) -> None:
    if model.spec.depth is None:
        return
    sizes = [n for n in BATCHES if n <= where.max_streams]
    with torch.inference_mode():
        found = {n: round(MS * depth_loop_seconds(model, n, where), 3) for n in sizes}
    tell(depth_loop_ms=found)


def _serve(loop: EngineLoop, sink: Sink) -> None:
    relay = EventRelay()
    sink.to = relay
    thread = EngineThread([loop])
    thread.start()
    try:
        if not thread.wait_ready():
            raise RuntimeError(f"the engine cannot start: {thread.failure}")
        engines = Engines(thread=thread, relays={loop.model.spec.name: relay})
        run(
            engines.app(GatewayConfig(port=0)),
            on_ready=lambda port: tell(url=f"http://127.0.0.1:{port}"),
        )
    finally:
        thread.stop()


if __name__ == "__main__":
    main()
