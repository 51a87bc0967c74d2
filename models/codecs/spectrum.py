"""Short Fourier transforms and back, as convolutions over a window of a signal.

Source: Allen and Rabiner 1977; the conventions of `torch.stft` and `torch.istft` with a periodic
Hann window, centred.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.conv import Grid, Span, silence

MAX_MAGNITUDE = 100.0
"""Of a bin. Source: CosyVoice, `hifigan/generator.py`."""
_LEAST_COVER = 1e-8


class Transform(nn.Module):
    """Real parts, then imaginary ones, of windowed transforms.

    Args:
        n_fft: samples of a transform.
        n_hop: samples between transforms.
    """

    basis: Tensor

    def __init__(self, n_fft: int, n_hop: int) -> None:
        super().__init__()
        self.n_hop = n_hop
        basis = _waves(n_fft) * _window(n_fft)
        self.register_buffer("basis", basis.float().view(-1, 1, 1, n_fft), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1, 1, n_fft + n)` to `(B, n_fft + 2, 1, n / n_hop + 1)`."""
        return functional.conv2d(x, self.basis, stride=(1, self.n_hop))


class InverseTransform(nn.Module):
    """Logarithms of magnitudes, and what phases are the sines of, back to a signal.

    Args:
        n_fft: samples of a transform.
        n_hop: samples between transforms.
    """

    basis: Tensor
    cover: Tensor

    def __init__(self, n_fft: int, n_hop: int) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.n_hop = n_hop
        # Bins between the first and the last stand for their mirror images too.
        weights = torch.full((n_fft // 2 + 1,), 2.0, dtype=torch.float64)
        weights[0] = weights[-1] = 1.0
        basis = _waves(n_fft) * weights.repeat(2).unsqueeze(1) * _window(n_fft) / n_fft
        self.register_buffer("basis", basis.float().unsqueeze(1), persistent=False)
        cover = _window(n_fft).square().float().view(1, 1, n_fft)
        self.register_buffer("cover", cover, persistent=False)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        """Map `(B, n_fft + 2, n + 1)`, at transforms as `span` says, to `(B, n * n_hop)`."""
        logs, turns = x.chunk(2, dim=1)
        magnitudes, phases = logs.exp().clamp(max=MAX_MAGNITUDE), turns.sin()
        bins = torch.cat([magnitudes * phases.cos(), magnitudes * phases.sin()], dim=1)
        # What does not exist must not count: neither in the sum nor in what covers a sample.
        inside = silence(torch.ones_like(x[:, :1]).transpose(1, 2), span, Grid()).transpose(1, 2)
        added = functional.conv_transpose1d(bins * inside, self.basis, stride=self.n_hop)
        cover = functional.conv_transpose1d(inside, self.cover, stride=self.n_hop)
        n_edge = self.n_fft // 2
        signal = added / cover.clamp(min=_LEAST_COVER)
        return signal[:, 0, n_edge : signal.shape[2] - n_edge]


def _waves(n_fft: int) -> Tensor:
    """Cosines, then negative sines, of each bin: `(n_fft + 2, n_fft)` float64."""
    bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64).unsqueeze(1)
    angles = 2 * torch.pi / n_fft * bins * torch.arange(n_fft, dtype=torch.float64)
    return torch.cat([angles.cos(), -angles.sin()])


def _window(n_fft: int) -> Tensor:
    return torch.hann_window(n_fft, periodic=True, dtype=torch.float64)
