"""The convolutional decoder that SNAC and DAC share: snake activations, upsampling, residual units.

Activations are `(B, C, 1, n)` in channels-last format: convolutions of height 1, of which depthwise
ones run ten times as fast on a CPU as in the `(B, C, n)` form (Zen 5 core, 64 channels, 45056
positions: 0.5 against 11 ms). Before every convolution that looks around, what lies outside of the
utterance is silenced, as `models.codecs.windowed` needs it.

Source: Kumar et al. 2023 (DAC), section 3 and appendix A; Siuzdak et al. 2024 (SNAC), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.conv import Grid, Span, silence
from models.layers.linear import linear_of

DILATIONS = (1, 3, 9)
KERNEL = 7


class Snake(nn.Module):
    """`x + sin(alpha * x)**2 / alpha`, one alpha a channel. Source: Ziyin et al. 2020."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, n_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        alpha = self.alpha.unsqueeze(-1)
        # In place: the memory that passes by is what it costs.
        waves = (alpha * x).sin_().square_()
        return waves.mul_((alpha + 1e-9).reciprocal()).add_(x)


class Pointwise(nn.Conv1d):
    """A matrix for each position. Implements `models.layers.linear.Packable`."""

    def __init__(self, n_in: int, n_out: int, *, has_bias: bool = True) -> None:
        super().__init__(n_in, n_out, 1, bias=has_bias)
        self.rows: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n_in, 1, n)` to `(B, n_out, 1, n)`."""
        if self.rows is None:
            return functional.conv2d(x, self.weight.unsqueeze(2), self.bias)
        # Positions lie behind one another with their channels, as rows do.
        out: Tensor = self.rows(x.permute(0, 2, 3, 1))
        return out.permute(0, 3, 1, 2)

    def as_linear(self) -> nn.Linear | None:
        """The matrix as a layer over rows; None once it is replaced."""
        return None if self.rows is not None else linear_of(self.weight.squeeze(2), self.bias)

    def replace_by(self, layer: nn.Module) -> None:
        """Multiply by `layer` from now on."""
        self.rows = layer
        del self.weight, self.bias


class EdgeConv(nn.Conv1d):
    """A same-padded convolution that sees silence outside of the utterance."""

    def __init__(
        self, n_in: int, n_out: int, kernel: int, *, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__(n_in, n_out, kernel, dilation=dilation, groups=groups)
        self.n_edge = dilation * (kernel - 1) // 2

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:  # type: ignore[override] # edges
        """Map `(B, n_in, 1, n)` to `(B, n_out, 1, n)`; `rate` positions a frame."""
        return functional.conv2d(
            at_edges(x, span, rate),
            self.weight.unsqueeze(2),
            self.bias,
            padding=(0, self.n_edge),
            dilation=(1, self.dilation[0]),
            groups=self.groups,
        )


class ResidualUnit(nn.Module):
    """`x + conv1(snake(conv7(snake(x))))`."""

    def __init__(self, n_channels: int, dilation: int, groups: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                Snake(n_channels),
                EdgeConv(n_channels, n_channels, KERNEL, dilation=dilation, groups=groups),
                Snake(n_channels),
                Pointwise(n_channels, n_channels),
            ]
        )

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        """Same shape."""
        y = self.block[1](self.block[0](x), span, rate)
        out: Tensor = self.block[3](self.block[2](y)).add_(x)
        return out


class Upsample(nn.ConvTranspose1d):
    """`stride` positions for each one, over a kernel of twice that."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__(n_in, n_out, 2 * stride, stride=stride)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:  # type: ignore[override] # edges
        """Map `(B, n_in, 1, n)` to `(B, n_out, 1, n * stride)`; `rate` is that of the input."""
        stride = self.stride[0]
        return functional.conv_transpose2d(
            at_edges(x, span, rate),
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, stride),
            padding=(0, math.ceil(stride / 2)),
            output_padding=(0, stride % 2),
        )


def reach_samples(strides: Sequence[int]) -> int:
    """How far a code reaches beyond its own span, in samples, by the kernels and strides.

    Args:
        strides: of the upsampling blocks, in order.
    """
    finest = math.prod(strides)
    reach = (KERNEL // 2) * finest
    for stride in strides:
        finest //= stride
        # A transposed kernel of two strides: half a stride to either side, rounded up.
        reach += math.ceil(stride / 2) * finest
        reach += sum(DILATIONS) * (KERNEL // 2) * finest
    return reach + KERNEL // 2


class Codebook(nn.Module):
    """Entries of a codebook, brought to the decoder's channels."""

    def __init__(self, n_codes: int, code_dim: int, n_out: int) -> None:
        super().__init__()
        self.codebook = nn.Embedding(n_codes, code_dim)
        self.out_proj = nn.Conv1d(code_dim, n_out, 1)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes `(B, n)` to `(B, n_out, n)`."""
        entries: Tensor = self.out_proj(self.codebook(codes).transpose(1, 2))
        return entries


def decoding_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What decoding uses of a whole checkpoint."""
    return {
        key: tensor
        for key, tensor in tensors.items()
        if not (key.startswith("encoder.") or ".in_proj." in key)
    }


def as_channels_last(x: Tensor) -> Tensor:
    """`(B, C, n)` as the layers here take it."""
    return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def at_edges(x: Tensor, span: Span, rate: int) -> Tensor:
    """`x` `(B, C, 1, n)` with zeros outside of the utterance."""
    rows = x.squeeze(2).transpose(1, 2)
    return silence(rows, span, Grid(rate)).transpose(1, 2).unsqueeze(2)
