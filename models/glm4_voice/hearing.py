"""What the user says, as speech tokens: 12.5 a second. Worker threads.

The folder `glm-4-voice-tokenizer`: an encoder of the Whisper kind whose convolutions see nothing
ahead and whose attention sees its own four seconds and what was before; its rows are averaged four
at a time, and each average is named by the nearest vector of a codebook. What is longer than 30 s
is heard in pieces of 30 s that know nothing of one another, as in the reference.

The checkpoint also has a second table of positions, which is added to the vectors behind the
codebook for the part of the encoder that was left out (`embed_positions2`), and what training kept
of the codebook (`ema_count`, `ema_weight`); tokens need neither.

Source: zai-org/GLM-4-Voice, `speech_tokenizer/modeling_whisper.py`, `speech_tokenizer/utils.py`
(Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.batches import Batcher
from models.audio.mel import WHISPER_HOP, WHISPER_RATE_HZ, whisper_mel
from models.audio.whisper_encoder import EncoderShape, load_whisper_encoder
from models.checkpoint import Taker, read_config, read_safetensors
from models.errors import WeightError

PIECE_S: Final = 30
PIECE_SAMPLES: Final = PIECE_S * WHISPER_RATE_HZ
MAX_BATCH: Final = 8
"""Pieces encoded in one call: a piece of 30 s needs some 100 MB while it is under way."""
PREFIX: Final = "model.encoder."
"""Of the keys, where the file holds a whole Whisper model."""
UNUSED: Final = ("embed_positions2.weight", "ema_count", "ema_weight", "layer_norm.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HearingConfig:
    """Shape of a checkpoint.

    Args:
        encoder: its shape.
        n_pooled: rows of it that make a token.
        n_codes: of the codebook.
    """

    encoder: EncoderShape
    n_pooled: int
    n_codes: int

    @property
    def samples_per_token(self) -> int:
        """PCM samples of a token, at 16 kHz."""
        first, second = self.encoder.strides
        return WHISPER_HOP * first * second * self.n_pooled


def read_hearing_config(folder: Path) -> HearingConfig:
    """What `config.json` states. Raises: `WeightError`, it names the key."""
    config = read_config(folder / "config.json")
    for key, value in (
        ("activation_function", "gelu"),
        ("encoder_causal_attention", False),
        ("quantize_causal_encoder", False),
        ("pooling_type", "avg"),
        ("scale_embedding", False),
    ):
        config.expect(key, value)
    n_layers = config.count("quantize_position")
    if config.count("pooling_position") != n_layers:
        raise WeightError(
            f"config.json has pooling_position {config.count('pooling_position')}, "
            f"quantize_position {n_layers}: rows are pooled and named at once here"
        )
    hidden = config.count("d_model")
    return HearingConfig(
        encoder=EncoderShape(
            n_mels=config.count("num_mel_bins"),
            hidden=hidden,
            n_heads=config.divisor("encoder_attention_heads", hidden),
            inner=config.count("encoder_ffn_dim"),
            n_layers=n_layers,
            max_rows=config.count("max_source_positions"),
            is_causal=config.flag("encoder_causal_convolution"),
            block_rows=config.count("quantize_causal_block_size"),
        ),
        n_pooled=config.count("pooling_kernel_size"),
        n_codes=config.count("quantize_vocab_size"),
    )


class Hearing(nn.Module):
    """Speech to tokens.

    Args:
        config: shape of the weights.
        tensors: by the checkpoint's keys.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self, config: HearingConfig, tensors: Mapping[str, Tensor], *, source: str
    ) -> None:
        super().__init__()
        self.config = config
        if any(key.startswith(PREFIX) for key in tensors):
            own = [(key, tensor) for key, tensor in tensors.items() if key.startswith(PREFIX)]
            tensors = {key.removeprefix(PREFIX): tensor for key, tensor in own}
        used = {key: tensor for key, tensor in tensors.items() if not key.startswith(UNUSED)}
        take = Taker(used, source)
        self.codebook = take("codebook.weight", config.n_codes, config.encoder.hidden)
        self.encoder = load_whisper_encoder(config.encoder, used, source=source)
        self._batcher: Batcher[Tensor, Tensor] = Batcher(MAX_BATCH, len)
        self.requires_grad_(False).eval()

    def tokens(self, pcm: Tensor) -> Tensor:
        """Tokens `(m,)` int64, on the CPU, of PCM `(n,)` at 16 kHz: one for each 80 ms begun."""
        pieces = [pcm[at : at + PIECE_SAMPLES] for at in range(0, len(pcm), PIECE_SAMPLES)]
        found = self._batcher.results(pieces, self._run)
        return torch.cat([*found, torch.zeros(0, dtype=torch.int64)])

    def forward(self, mel: Tensor, n_samples: Tensor) -> Tensor:
        """Tokens `(B, m)` of mel frames `(B, n_mels, T)` of whole tokens.

        Args:
            mel: of PCM that is padded with silence.
            n_samples: `(B,)` of it before that; attention does not look at rows behind them.
        """
        first, second = self.config.encoder.strides
        width = WHISPER_HOP * first * second
        n_attended = (n_samples + width - 1).div(width, rounding_mode="floor")
        rows = self.encoder(mel, None, n_attended)
        pooled = nn.functional.avg_pool1d(rows.transpose(1, 2), self.config.n_pooled)
        return self._nearest(pooled.transpose(1, 2))

    def _nearest(self, x: Tensor) -> Tensor:
        """The code of the nearest vector, `(B, m)`, of each row of `x` `(B, m, hidden)`."""
        apart = self.codebook.square().sum(dim=1) - 2 * (x @ self.codebook.T)
        found: Tensor = apart.argmin(dim=2)
        return found

    @torch.inference_mode()
    def _run(self, pieces: list[Tensor]) -> Sequence[Tensor]:
        """Of pieces `(n,)` of up to 30 s; none depends on the others."""
        width, device = self.config.samples_per_token, self.codebook.device
        mels = []
        for piece in pieces:
            padded = nn.functional.pad(piece.to(device), (0, -len(piece) % width))
            mels.append(whisper_mel(padded, self.config.encoder.n_mels).T)
        mel = nn.utils.rnn.pad_sequence(mels, batch_first=True).mT
        n_samples = torch.tensor([len(piece) for piece in pieces], device=device)
        tokens = self(mel, n_samples).cpu()
        return [row[: -(-len(one) // width)] for row, one in zip(tokens, pieces, strict=True)]


def load_hearing(folder: Path) -> Hearing:
    """The speech tokenizer of a folder, on the CPU in float32. Raises: `WeightError`."""
    source = f"{folder.name}/model.safetensors"
    return Hearing(read_hearing_config(folder), read_safetensors(folder), source=source)
