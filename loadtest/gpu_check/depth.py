"""What the depth model of a frame takes: the whole loop over its codebooks, recorded as one graph.

The engine draws with its sampler in between; here the likeliest code is taken, so that the figure
is the model's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.depth import DepthKV
from engine.graphs import make_graphs
from loadtest.gpu_check.timing import seconds_of
from loadtest.gpu_check.where import Where
from models.base import SpeechModel


def depth_loop(model: SpeechModel, hidden: Tensor, cache: DepthKV) -> Tensor:
    """Codes `(B, Q)` of a frame, after `hidden` (B, H): the likeliest of each codebook."""
    assert model.spec.depth is not None, "asked of models with one"
    model.depth_step(model.depth_embed(0, hidden, None), 0, cache)
    ids = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
    drawn = []
    for position in range(1, len(model.spec.depth.columns) + 1):
        x = model.depth_step(model.depth_embed(position, hidden, ids), position, cache)
        ids = model.depth_head(position, x).argmax(dim=1)
        drawn.append(ids)
    return torch.stack(drawn, dim=1)


def depth_loop_seconds(model: SpeechModel, n_streams: int, where: Where) -> float:
    """Seconds of one frame of `n_streams`, replayed."""
    spec = model.spec
    assert spec.depth is not None, "asked of models with one"
    cache = DepthKV(spec.depth, n_streams, where.device, where.dtype)
    hidden = torch.randn((n_streams, spec.backbone.hidden), device=where.device)

    def loop() -> tuple[Tensor, ...]:
        return (depth_loop(model, hidden, cache),)

    graphs = make_graphs("cuda", where.device)
    assert graphs is not None, "asked for"
    key, uses = ("depth", n_streams), {"hidden": hidden}
    graphs.record(key, loop, uses)
    return seconds_of(lambda: graphs.run(key, uses), where.device)
