"""The rows before the text: who speaks, how the reference sounds, how strongly feelings show.

Worker threads. Source: resemble-ai/chatterbox, `models/t3/modules/` (MIT); Jaegle et al. 2021
(Perceiver). Keys of the modules are those of the checkpoints, under `cond_enc.`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.chatterbox.config import N_PERCEIVER_HEADS, LmConfig


class Settings(nn.Module):
    """Rows of a voice, and of a feeling.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        hidden = config.decoder.backbone.hidden
        self.spkr_enc = nn.Linear(config.speaker_size, hidden)
        self.emotion_adv_fc = nn.Linear(1, hidden, bias=False)
        self.perceiver = _Perceiver(config.n_queries, hidden)

    def voice(self, speaker: Tensor, speech: Tensor) -> Tensor:
        """Rows `(1 + n_queries, hidden)` of a voice.

        Args:
            speaker: `(speaker_size,)`.
            speech: `(n, hidden)`, embedded tokens of its reference.
        """
        return torch.cat([self.spkr_enc(speaker).unsqueeze(0), self.perceiver(speech)])

    def feeling(self, exaggeration: float) -> Tensor:
        """The row `(1, hidden)` of a feeling's strength."""
        weight = self.emotion_adv_fc.weight
        row: Tensor = self.emotion_adv_fc(weight.new_tensor([[exaggeration]]))
        return row


class _Perceiver(nn.Module):
    """Queries that look at rows, however many, and then, by the same weights, at themselves."""

    def __init__(self, n_queries: int, hidden: int) -> None:
        super().__init__()
        self.pre_attention_query = nn.Parameter(torch.zeros(1, n_queries, hidden))
        names = ("to_q", "to_k", "to_v", "proj_out")
        self.attn = nn.ModuleDict(
            {"norm": nn.LayerNorm(hidden), **{name: nn.Linear(hidden, hidden) for name in names}}
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Map `(n, hidden)` to `(n_queries, hidden)`."""
        heard = self._looked(self.pre_attention_query[0], rows)
        return self._looked(heard, heard)

    def _looked(self, at: Tensor, rows: Tensor) -> Tensor:
        query, key, value = (
            self.attn[name](self.attn["norm"](x)).unflatten(1, (N_PERCEIVER_HEADS, -1))
            for name, x in (("to_q", at), ("to_k", rows), ("to_v", rows))
        )
        heads = functional.scaled_dot_product_attention(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        )
        out: Tensor = at + self.attn["proj_out"](heads.transpose(0, 1).flatten(1))
        return out
