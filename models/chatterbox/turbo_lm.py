"""The LM of Turbo: a speaker, the tokens of a recording, text, then a speech token a row.

Keys are those of its files. Source: resemble-ai/chatterbox, `models/t3/t3.py` and `tts_turbo.py`
(MIT).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Attention
from models.chatterbox.config import HEAD_DIM, MAX_FRAMES, N_MARKS, size_of
from models.errors import WeightError
from models.layers.gpt2 import Gpt2, load_gpt2
from models.spec import BackboneSpec
from models.weights import load_weights

DECODER: Final = "tfmr."
MAX_PROMPT: Final = 375
"""Tokens of a recording: 15 s."""
MAX_TEXT: Final = 1024
"""Tokens of a text: there the reference cuts it."""
_UNUSED: Final = (f"{DECODER}wte.weight", "text_head.weight")
"""Tables that the published files have and that nobody asks when speaking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurboConfig:
    """Shape of the LM.

    Args:
        backbone: in the words of the contract.
        inner: width of the feed-forward parts.
        n_positions: rows of learned positions.
        n_text_ids: rows of the text table.
        speaker_size: numbers that a voice is told by.
        n_codes: speech tokens; the ids that begin and end the speech follow them.
    """

    backbone: BackboneSpec
    inner: int
    n_positions: int
    n_text_ids: int
    speaker_size: int
    n_codes: int

    @property
    def start(self) -> int:
        """The id that begins the speech."""
        return self.n_codes

    @property
    def stop(self) -> int:
        """The id that ends it."""
        return self.n_codes + 1


def turbo_config(tensors: Mapping[str, Tensor], *, n_codes: int, source: str) -> TurboConfig:
    """The shape in a file of the LM.

    Args:
        tensors: of the file.
        n_codes: speech tokens that the codec knows.
        source: the file, for messages.

    Raises:
        WeightError: a tensor is missing, or is of a shape that no such LM has; it is named.
    """

    def size(key: str, axis: int) -> int:
        return size_of(tensors, key, axis, source)

    hidden, n_ids = size(f"{DECODER}ln_f.weight", 0), size("speech_emb.weight", 0)
    if hidden % HEAD_DIM:
        raise WeightError(f"{source}: rows of {hidden} are no multiple of {HEAD_DIM}")
    if n_ids != n_codes + N_MARKS:
        raise WeightError(f"{source}: speech_emb.weight has {n_ids} rows for {n_codes} tokens")
    n_positions = size(f"{DECODER}wpe.weight", 0)
    wanted = 1 + MAX_PROMPT + MAX_TEXT + 1 + MAX_FRAMES
    n_heads = hidden // HEAD_DIM
    return TurboConfig(
        backbone=BackboneSpec(
            n_layers=len({key.split(".")[2] for key in tensors if key.startswith("tfmr.h.")}),
            n_query_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=HEAD_DIM,
            hidden=hidden,
            max_positions=min(wanted, n_positions),
        ),
        inner=size(f"{DECODER}h.0.mlp.c_fc.weight", 1),
        n_positions=n_positions,
        n_text_ids=size("text_emb.weight", 0),
        speaker_size=size("cond_enc.spkr_enc.weight", 1),
        n_codes=n_codes,
    )


class TurboLm(nn.Module):
    """Tables, decoder and head.

    Args:
        config: shape of the weights.
        weights: of the LM's file.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(self, config: TurboConfig, weights: Mapping[str, Tensor], *, source: str) -> None:
        super().__init__()
        self.config = config
        hidden, n_ids = config.backbone.hidden, config.stop + 1
        self.cond_enc = nn.ModuleDict({"spkr_enc": nn.Linear(config.speaker_size, hidden)})
        self.text_emb = nn.Embedding(config.n_text_ids, hidden)
        self.speech_emb = nn.Embedding(n_ids, hidden)
        self.speech_head = nn.Linear(hidden, n_ids)
        used = {key: tensor for key, tensor in weights.items() if key not in _UNUSED}
        layers = {key: used.pop(key) for key in list(used) if key.startswith(DECODER)}
        load_weights(self, used, source=source)
        self.decoder = Gpt2(config.backbone, inner=config.inner, n_positions=config.n_positions)
        load_gpt2(self.decoder, layers, DECODER, source=source)
        self.requires_grad_(False)

    def speaker_row(self, speaker: Tensor) -> Tensor:
        """The row `(1, H)` of a voice."""
        row: Tensor = self.cond_enc["spkr_enc"](speaker.to(self.text_emb.weight.device)[None])
        return row

    def text_rows(self, ids: Sequence[int]) -> Tensor:
        """Rows `(n, H)` of a text."""
        rows: Tensor = self.text_emb(torch.tensor(ids, device=self.text_emb.weight.device))
        return rows

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden
