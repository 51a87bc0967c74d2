"""The post-net alone: how far it looks, and that an absent book is an absent book."""

from __future__ import annotations

import torch
from torch import Tensor

from models.layers.conv import ENDLESS, Span
from models.pico.postnet import Postnet
from tests.models.pico.harness import random_frames, random_weights, tiny_config

N_STEPS = 24


def postnet() -> Postnet:
    config = tiny_config()
    weights = random_weights(config)
    return Postnet(config, weights["post"], weights["codec"])


def run(model: Postnet, frames: Tensor) -> Tensor:
    """Latents by step `(T, 4 * 12)` of a call in the middle of a stream, from empty contexts."""
    contexts = [torch.zeros(1, *shape) for shape in model.layout.shapes]
    span = Span(start=torch.tensor([50]), end=torch.tensor([ENDLESS]))
    return model(frames[None], contexts, span)[0][0].reshape(N_STEPS, -1)


def test_a_step_reaches_from_two_before_to_eight_after() -> None:
    model, frames = postnet(), random_frames(tiny_config(), N_STEPS)
    changed = frames.clone()
    changed[10, 3] = (changed[10, 3] + 1) % 101
    differs = (run(model, frames) - run(model, changed)).abs().amax(1) > 0
    # Output comes two steps late: step 8 arrives at place 10, step 18 at place 20.
    assert differs.nonzero().flatten().tolist() == list(range(10, 21))


def test_each_book_has_its_own_centroids() -> None:
    model, frames = postnet(), random_frames(tiny_config(), N_STEPS)
    frames[:, 0], frames[:, 1] = 3, 4
    swapped = frames.clone()
    swapped[:, 0], swapped[:, 1] = 4, 3
    assert (run(model, frames) - run(model, swapped)).abs().max() > 0.1


def test_an_absent_book_is_told_from_a_zero_centroid() -> None:
    config = tiny_config()
    weights = random_weights(config)
    weights["post"]["C"][:, 0] = 0.0
    model = Postnet(config, weights["post"], weights["codec"])
    frames = random_frames(config, N_STEPS)
    frames[:, 0] = 0
    absent = frames.clone()
    absent[:, 0] = config.absent_code
    assert (run(model, frames) - run(model, absent)).abs().max() > 0.01
