"""Perth's implicit mark: a change of magnitudes below 2 kHz that says only that it is there.

It is laid where a column is louder than a share of the loudest; here of the loudest so far, up to
the look-ahead. On the scale that is compared, which has digital silence at 0, that is nearly always
the same.

Source: resemble-ai/Perth (MIT), `perth_net_implicit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.checkpoint import read_torch_file, read_yaml
from models.errors import WeightError
from models.watermark.spectra import Columns, Mark, by_need
from models.weights import load_weights

CONFIG: Final = "hparams.yaml"
SUFFIX: Final = ".pth.tar"
N_WIDE: Final = 5
"""Layers that read neighbouring columns."""
KERNEL: Final = 7
SLOPE: Final = 0.01
SHARE: Final = 0.05
HEADROOM_DB: Final = 15.0
_OTHERS: Final = ("decoder.", "ap.")
"""Keys of what finds the mark, and of windows that are made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerthConfig:
    """What a folder's `hparams.yaml` states.

    Args:
        rate_hz: of the signal.
        n_fft: samples of a transform.
        n_hop: samples between transforms.
        n_band: bins that are marked, the lowest.
        width: channels.
        least: magnitude that counts as silence.
    """

    rate_hz: int
    n_fft: int
    n_hop: int
    n_band: int
    width: int
    least: float


def read_perth_config(folder: Path) -> PerthConfig:
    """What `hparams.yaml` states. Raises: `WeightError`, it names the key."""
    config = read_yaml(folder / CONFIG)
    n_fft, rate_hz = config.integer("n_fft"), config.integer("sample_rate")
    config.expect("window_fn", "hann")
    config.expect("window_size", n_fft)
    n_bins = n_fft // 2 + 1
    n_band = round(n_bins * config.number("max_wmark_freq") / (rate_hz / 2))
    if not 0 < n_band <= n_bins:
        raise WeightError(f"{CONFIG}: max_wmark_freq gives a band of {n_band} bins of {n_bins}")
    return PerthConfig(
        rate_hz=rate_hz,
        n_fft=n_fft,
        n_hop=config.integer("hop_size"),
        n_band=n_band,
        width=config.integer("hidden_size"),
        least=config.number("stft_magnitude_min"),
    )


class Layer(nn.Module):
    """A convolution, and what follows it. Columns become fewer by the kernel."""

    def __init__(self, n_in: int, n_out: int, kernel: int, *, is_last: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(n_in, n_out, kernel)
        self.is_last = is_last

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n_in, n)` to `(B, n_out, n - kernel + 1)`."""
        out: Tensor = self.conv(x)
        return out if self.is_last else nn.functional.leaky_relu(out, SLOPE)


class Encoder(nn.Module):
    """Columns of a band to what is added to them."""

    def __init__(self, config: PerthConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                Layer(config.n_band, config.width, 1),
                *(Layer(config.width, config.width, KERNEL) for _ in range(N_WIDE)),
                Layer(config.width, config.n_band, 1, is_last=True),
            ]
        )

    def forward(self, x: Tensor, columns: Columns) -> Tensor:
        """Map `(B, n_band, count)`, silent outside of the signal, to `(B, n, n_band)`."""
        exist = columns.exist.to(x.dtype)
        for layer in self.layers:
            n_before = x.shape[2]
            x = layer(x)
            n_edge = (n_before - x.shape[2]) // 2
            exist = exist[:, n_edge : exist.shape[1] - n_edge]
            # As whole signals are padded.
            x = x * exist.unsqueeze(1)
        return x.transpose(1, 2)


class Perth(Mark):
    """The mark.

    Args:
        config: shape of the weights.
        encoder: with its weights.
    """

    def __init__(self, config: PerthConfig, encoder: Encoder) -> None:
        super().__init__(
            "Perth",
            rate_hz=config.rate_hz,
            n_fft=config.n_fft,
            n_hop=config.n_hop,
            reach=N_WIDE * (KERNEL // 2),
            level_size=1,
        )
        self.config = config
        self.encoder = encoder
        self.requires_grad_(False)

    def changes(self, spectra: Tensor, columns: Columns, level: Tensor) -> tuple[Tensor, Tensor]:
        """See `Mark.changes`; the level is that of the loudest column so far."""
        reach, band = self.reach, self.config.n_band
        floor = math.log10(self.config.least)
        # The scale of the network: silence at 0, and 1 is 15 dB above a magnitude of 1.
        unit = HEADROOM_DB / 20 - floor
        logs = (spectra.abs().clamp(min=self.config.least).log10() - floor) / unit
        logs = logs * columns.exist.unsqueeze(2)
        loudness = logs.sum(dim=2)
        loudest = torch.maximum(loudness.cummax(dim=1).values, level)
        middle = slice(reach, columns.count - reach)
        is_loud = loudness[:, middle] > SHARE * loudest[:, 2 * reach :]
        x = logs[:, :, :band].transpose(1, 2)
        added = by_need(self.encoder, x, columns, reach) * is_loud.unsqueeze(2)
        changes = torch.zeros_like(spectra[:, middle])
        changes[:, :, :band] = spectra[:, middle, :band] * (10 ** (added * unit) - 1)
        before = torch.cat([level, loudest[:, : columns.count - 2 * reach]], dim=1)
        return changes, before.unsqueeze(2)


def load_perth(folder: Path) -> Perth:
    """The mark of a folder that holds `hparams.yaml` and the newest `perth_net_*.pth.tar`.

    Raises:
        WeightError: a file is missing, or does not fit; keys are named.
    """
    config = read_perth_config(folder)
    path = newest(folder)
    held = read_torch_file(path, "model")
    prefix = "encoder."
    stray = [key for key in held if not key.startswith((prefix, *_OTHERS))]
    if stray:
        raise WeightError(f"{path.name} holds what is of no Perth: {stray[0]}")
    names = {key.removeprefix(prefix): key for key in held if key.startswith(prefix)}
    encoder = Encoder(config)
    called = {**{key: f"{prefix}{key}" for key in encoder.state_dict()}, **names}
    tensors = {key: held[name] for key, name in names.items()}
    load_weights(encoder, tensors, source=path.name, names=called)
    return Perth(config, encoder)


def newest(folder: Path) -> Path:
    """The weights of the most steps. Raises: `WeightError`: there are none."""
    steps = {}
    for path in folder.glob(f"*{SUFFIX}"):
        number = path.name.removesuffix(SUFFIX).rpartition("_")[2]
        if number.isdecimal():
            steps[int(number)] = path
    if not steps:
        raise WeightError(f"{folder} has no perth_net_*{SUFFIX}, the weights of Perth")
    return steps[max(steps)]
