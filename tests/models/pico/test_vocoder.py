"""The vocoder alone: its delay, and how far it hears."""

from __future__ import annotations

import torch
from torch import Tensor

from models.layers.conv import ENDLESS, Span
from models.pico.vocoder import Vocoder
from tests.models.pico.harness import random_weights, tiny_config

N_FRAMES = 30


def vocoder() -> Vocoder:
    config = tiny_config()
    return Vocoder(config.vocoder, random_weights(config)["vocoder"])


def run(model: Vocoder, latents: Tensor, start: int = 100) -> Tensor:
    """PCM of a call in the middle of a stream, from empty contexts."""
    contexts = [torch.zeros(len(latents), *shape) for shape in model.layout.shapes]
    rows = torch.full((len(latents),), start)
    return model(latents, contexts, Span(start=rows, end=torch.full_like(rows, ENDLESS)))[0]


def test_delay_is_the_lookahead_of_all_layers() -> None:
    # conv_pre 3 frames; then 4, 4 and 2 samples of upsampling and 45 of the widest branch in each
    # stage, at 32, 4 and 1 samples; conv_post 3.
    assert vocoder().delay == 3 * 256 + (4 + 45) * 32 + (4 + 45) * 4 + (2 + 45) + 3


def test_a_frame_changes_only_samples_that_may_hear_it() -> None:
    model = vocoder()
    latents = torch.randn(1, N_FRAMES, 12, generator=torch.Generator().manual_seed(0))
    changed = latents.clone()
    changed[0, 10] += 1.0
    differs = (run(model, latents) - run(model, changed))[0].abs() > 0
    heard = differs.nonzero().flatten()
    # Samples come `delay` late, so frame 10 is first heard by the sample that arrives with it.
    assert int(heard.min()) >= 10 * 256
    assert int(heard.min()) < 11 * 256
    assert int(heard.max()) <= 11 * 256 + 2 * model.delay
    assert int(heard.max()) > 11 * 256 + model.delay


def test_the_end_of_one_row_is_not_heard_in_another_nor_too_early() -> None:
    model = vocoder()
    latents = torch.randn(1, N_FRAMES, 12, generator=torch.Generator().manual_seed(0))
    latents[:, 12:] = 0.0
    contexts = [torch.zeros(2, *shape) for shape in model.layout.shapes]
    span = Span(start=torch.tensor([0, 0]), end=torch.tensor([ENDLESS, 12]))
    pcm = model(latents.repeat(2, 1, 1), contexts, span)[0][:, model.delay :]
    # The same latents; only the second row knows that the stream ends at frame 12, so that what
    # the layers' biases make of the zeros behind it counts in the first row alone.
    n_same = 12 * 256 - model.delay
    assert torch.equal(pcm[0, :n_same], pcm[1, :n_same])
    assert not torch.equal(pcm[0, n_same : 12 * 256], pcm[1, n_same : 12 * 256])
