"""The convolutional decoder that SNAC and DAC share: snake activations, upsampling, residual units.

Channels first, `(B, C, n)`. Before every convolution that looks around, what lies outside of the
utterance is silenced, as `models.codecs.windowed` needs it.

Source: Kumar et al. 2023 (DAC), section 3 and appendix A; Siuzdak et al. 2024 (SNAC), section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from models.layers.conv import Grid, Span, silence

DILATIONS = (1, 3, 9)
KERNEL = 7


class Snake(nn.Module):
    """`x + sin(alpha * x)**2 / alpha`, one alpha a channel. Source: Ziyin et al. 2020."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, n_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class EdgeConv(nn.Conv1d):
    """A same-padded convolution that sees silence outside of the utterance."""

    def __init__(
        self, n_in: int, n_out: int, kernel: int, *, dilation: int = 1, groups: int = 1
    ) -> None:
        padding = dilation * (kernel - 1) // 2
        super().__init__(n_in, n_out, kernel, padding=padding, dilation=dilation, groups=groups)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:  # type: ignore[override] # edges
        """Map `(B, n_in, n)` to `(B, n_out, n)`; `rate` positions a frame."""
        return super().forward(at_edges(x, span, rate))


class ResidualUnit(nn.Module):
    """`x + conv1(snake(conv7(snake(x))))`."""

    def __init__(self, n_channels: int, dilation: int, groups: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                Snake(n_channels),
                EdgeConv(n_channels, n_channels, KERNEL, dilation=dilation, groups=groups),
                Snake(n_channels),
                nn.Conv1d(n_channels, n_channels, 1),
            ]
        )

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        """Same shape."""
        y = self.block[1](self.block[0](x), span, rate)
        out: Tensor = x + self.block[3](self.block[2](y))
        return out


class Upsample(nn.ConvTranspose1d):
    """`stride` positions for each one, over a kernel of twice that."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__(
            n_in,
            n_out,
            2 * stride,
            stride=stride,
            padding=math.ceil(stride / 2),
            output_padding=stride % 2,
        )

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:  # type: ignore[override] # edges
        """Map `(B, n_in, n)` to `(B, n_out, n * stride)`; `rate` is that of the input."""
        return super().forward(at_edges(x, span, rate))


def at_edges(x: Tensor, span: Span, rate: int) -> Tensor:
    """`x` `(B, C, n)` with zeros outside of the utterance."""
    return silence(x.transpose(1, 2), span, Grid(rate)).transpose(1, 2)
