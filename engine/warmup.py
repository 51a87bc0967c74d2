"""Before the first stream: record calls, run every kind and size once, measure what it costs.

The streams here are made up: they lie on the dummy page and leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from engine.batch import Prompt, build_decode, build_prefill
from engine.chunks import ChunkWork
from engine.config import EngineConfig
from engine.costs import Sample, StepCosts
from engine.device import DeviceSide
from engine.device_streams import DeviceStreams
from engine.kv_pages import DUMMY_PAGE, PageTable
from engine.spans import Clock
from engine.stream import Stream
from engine.types import StreamId
from models.base import PromptPlan
from models.spec import CodecSpec, ModelSpec

TYPICAL_ROWS = 64
"""Rows before the measured one: attention over none would look too cheap."""


def warm_up(device: DeviceSide, costs: StepCosts, config: EngineConfig, clock: Clock) -> None:
    """Record what will be replayed; teach `costs` what decode steps, prompts and chunks take."""
    device.capture()
    runner, codec = device.runner, device.codec
    spec = runner.spec
    streams = [_dummy_stream(slot, spec) for slot in range(config.max_streams)]
    plan = _dummy_plan(spec)
    for stream in streams:
        runner.open_slot(stream.slot, plan, seed=0)
        runner.bind(stream.slot, 0, Prompt.of(plan), [])
    decode: list[Sample] = []
    for n_streams in _sizes(config.max_streams):
        batch = build_decode(streams[:n_streams], config.max_streams)
        decode.append((n_streams, _timed(partial(runner.decode, batch), device.streams, clock)))
    costs.decode.calibrate(decode)
    longest = min(config.prefill_rows_per_step, spec.backbone.max_positions - 1)
    costs.prefill.calibrate(
        [
            (n_rows, _prefill_seconds(streams[0], n_rows, device, config, clock))
            for n_rows in _sizes(longest)
        ]
    )
    if any(phase.feeds_codec for phase in spec.phases):
        chunk: list[Sample] = []
        for n_streams in _sizes(min(spec.codec.max_batch, config.max_streams)):
            for size in spec.codec.all_sizes:
                slots = [stream.slot for stream in streams[:n_streams]]
                works = [_dummy_work(spec.codec, size)] * n_streams
                with device.streams.codec.queue():
                    seconds = _timed(partial(codec.decode, slots, works), device.streams, clock)
                chunk.append((costs.chunk_units(n_streams, size), seconds))
        costs.chunk.calibrate(chunk)
    runner.scrub([DUMMY_PAGE])


def _prefill_seconds(
    stream: Stream, n_rows: int, device: DeviceSide, config: EngineConfig, clock: Clock
) -> float:
    runner = device.runner
    prompt = Prompt.zeros(n_rows, runner.spec.n_columns)
    fresh = Stream(
        stream_id=stream.stream_id,
        asked_s=0.0,
        max_frames=1,
        n_prompt_rows=[n_rows],
        slot=stream.slot,
    )
    batch = build_prefill([(fresh, 0, n_rows)], [prompt], config.max_streams)
    return _timed(partial(runner.prefill, batch), device.streams, clock)


def _timed(call: Callable[[], object], streams: DeviceStreams, clock: Clock) -> float:
    """Seconds of the second of two calls; the first pays for allocations."""
    call()
    streams.finish()
    start_s = clock()
    call()
    streams.finish()
    return clock() - start_s


def _sizes(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    sizes = [1]
    while sizes[-1] * 2 < most:
        sizes.append(sizes[-1] * 2)
    return sizes if most == 1 else [*sizes, most]


def _dummy_plan(spec: ModelSpec) -> PromptPlan:
    return PromptPlan(
        ids=torch.zeros((1, spec.n_columns), dtype=torch.int64),
        state=torch.zeros(spec.state_size, dtype=torch.int64),
        max_frames=1,
    )


def _dummy_stream(slot: int, spec: ModelSpec) -> Stream:
    n_rows = min(TYPICAL_ROWS, spec.backbone.max_positions - 1)
    return Stream(
        stream_id=StreamId(-1 - slot),
        asked_s=0.0,
        max_frames=1,
        n_prompt_rows=[n_rows],
        slot=slot,
        sequences=[PageTable(n_rows=n_rows)],
        n_prefilled=[n_rows],
        n_rows=1,
    )


def _dummy_work(codec: CodecSpec, size: int) -> ChunkWork:
    return ChunkWork(
        stream_id=StreamId(-1),
        chunk_idx=0,
        first_frame=0,
        n_frames=size,
        n_valid=size,
        n_context=0,
        is_first=size in (codec.first_frames or codec.chunk_frames),
        is_last=False,
        due_s=0.0,
    )
