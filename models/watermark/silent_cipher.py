"""SilentCipher: a message of five bytes, taken out of a signal's magnitudes below 11 kHz.

The published form needs the whole signal; here what was heard so far stands for it. The loudness
that the network is given and the strength of the mark follow the mean of the columns, up to the
look-ahead, and the mark has a budget: at no time is more taken away than `SDR_DB` below what came
in. Batch norms use the averages in the weights (the published package never leaves its training
mode, and so uses those of the signal at hand).

Source: Singh et al. 2024, "SilentCipher", and its package 1.0.5 (MIT): `model.py`, `server.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.checkpoint import read_torch_file, read_yaml
from models.errors import WeightError
from models.watermark.choice import MESSAGE_BYTES
from models.watermark.spectra import Columns, Mark, by_need
from models.weights import load_weights

CONFIG: Final = "hparams.yaml"
ENCODER: Final = "enc_c.ckpt"
DECODER: Final = "dec_c.ckpt"
SDR_DB: Final = 36.0
"""Of the signal over the mark. Source: SesameAILabs/csm, `watermarking.py`."""
ENERGY: Final = 0.002837200844477648
"""Mean square of the signals that it was trained on. Source: `server.py`."""
ENCODER_WIDTH: Final = 32
DECODER_WIDTH: Final = 96
N_SYMBOLS: Final = 5
"""Two bits each, and one that ends the message."""
N_PRIOR: Final = 8
"""Columns of the usual loudness, 0.4 s, that count before the first: it may be of silence. With
them the gain of spoken sentences is within 2.5 dB of the whole's from the first column on, without
them 127 dB too high (5.7, 1.4 and 0.6 s of `pico`)."""
_LEAST: Final = 1e-12
_PARALLEL: Final = re.compile(r"^module\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CipherConfig:
    """What a folder's `hparams.yaml` states.

    Args:
        rate_hz: of the signal.
        n_fft: samples of a transform.
        n_hop: samples between transforms.
        n_band: bins that are marked, the lowest.
        n_encoder: layers that read the signal.
        n_decoder: layers that write the mark.
        period: columns of a message.
    """

    rate_hz: int
    n_fft: int
    n_hop: int
    n_band: int
    n_encoder: int
    n_decoder: int
    period: int

    @property
    def reach(self) -> int:
        """Columns to either side; the last layer looks at its own alone."""
        return self.n_encoder + self.n_decoder - 1


def read_cipher_config(folder: Path) -> CipherConfig:
    """What `hparams.yaml` states. Raises: `WeightError`, it names the key."""
    config = read_yaml(folder / CONFIG)
    for key, value in (
        ("n_messages", 1),
        ("message_dim", N_SYMBOLS),
        ("message_len", 4 * MESSAGE_BYTES + 1),
        ("ensure_negative_message", True),
        ("utterance_level_normalization", True),
        ("frame_level_normalization", False),
        ("no_normalization", False),
    ):
        config.expect(key, value)
    read = CipherConfig(
        rate_hz=config.integer("SR"),
        n_fft=config.integer("N_FFT"),
        n_hop=config.integer("HOP_LENGTH"),
        n_band=config.integer("message_band_size"),
        n_encoder=config.integer("enc_n_layers"),
        n_decoder=config.integer("dec_c_n_layers"),
        period=config.integer("message_len"),
    )
    if not 0 < read.n_band <= read.n_fft // 2 + 1:
        raise WeightError(
            f"{CONFIG}: message_band_size is {read.n_band}, and there are "
            f"{read.n_fft // 2 + 1} bins"
        )
    return read


class GatedLayer(nn.Module):
    """Convolution with a gate, then batch norm by the averages in the weights.

    Columns become fewer by the kernel; bins stay as many.

    Args:
        n_in: channels.
        n_out: channels.
        kernel: bins and columns of the filters.
    """

    def __init__(self, n_in: int, n_out: int, kernel: int) -> None:
        super().__init__()
        padding = (kernel // 2, 0)
        self.conv = nn.Conv2d(n_in, n_out, kernel, padding=padding)
        self.gate = nn.Conv2d(n_in, n_out, kernel, padding=padding)
        self.bn = nn.BatchNorm2d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n_in, bins, n)` to `(B, n_out, bins, n - kernel + 1)`."""
        out: Tensor = self.bn(self.conv(x) * self.gate(x).sigmoid())
        return out


class Encoder(nn.Module):
    """Reads the signal; and spells the message, a symbol a column."""

    def __init__(self, config: CipherConfig) -> None:
        super().__init__()
        widths = [1] + [ENCODER_WIDTH] * config.n_encoder
        self.main = nn.Sequential(*(GatedLayer(n_in, n_out, 3) for n_in, n_out in pairwise(widths)))
        self.linear = nn.Linear(N_SYMBOLS, config.n_band)


class Decoder(nn.Module):
    """Writes the mark, of the encoder's channels, the signal and the message.

    The last two stand in as many channels as the encoder has: their filters are added up.
    """

    def __init__(self, config: CipherConfig) -> None:
        super().__init__()
        inner = [DECODER_WIDTH] * config.n_decoder
        self.main = nn.Sequential(
            *(GatedLayer(n_in, n_out, 3) for n_in, n_out in pairwise(inner)),
            GatedLayer(DECODER_WIDTH, 1, 1),
        )

    def join_copies(self) -> None:
        """Add up the first layer's filters of channels that are the same. Once, after loading."""
        first = self.main[0]
        assert isinstance(first, GatedLayer), "as made above"
        for conv in (first.conv, first.gate):
            of_encoder, of_signal, of_message = conv.weight.detach().chunk(3, dim=1)
            joined = [of_encoder, of_signal.sum(1, keepdim=True), of_message.sum(1, keepdim=True)]
            conv.weight = nn.Parameter(torch.cat(joined, dim=1), requires_grad=False)


class SilentCipher(Mark):
    """The mark.

    Args:
        config: shape of the weights.
        encoder: with its weights.
        decoder: with its weights.
        message: that is spelt over and over.
    """

    symbols: Tensor

    def __init__(
        self, config: CipherConfig, encoder: Encoder, decoder: Decoder, message: bytes
    ) -> None:
        super().__init__(
            "SilentCipher",
            rate_hz=config.rate_hz,
            n_fft=config.n_fft,
            n_hop=config.n_hop,
            reach=config.reach,
            level_size=2,
        )
        self.config = config
        self.encoder = encoder
        self.decoder = decoder
        # Bins above the band reach into it, through one layer after another.
        self._n_bins = min(config.n_band + config.reach, config.n_fft // 2 + 1)
        one_hot = nn.functional.one_hot(spelt(message), N_SYMBOLS).float()
        with torch.no_grad():
            symbols = nn.functional.pad(encoder.linear(one_hot), (0, self._n_bins - config.n_band))
        self.register_buffer("symbols", symbols, persistent=False)
        decoder.join_copies()
        # NOTE: means of magnitudes squared and of samples squared go together by this factor.
        window = torch.hann_window(config.n_fft, dtype=torch.float64)
        self._power = float(window.square().sum()) * config.n_fft / (config.n_fft + 2)
        self.eval().requires_grad_(False)

    def padded(self, n_samples: Tensor) -> Tensor:
        """Zeros to the next whole transform, one at least."""
        return n_samples + self.n_fft - n_samples % self.n_fft

    def changes(self, spectra: Tensor, columns: Columns, level: Tensor) -> tuple[Tensor, Tensor]:
        """See `Mark.changes`; the level is what the columns had before, and what was taken away."""
        reach, band = self.reach, self.config.n_band
        magnitudes = spectra.abs() * columns.exist.unsqueeze(2)
        had = level[:, :1] + magnitudes.square().mean(dim=2).cumsum(dim=1)
        loudness = self._loudness(had, columns)
        strength, taken = self._strength(had, columns, level[:, 1])
        x = magnitudes[:, :, : self._n_bins] * loudness.unsqueeze(2)
        pattern = by_need(self._pattern, x.transpose(1, 2), columns, reach)
        middle = slice(reach, columns.count - reach)
        cut = torch.minimum(pattern * strength.unsqueeze(2), magnitudes[:, middle, :band])
        # Taken away in the direction in which each bin points.
        share = cut / magnitudes[:, middle, :band].clamp(min=_LEAST)
        changes = torch.zeros_like(spectra[:, middle])
        changes[:, :, :band] = spectra[:, middle, :band] * -share
        n = columns.count - 2 * reach
        before = torch.cat([level[:, :1], had[:, :n]], dim=1)
        return changes, torch.stack([before, taken], dim=2)

    def _loudness(self, had: Tensor, columns: Columns) -> Tensor:
        """The gain `(B, count)` that brings each column to the loudness of the training.

        Args:
            had: what there was up to each column, `(B, count)`: sums of mean squares.
            columns: where they stand.
        """
        usual = ENERGY * self._power
        mean = (had + N_PRIOR * usual) / (_n_heard(columns) + N_PRIOR)
        return (usual / mean).sqrt()

    def _strength(self, had: Tensor, columns: Columns, before: Tensor) -> tuple[Tensor, Tensor]:
        """How strong the mark is in each column that is changed.

        Returns:
            `(B, n)`; and what was taken away before each and after the last of them, `(B, n + 1)`,
            as if the mark were as loud as the signal.
        """
        ahead = 2 * self.reach
        exist = columns.exist[:, self.reach : columns.count - self.reach]
        known, mean = had[:, ahead:], (had / _n_heard(columns))[:, ahead:] * exist
        taken = [before]
        for n in range(exist.shape[1]):
            # The mean so far, unless earlier and louder columns have used it up.
            left = torch.maximum(taken[-1], known[:, n])
            taken.append(torch.minimum(taken[-1] + mean[:, n], left))
        steps = torch.stack(taken, dim=1)
        return steps.diff(dim=1).sqrt() * 10 ** (-SDR_DB / 20), steps

    def _pattern(self, x: Tensor, columns: Columns) -> Tensor:
        """How the mark lies over the bins of each column, `(B, n, band)`, a mean square of 1.

        Args:
            x: magnitudes `(B, bins, count)`, zero in columns that do not exist.
            columns: where they stand.
        """
        exist = columns.exist.to(x.dtype)
        signal = x.unsqueeze(1)
        read = _run(self.encoder.main, signal, exist)
        n_edge = self.config.n_encoder
        inner = slice(n_edge, columns.count - n_edge)
        letters = self.symbols[columns.numbers[:, inner] % self.config.period]
        message = (letters * exist[:, inner].unsqueeze(2)).transpose(1, 2)
        merged = torch.cat([read, signal[..., inner], message.unsqueeze(1)], dim=1)
        written = _run(self.decoder.main, merged, exist[:, inner])[:, 0].abs()
        marks = written[:, : self.config.n_band].transpose(1, 2)
        power = marks.square().sum(dim=2, keepdim=True) / (self.n_fft // 2 + 1)
        return marks / power.clamp(min=_LEAST).sqrt()


def _n_heard(columns: Columns) -> Tensor:
    """Columns of the signal up to each, `(B, count)`; 1 where there is none."""
    return torch.minimum(columns.numbers + 1, columns.n_all.unsqueeze(1)).clamp(min=1)


def _run(layers: nn.Module, x: Tensor, exist: Tensor) -> Tensor:
    """Layers one after another; columns that do not exist stay silent, as whole signals are padded.

    Args:
        layers: a sequence.
        x: `(B, C, bins, n)`.
        exist: `(B, n)`, 1 or 0.
    """
    for layer in layers.children():
        n_before = x.shape[3]
        x = layer(x)
        n_edge = (n_before - x.shape[3]) // 2
        exist = exist[:, n_edge : exist.shape[1] - n_edge]
        x = x * exist[:, None, None]
    return x


def spelt(message: bytes) -> Tensor:
    """The symbols of a message, two bits each, and the one that ends it: `(period,)` int64."""
    assert len(message) == MESSAGE_BYTES, "checked where it is read"
    pairs = [byte >> shift & 3 for byte in message for shift in (6, 4, 2, 0)]
    return torch.tensor([*(pair + 1 for pair in pairs), 0])


def load_silent_cipher(folder: Path, message: bytes) -> SilentCipher:
    """The mark of a folder that holds `hparams.yaml`, `enc_c.ckpt` and `dec_c.ckpt`.

    Raises:
        WeightError: a file is missing, or does not fit; keys are named.
    """
    config = read_cipher_config(folder)
    encoder, decoder = Encoder(config), Decoder(config)
    for module, file in ((encoder, ENCODER), (decoder, DECODER)):
        held = read_torch_file(folder / file)
        tensors = {_PARALLEL.sub("", key): tensor for key, tensor in held.items()}
        names = {_PARALLEL.sub("", key): key for key in held}
        load_weights(module, tensors, source=file, names=names)
    return SilentCipher(config, encoder, decoder, message)
