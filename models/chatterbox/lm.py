"""The LM ("T3"): rows of settings and text, then a speech token a row. Keys are those of its files.

Text and speech have tables of learned positions of their own, each counted from its first row,
beside the rotary positions of the decoder.

Source: resemble-ai/chatterbox, `models/t3/t3.py` (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Attention
from models.chatterbox.conditioning import Settings
from models.chatterbox.config import LmConfig
from models.hugging_face import load_decoder, make_decoder
from models.layers.linear import linear_of
from models.weights import load_weights

DECODER: Final = "tfmr."
_UNUSED: Final = (f"{DECODER}embed_tokens.weight", "text_head.weight")
"""Tables that the published files have and that nobody asks when speaking."""


class SpeechLm(nn.Module):
    """Tables, settings, decoder and head.

    Args:
        config: shape of the weights.
        weights: of the LM's file.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(self, config: LmConfig, weights: Mapping[str, Tensor], *, source: str) -> None:
        super().__init__()
        self.config = config
        hidden, n_ids = config.decoder.backbone.hidden, config.decoder.n_ids
        self.cond_enc = Settings(config)
        self.text_emb = nn.Embedding(config.n_text_ids, hidden)
        self.speech_emb = nn.Embedding(n_ids, hidden)
        self.text_pos_emb = _Places(config.n_text_positions, hidden)
        self.speech_pos_emb = _Places(config.n_speech_positions, hidden)
        self.speech_head = nn.Linear(hidden, n_ids, bias=False)
        used = {key: tensor for key, tensor in weights.items() if key not in _UNUSED}
        layers = {key: used.pop(key) for key in list(used) if key.startswith(DECODER)}
        load_weights(self, used, source=source)
        # What follows the id that ends the speech is never drawn.
        self.speech_head = linear_of(self.speech_head.weight[: config.stop + 1])
        self.decoder = make_decoder(config.decoder)
        load_decoder(self.decoder, layers, DECODER, source=source)
        self.requires_grad_(False)

    def voice_rows(self, speaker: Tensor, tokens: Tensor) -> Tensor:
        """Rows `(1 + n_queries, H)` of a voice by its vector and the tokens `(n,)` it has said."""
        device = self.speech_emb.weight.device
        places = torch.arange(len(tokens), device=device)
        said = self.speech_rows(tokens.to(device), places)
        return self.cond_enc.voice(speaker.to(device), said)

    def feeling_row(self, exaggeration: float) -> Tensor:
        """The row `(1, H)` of a feeling's strength."""
        return self.cond_enc.feeling(exaggeration)

    def text_rows(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Rows `(n, H)` of a text, and those of the companion, which knows its length alone."""
        device = self.text_emb.weight.device
        places: Tensor = self.text_pos_emb(torch.arange(len(ids), device=device))
        return self.text_emb(torch.tensor(ids, device=device)) + places, places

    def speech_rows(self, ids: Tensor, places: Tensor) -> Tensor:
        """Rows `(N, H)` of speech tokens at their places in the speech."""
        rows: Tensor = self.speech_emb(ids) + self.speech_pos_emb(places)
        return rows

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Logits `(B, stop + 1)`."""
        logits: Tensor = self.speech_head(hidden)
        return logits


class _Places(nn.Module):
    """Learned positions."""

    def __init__(self, n: int, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(n, hidden)

    def forward(self, places: Tensor) -> Tensor:
        """Map `(n,)` to `(n, hidden)`."""
        rows: Tensor = self.emb(places)
        return rows
