"""The speech tokenizer of CosyVoice 2, Chatterbox and Step-Audio 2: 25 tokens/s. Worker threads.

S3Tokenizer V2: an encoder of the Whisper kind with rotary positions and a memory beside attention,
and eight numbers of three levels a row (FSQ). Its weights come as tensors (`tokenizer.*` of
Chatterbox's file, or those of the package s3tokenizer) or in `speech_tokenizer_v2.onnx`.

What is longer than 30 s is heard in pieces of 30 s that overlap by 4 s, and half of each overlap is
taken from either side, as s3tokenizer does it. (That one leaves tokens out where the last piece is
shorter than the overlap: here there is no such piece.)

Source: xingchensong/S3Tokenizer 0.3.0, `model_v2.py` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.batches import Batcher
from models.audio.mel import whisper_mel
from models.audio.onnx_weights import read_onnx_weights
from models.audio.whisper_encoder import EncoderShape, load_whisper_encoder
from models.checkpoint import size_of
from models.errors import WeightError
from models.weights import load_weights

RATE_HZ: Final = 16_000
TOKENS_PER_S: Final = 25
N_TOKENS: Final = 3**8
FRAMES_PER_TOKEN: Final = 4
HEAD_DIM: Final = 64
PIECE_FRAMES: Final = 3000
OVERLAP_FRAMES: Final = 400
MAX_BATCH: Final = 8
"""Pieces encoded in one call: a piece of 30 s needs some 100 MB while it is under way."""
LEVEL: Final = 0.9990000128746033
"""Keeps what is rounded within the three levels."""
PROJECTION: Final = "quantizer._codebook.project_down"
ENCODER: Final = "encoder."
FEATURE_BUFFERS: Final = ("_mel_filters", "window")
"""In Chatterbox's file beside the weights; they follow from the rate."""


class SpeechTokenizer(nn.Module):
    """Recordings to tokens.

    Args:
        tensors: by s3tokenizer's keys; all sizes follow from their shapes.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, source: str) -> None:
        super().__init__()
        encoder = {
            key.removeprefix(ENCODER): tensor
            for key, tensor in tensors.items()
            if key.startswith(ENCODER)
        }
        rest = {
            key: tensor
            for key, tensor in tensors.items()
            if not key.startswith(ENCODER) and key not in FEATURE_BUFFERS
        }
        shape = _shape(encoder, source)
        self.encoder = load_whisper_encoder(shape, encoder, source=f"{source}, {ENCODER[:-1]}")
        self.project = nn.Linear(shape.hidden, 8)
        names = {part: f"{PROJECTION}.{part}" for part in ("weight", "bias")}
        own = {names[part]: part for part in names}
        projection = {own.get(key, key): tensor for key, tensor in rest.items()}
        load_weights(self.project, projection, source=source, names=names)
        self._batcher: Batcher[Tensor, Tensor] = Batcher(MAX_BATCH, lambda piece: piece.shape[1])
        self.requires_grad_(False).eval()

    def tokens(self, pcm: Tensor) -> Tensor:
        """Tokens `(m,)` int64, on the CPU, of PCM `(n,)` at 16 kHz, n > 0; m is n / 640, up."""
        return self.tokens_of([pcm])[0]

    def tokens_of(self, recordings: Sequence[Tensor]) -> list[Tensor]:
        """The same for several recordings.

        They are encoded together, with those that other threads bring; none depends on the others.
        """
        n_mels = self.encoder.shape.n_mels
        device = self.project.weight.device
        mels = [whisper_mel(pcm.to(device), n_mels) for pcm in recordings]
        cut = [[mel[:, start:end] for start, end in _pieces(mel.shape[1])] for mel in mels]
        tokens = iter(self._batcher.results([one for pieces in cut for one in pieces], self._run))
        return [_joined([next(tokens) for _ in pieces]) for pieces in cut]

    def forward(self, mel: Tensor, n_frames: Tensor | None = None) -> Tensor:
        """Tokens `(B, T / 4, up)` int64 of mel frames `(B, n_mels, T)`, `n_frames` `(B,)` each."""
        levels = self.project(self.encoder(mel, n_frames)).float().tanh().mul(LEVEL).round() + 1
        powers = 3 ** torch.arange(8, device=mel.device)
        tokens: Tensor = (levels.long() * powers).sum(dim=2)
        return tokens

    def _run(self, pieces: list[Tensor]) -> list[Tensor]:
        sizes = [piece.shape[1] for piece in pieces]
        padded = nn.utils.rnn.pad_sequence([piece.T for piece in pieces], batch_first=True)
        n_frames = torch.tensor(sizes, device=padded.device) if min(sizes) < max(sizes) else None
        batch = self(padded.mT, n_frames).cpu()
        return [one[: self.encoder.shape.n_rows(n)] for one, n in zip(batch, sizes, strict=True)]


def read_speech_tokenizer(path: Path) -> SpeechTokenizer:
    """The tokenizer in `speech_tokenizer_v2.onnx`. Raises: `WeightError`."""
    return SpeechTokenizer(read_onnx_weights(path), source=path.name)


def _pieces(n_frames: int) -> Iterator[tuple[int, int]]:
    """First frame of each piece, and the one behind it."""
    start = 0
    while start + PIECE_FRAMES < n_frames:
        yield start, start + PIECE_FRAMES
        start += PIECE_FRAMES - OVERLAP_FRAMES
    yield start, n_frames


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    n_half = OVERLAP_FRAMES // FRAMES_PER_TOKEN // 2
    last = len(pieces) - 1
    return torch.cat(
        [
            piece[n_half if idx else 0 : len(piece) if idx == last else -n_half]
            for idx, piece in enumerate(pieces)
        ]
    )


def _shape(tensors: Mapping[str, Tensor], source: str) -> EncoderShape:
    named = {f"{ENCODER}{key}": tensor for key, tensor in tensors.items()}

    def size(key: str, axis: int) -> int:
        return size_of(named, f"{ENCODER}{key}", axis, source=source, kind="speech tokenizer")

    layers = {key.split(".")[1] for key in tensors if key.startswith("blocks.")}
    hidden = size("conv1.weight", 0)
    if hidden % HEAD_DIM:
        raise WeightError(f"{source}: {hidden} channels are no whole heads of {HEAD_DIM}")
    return EncoderShape(
        n_mels=size("conv1.weight", 1),
        hidden=hidden,
        n_heads=hidden // HEAD_DIM,
        inner=size("blocks.0.mlp.0.weight", 0),
        n_layers=len(layers),
        max_rows=PIECE_FRAMES // FRAMES_PER_TOKEN,
        strides=(2, 2),
        is_rotary=True,
        n_memory=size("blocks.0.attn.fsmn_block.weight", 2),
    )
