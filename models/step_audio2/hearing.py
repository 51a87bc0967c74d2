"""Heard audio to rows of the prompt: encoder, pooling and adapter. Worker threads.

What is heard is cut into pieces of 25 s that know nothing of one another; 80 ms become a row.
Pieces that several requests wait for are encoded together. What was made of a piece is kept by its
content: a conversation brings its earlier turns along.

Source: stepfun-ai/Step-Audio2 (Apache-2.0), `stepaudio2.py` and the checkpoint's
`modeling_step_audio_2.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.audio.batches import Batcher
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
MAX_BATCH: Final = 8
"""Pieces encoded in one call: a piece of 25 s needs some 200 MB while it is under way."""


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
        self._kept: ContentCache[Tensor] = ContentCache(MAX_PIECES)
        self._batcher: Batcher[Pcm, Tensor] = Batcher(MAX_BATCH, len)

    def pieces(self, pcm: Pcm) -> Iterator[Tensor]:
        """Rows `(n, hidden)` float32 of each piece of PCM `(n,)` at 16 kHz, on the CPU."""
        for first in range(0, len(pcm), PIECE_SAMPLES):
            piece = pcm[first : first + PIECE_SAMPLES]
            key = hashlib.sha256(piece.tobytes()).hexdigest()
            yield self._kept.get(key, partial(self._heard, piece))

    def _heard(self, piece: Pcm) -> Tensor:
        (rows,) = self._batcher.results([piece], self.rows)
        return rows

    @torch.inference_mode()
    def rows(self, pieces: list[Pcm]) -> Sequence[Tensor]:
        """Rows `(m, hidden)` float32 of pieces `(n,)`, on the CPU; none depends on the others."""
        mels = []
        for piece in pieces:
            pcm = torch.from_numpy(piece).to(self.bias.device)
            padded = functional.pad(pcm, (0, N_MEL_PADDING))
            mels.append(whisper_mel(padded, self.encoder.shape.n_mels).T)
        n_frames = [len(mel) for mel in mels]
        mel = nn.utils.rnn.pad_sequence(mels, batch_first=True).mT
        rows = self(mel, n_frames).float().cpu()
        return [row[: self._n_rows(n)].clone() for row, n in zip(rows, n_frames, strict=True)]

    def _n_rows(self, n_frames: int) -> int:
        """Of mel frames with the padding behind: one for each that begins in what is attended."""
        n_pooled = self.encoder.shape.n_rows(n_frames - N_UNSEEN_FRAMES) // N_POOLED
        return -(-n_pooled // self.adapter.stride)

    def forward(self, mel: Tensor, n_frames: Sequence[int]) -> Tensor:
        """Rows `(B, n, hidden)` of mel frames.

        Args:
            mel: `(B, n_mels, T)`, with the padding behind each.
            n_frames: B, of each with that padding, which attention does not look at.
        """
        n_rows = self.encoder.shape.n_rows
        counts = [(n, n_rows(n - N_UNSEEN_FRAMES), n_rows(n) // N_POOLED) for n in n_frames]
        there, attended, n_pooled = torch.tensor(counts, device=mel.device).T
        x = self.encoder(mel, there, attended)
        pooled = functional.avg_pool1d(x.transpose(1, 2), N_POOLED).transpose(1, 2)
        at = torch.arange(pooled.shape[1], device=mel.device)
        # Behind a piece the adapter sees zeros, not what the norm makes of them.
        x = self.norm(pooled).masked_fill((at >= n_pooled.unsqueeze(1)).unsqueeze(2), 0.0)
        x = functional.conv1d(
            x.transpose(1, 2), self.weight, self.bias, self.adapter.stride, ADAPTER_PADDING
        )
        rows: Tensor = self.down(functional.relu(self.up(functional.gelu(x).transpose(1, 2))))
        return rows
