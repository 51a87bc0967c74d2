"""The language model of `pico`: embedding of rows, the decoder stack, and the heads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Attention
from models.layers.linear import linear_of
from models.layers.transformer import Decoder
from models.pico.config import PicoConfig
from models.pico.facts import backbone_spec

_THETA: Final = 1e4
_EPS: Final = 1e-5
_UNIT_COLUMN: Final = 1
"""Of prompt rows; the columns after it are the rest of the window, the stay and the codes."""


class Backbone(nn.Module):
    """Rows in, logits out; weights by the names of `lm.safetensors`.

    All embedding tables lie in one, so that a row costs one look-up and one sum: a prompt row reads
    `temb` and otherwise the zero row, an audio row reads all the others.
    """

    table: Tensor
    column_starts: Tensor

    def __init__(self, config: PicoConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        tables = [weights["temb.weight"]]
        tables += [weights[f"wemb.{j}.weight"] for j in range(len(config.window))]
        tables += [weights["semb.weight"]]
        tables += [weights[f"cemb.{i}.weight"] for i in range(config.n_books)]
        ends = list(accumulate(len(table) for table in tables))
        self.zero_place = ends[-1]
        self.register_buffer("column_starts", torch.tensor(ends[:-1]))
        self.register_buffer("table", torch.cat([*tables, torch.zeros(1, config.hidden)]))
        self.decoder = Decoder(backbone_spec(config), inner=config.inner, theta=_THETA, eps=_EPS)
        self.decoder.load_state_dict(_decoder_weights(config, weights))
        heads = [weights["ahead.weight"]]
        heads += [weights[f"heads.{i}.weight"] for i in range(config.n_books)]
        self.head = linear_of(torch.cat(heads))
        self.head_sizes = [len(head) for head in heads]

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """Rows `ids` (N, K) to `(N, H)`; rows with `phase` (N,) -1 are prompt rows."""
        ids = ids[:, _UNIT_COLUMN:]
        as_prompt = nn.functional.pad(ids[:, :1], (0, ids.shape[1] - 1), value=self.zero_place)
        is_prompt = (phase < 0).unsqueeze(1)
        places = torch.where(is_prompt, as_prompt, ids + self.column_starts)
        return nn.functional.embedding_bag(places, self.table, mode="sum")

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `(N, H)`, after the final norm."""
        out: Tensor = self.decoder(x, positions, attention)
        return out

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the advance and of each book from `hidden` (B, H)."""
        return list(torch.split(self.head(hidden), self.head_sizes, dim=1))


def _decoder_weights(config: PicoConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's tensors under the names of `models.layers.transformer`."""
    names = {
        "attention_norm.weight": "n1.w",
        "attention.qkv.weight": "qkv.weight",
        "attention.out.weight": "o.weight",
        "mlp_norm.weight": "n2.w",
        "mlp.gate_up.weight": "gu.weight",
        "mlp.down.weight": "dn.weight",
    }
    renamed = {"norm.weight": weights["nf.w"]}
    for layer in range(config.n_layers):
        for ours, theirs in names.items():
            renamed[f"layers.{layer}.{ours}"] = weights[f"blocks.{layer}.{theirs}"]
    return renamed
