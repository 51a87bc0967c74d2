"""Detokenizers with heavy state: nobody hears anything of who had the slot before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import registry
from models.spec import PlanRequest
from tests.engine.harness import CONFIG, Engine
from tests.models.chatterbox import tiny as chatterbox
from tests.models.cosyvoice2 import tiny as cosyvoice2

CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "cosyvoice2": cosyvoice2.make_checkpoint_with_voices,
    "chatterbox": chatterbox.make_checkpoint,
    "chatterbox-turbo": chatterbox.make_turbo_checkpoint,
}
ONE_SLOT = replace(CONFIG, max_streams=1)
LENGTHS = (1, 15, 16, 41)
"""In frames: ends in the first row, right before the first chunk and on it, and behind a second."""


@pytest.mark.parametrize("family", list(CHECKPOINTS))
def test_a_used_slot_sounds_as_a_new_one(family, tmp_path):
    model = registry.load(CHECKPOINTS[family](tmp_path))
    plan = model.plan(PlanRequest(text="Hello there, how do you do?"))
    plans = [replace(plan, max_frames=n) for n in LENGTHS]
    alone = [Engine(model, ONE_SLOT).speak([one], [4])[0] for one in plans]
    assert [len(pcm) for pcm in alone] == [
        n * model.spec.frame.samples_per_frame for n in LENGTHS
    ], "sample counts are exact"
    used = Engine(model, ONE_SLOT)
    for one, expected in zip(plans, alone, strict=True):
        left = used.open(replace(plan, max_frames=60), seed=7)
        used.run(until=lambda left=left: len(used.chunks(left)) == 1)
        used.abort(left)
        (pcm,) = used.speak([one], [4])
        np.testing.assert_array_equal(pcm, expected)
    used.check_is_empty()
