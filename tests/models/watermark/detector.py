"""Finds SilentCipher's message, as its package does: what a mark is for, and nothing of a server.

Source: `silentcipher` 1.0.5, `model.py` and `server.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from models.checkpoint import read_torch_file
from models.watermark.silent_cipher import (
    N_SYMBOLS,
    CipherConfig,
    GatedLayer,
    read_cipher_config,
)
from models.weights import load_weights

FILE = "dec_m_0.ckpt"
WIDTH = 128
N_LAYERS = 10


class Detector(nn.Module):
    """Reads magnitudes below 11 kHz, column by column."""

    def __init__(self, config: CipherConfig) -> None:
        super().__init__()
        self.config = config
        widths = [1] + [WIDTH] * (N_LAYERS - 1) + [N_SYMBOLS]
        # Before each layer stands one that only training knows.
        self.main = nn.ModuleDict(
            {str(2 * n + 1): GatedLayer(widths[n], widths[n + 1], 3) for n in range(N_LAYERS)}
        )
        self.linear = nn.Linear(config.n_band, 1)
        self.eval().requires_grad_(False)

    def forward(self, signal: Tensor) -> Tensor:
        """A signal `(n,)` at the mark's rate and loudness to logits `(columns, symbols)`."""
        config = self.config
        padded = nn.functional.pad(signal, (0, config.n_fft - len(signal) % config.n_fft))
        window = torch.hann_window(config.n_fft)
        spectra = torch.stft(padded, config.n_fft, config.n_hop, window=window, return_complex=True)
        x = spectra.abs()[None, None, : config.n_band]
        for layer in self.main.values():
            x = layer(nn.functional.pad(x, (1, 1)))
        logits: Tensor = self.linear(x.transpose(2, 3))[0, :, :, 0].T
        return logits


def load_detector(folder: Path) -> Detector:
    detector = Detector(read_cipher_config(folder))
    load_weights(detector, read_torch_file(folder / FILE), source=FILE)
    return detector


def message_of(logits: Tensor, period: int) -> bytes | None:
    """What is spelt over and over, by the votes of all its turns; None: nothing that ends."""
    symbols = logits.argmax(dim=1)
    turns = symbols[: len(symbols) // period * period].view(-1, period)
    votes = turns.mode(dim=0).values.tolist()
    if 0 not in votes:
        return None
    end = votes.index(0)
    pairs = [symbol - 1 for symbol in votes[end + 1 :] + votes[:end]]
    if min(pairs) < 0:
        return None
    return bytes(
        pairs[n] << 6 | pairs[n + 1] << 4 | pairs[n + 2] << 2 | pairs[n + 3]
        for n in range(0, len(pairs), 4)
    )
