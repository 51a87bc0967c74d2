"""How the parts of a server are joined."""

from __future__ import annotations

import copy

from models import registry
from realtime.compose import HERE, Placement, _for


def test_a_model_of_cpus_stays_there_when_the_others_go_to_a_gpu():
    placement = Placement(device="cuda", detokenizer_device="cuda:1", dtype="float16")
    assert _for("smollm2-135m", placement) == HERE
    assert _for("pico", placement) == placement


def test_shapes_of_pico_follow_from_shapes_where_steps_are_recorded():
    detokenizer = registry.load("pico").detokenizer
    assert not detokenizer.is_static
    # Any device that is not the CPU stands for a GPU.
    assert copy.deepcopy(detokenizer).to("meta").is_static
