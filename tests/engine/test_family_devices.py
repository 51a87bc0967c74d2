"""Steps and chunks of published families hold everything on the model's device.

On torch's `meta` device, which computes nothing: an operation on tensors of two devices fails there
as it does on a GPU.
"""

from __future__ import annotations

import time

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
from models.errors import WeightError
from tests.engine.test_codec_device import works
from tests.models import checkpoints

HERE, THERE = torch.device("cpu"), torch.device("meta")
N_SLOTS = 3


@pytest.fixture(scope="module", params=[*checkpoints.makers(), "pico"])
def model(request) -> SpeechModel:
    name = request.param
    if name == "pico":
        return registry.load(name).to(THERE)
    try:
        return registry.load(str(checkpoints.made(name))).to(THERE)
    except WeightError as error:
        if "holds no model that is known" in str(error):
            pytest.skip(f"{name} is of a family that is not listed yet")
        raise


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
    for n_frames in model.spec.codec.all_sizes:
        assert codec.decode([1, 0], works(n_frames, 2)).pcm.device == THERE
