"""A detokenizer on a device of its own: only frames and index arrays cross over to it."""

from __future__ import annotations

import time

import pytest
import torch

from engine.chunks import ChunkWork
from engine.codec_runner import CodecRunner
from engine.device_streams import make_streams
from engine.graphs import Call, Graphs
from engine.slot_state import SlotState
from engine.types import StreamId
from tests.engine.harness import load_toy

HERE, THERE = torch.device("cpu"), torch.device("meta")
"""Two devices that every machine has. An operation on tensors of both fails, as on two GPUs."""
NAMES = ("toy-depth", "toy-interleaved", "toy-delayed", "toy-tone")


def works(n_frames: int, n_streams: int) -> list[ChunkWork]:
    return [
        ChunkWork(
            stream_id=StreamId(n),
            chunk_idx=0,
            first_frame=0,
            n_frames=n_frames,
            n_valid=n_frames,
            n_context=0,
            is_first=True,
            is_last=False,
            due_s=0.0,
        )
        for n in range(n_streams)
    ]


def as_it_stands(call: Call) -> Call:
    return call


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_chunks_are_made_where_the_detokenizer_is(name, is_recorded):
    model = load_toy(name).to(THERE)
    slots = SlotState(model.spec, 3, HERE, THERE)
    assert {part.device for part in slots.codec.values()} <= {THERE}
    assert slots.frames.device == HERE
    streams = make_streams(HERE, HERE, time.monotonic)
    graphs = Graphs(as_it_stands) if is_recorded else None
    codec = CodecRunner(model, slots, 3, THERE, streams, graphs)
    codec.capture()
    n_frames = model.spec.codec.chunk_frames[0]
    audio = codec.decode([2, 0], works(n_frames, 2))
    assert audio.pcm.device == audio.n_samples.device == THERE
    assert len(audio.pcm) == 2


def test_frames_that_stay_behind_are_missed():
    """Otherwise the test above would prove nothing."""
    model = load_toy("toy-delayed").to(THERE)
    slots = SlotState(model.spec, 3, HERE, THERE)
    codec = CodecRunner(model, slots, 3, HERE, make_streams(HERE, HERE, time.monotonic))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        codec.decode([2, 0], works(model.spec.codec.chunk_frames[0], 2))
