"""The estimator of a distilled flow: it gives the mean speed of a step, told where the step ends.

Source: Geng et al. 2025 (MeanFlow); resemble-ai/chatterbox, `models/s3gen/decoder.py` (Apache-2.0).
Keys of the modules are those of its checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.codecs.unet import Unet, UnetConfig, moment


class MeanUnet(Unet):
    """The mean speed of a flow whose steps are of one length.

    Args:
        config: its shape.
        n_steps: of the solver.
    """

    def __init__(self, config: UnetConfig, n_steps: int) -> None:
        super().__init__(config)
        width = 4 * config.n_channels
        self.step = 1.0 / n_steps
        self.time_embed_mixer = nn.Linear(2 * width, width, bias=False)

    def told(self, time: float, like: Tensor) -> Tensor:
        """See `Unet.told`: where the step begins, and where it ends."""
        ends = [moment(self.time_mlp, one, like) for one in (time, time + self.step)]
        mixed: Tensor = self.time_embed_mixer(torch.cat(ends, dim=1))
        return mixed
