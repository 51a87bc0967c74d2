"""Steps and chunks of published families hold everything on the model's device.

On torch's `meta` device, which computes nothing: an operation on tensors of two devices fails there
as it does on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.attention.depth import DepthKV
from engine.codec_runner import CodecRunner
from engine.device_streams import make_streams
from engine.row_step import RowInputs, RowKind, RowStep
from engine.sampler import ALL_FILTERS, Sampler
from engine.slot_state import SlotState
from models import registry
from models.base import SpeechModel
from tests.engine.test_codec_device import works
from tests.models.bagpiper import tiny as bagpiper
from tests.models.csm import tiny as csm
from tests.models.opuslm import tiny as opuslm
from tests.models.orpheus import tiny as orpheus
from tests.models.qwen3_tts import tiny as qwen3_tts
from tests.models.zonos import tiny as zonos

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "bagpiper": bagpiper.make_checkpoint,
    "csm": csm.make_checkpoint,
    "opuslm": opuslm.make_checkpoint,
    "orpheus": orpheus.make_checkpoint,
    "qwen3-tts": qwen3_tts.make_checkpoint,
    "zonos": zonos.make_checkpoint,
}
HERE, THERE = torch.device("cpu"), torch.device("meta")
N_SLOTS = 3


@pytest.fixture(scope="module", params=[*FAMILIES, "pico"])
def model(request, tmp_path_factory) -> SpeechModel:
    name = request.param
    if name in FAMILIES:
        name = str(FAMILIES[name](tmp_path_factory.mktemp("model")))
    return registry.load(name).to(THERE)


@torch.inference_mode()
def test_a_step_needs_nothing_of_another_device(model):
    spec = model.spec
    slots, sampler = SlotState(spec, N_SLOTS, THERE), Sampler(spec, N_SLOTS, THERE)
    depth = DepthKV(spec.depth, 2 * N_SLOTS, THERE, torch.float32) if spec.depth else None
    step = RowStep(model, slots, sampler, depth, THERE, is_overlapped=True)
    rows = torch.zeros(2, dtype=torch.int64, device=THERE)
    hidden = step.hidden(rows, rows, 2, lambda layer_idx, q, k, v: torch.empty_like(q))
    kind = RowKind(
        drawn=frozenset(spec.backbone_columns), has_depth=depth is not None, filters=ALL_FILTERS
    )
    assert step.draw(hidden, RowInputs(slots=rows), kind).device == THERE
    if spec.guidance is not None:
        is_pair = torch.ones(2, 1, dtype=torch.bool, device=THERE)
        both = RowInputs(slots=rows, pairs=rows, is_pair=is_pair)
        assert step.draw(torch.cat([hidden, hidden]), both, kind).device == THERE


@torch.inference_mode()
def test_a_chunk_needs_nothing_of_another_device(model):
    slots = SlotState(model.spec, N_SLOTS, THERE)
    streams = make_streams(HERE, HERE, time.monotonic)
    codec = CodecRunner(model, slots, N_SLOTS, THERE, streams)
    for n_frames in model.spec.codec.chunk_frames:
        assert codec.decode([1, 0], works(n_frames, 2)).pcm.device == THERE
