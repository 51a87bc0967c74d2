"""Heard audio to rows of the prompt: encoder, pooling and adapter. Worker threads.

What is heard is cut into pieces of 25 s, each of which is encoded by itself; 80 ms become a row.
What was made of a piece is kept by its content: a conversation brings its earlier turns along.

Source: stepfun-ai/Step-Audio2 (Apache-2.0), `stepaudio2.py` and the checkpoint's
`modeling_step_audio_2.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.audio.cache import ContentCache
from models.audio.mel import WHISPER_RATE_HZ, whisper_mel
from models.audio.sound import Pcm
from models.audio.whisper_encoder import EncoderShape, load_whisper_encoder
from models.checkpoint import Taker
from models.errors import WeightError
from models.step_audio2.config import (
    ADAPTER_PADDING,
    N_MEL_PADDING,
    N_POOLED,
    N_UNSEEN_FRAMES,
    AdapterShape,
)

ENCODER, NORM, ADAPTER = "encoder.", "encoder.after_norm.", "adapter."
PIECE_SAMPLES: Final = 25 * WHISPER_RATE_HZ
MAX_PIECES: Final = 32
"""Of which the rows are kept, at most 5 MB each at the published size."""


class Hearing(nn.Module):
    """Pieces of audio to rows.

    Args:
        encoder: shape of the encoder.
        adapter: shape of what stands behind it.
        weights: of the checkpoint; those of the encoder and the adapter are taken out.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """

    def __init__(
        self, encoder: EncoderShape, adapter: AdapterShape, weights: dict[str, Tensor], source: str
    ) -> None:
        super().__init__()
        self.adapter = adapter
        take = Taker(weights, source)
        if f"{ADAPTER}linear1.bias" not in weights:
            raise WeightError(f"{source} lacks {ADAPTER}linear1.bias: it hears nothing")
        # No config states it.
        n, inner = encoder.hidden, len(weights[f"{ADAPTER}linear1.bias"])
        self.norm = nn.LayerNorm(n, device="meta")
        self.norm.weight, self.norm.bias = take(f"{NORM}weight", n), take(f"{NORM}bias", n)
        self.weight = take(f"{ADAPTER}conv.weight", n, n, adapter.kernel)
        self.bias = take(f"{ADAPTER}conv.bias", n)
        self.up = take.linear(f"{ADAPTER}linear1", n, inner)
        self.down = take.linear(f"{ADAPTER}linear2", inner, adapter.hidden)
        keys = [key for key in weights if key.startswith(ENCODER)]
        own = {key.removeprefix(ENCODER): weights.pop(key) for key in keys}
        self.encoder = load_whisper_encoder(encoder, own, source=f"{source}, {ENCODER[:-1]}")
        self._rows: ContentCache[Tensor] = ContentCache(MAX_PIECES)

    def pieces(self, pcm: Pcm) -> Iterator[Tensor]:
        """Rows `(n, hidden)` float32 of each piece of PCM `(n,)` at 16 kHz, on the CPU."""
        for first in range(0, len(pcm), PIECE_SAMPLES):
            piece = pcm[first : first + PIECE_SAMPLES]
            key = hashlib.sha256(piece.tobytes()).hexdigest()
            yield self._rows.get(key, partial(self._heard, piece))

    @torch.inference_mode()
    def _heard(self, piece: Pcm) -> Tensor:
        pcm = torch.from_numpy(piece).to(self.bias.device)
        padded = functional.pad(pcm, (0, N_MEL_PADDING))
        mel = whisper_mel(padded, self.encoder.shape.n_mels)
        rows: Tensor = self(mel.unsqueeze(0))[0]
        return rows.float().cpu()

    def forward(self, mel: Tensor) -> Tensor:
        """Rows `(B, n_rows, hidden)` of mel frames `(B, n_mels, T)` with the padding behind."""
        n_frames = mel.shape[2] - N_UNSEEN_FRAMES
        shape = self.encoder.shape
        attended = torch.tensor([shape.n_rows(n_frames)], device=mel.device).expand(len(mel))
        x = self.encoder(mel, n_attended=attended)
        pooled = functional.avg_pool1d(x.transpose(1, 2), N_POOLED).transpose(1, 2)
        x = self.norm(pooled).transpose(1, 2)
        stride = self.adapter.stride
        x = functional.conv1d(x, self.weight, self.bias, stride, ADAPTER_PADDING)
        rows: Tensor = self.down(functional.relu(self.up(functional.gelu(x).transpose(1, 2))))
        # One for each that begins within what is attended to.
        n_pooled = shape.n_rows(n_frames) // N_POOLED
        return rows[:, : -(-n_pooled // stride)]
