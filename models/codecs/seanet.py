"""A SEANet that is not causal: convolutions that see the utterance mirrored at its edges, an LSTM.

Activations are `(B, C, 1, n)` in channels-last format, as in `models.codecs.snake`, whose snakes
and upsampling layers are used here too. A window of an utterance says by a `Span` where it lies;
what lies outside of the utterance is mirrored before every convolution, so that whatever a window
gives far enough from its own borders is that of whole decoding.

Source: Tagliasacchi et al. 2020 (SEANet); Defossez et al. 2022 (EnCodec), section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.snake import Pointwise, Snake, Upsample
from models.layers.conv import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SeanetConfig:
    """Shape of an encoder and its decoder.

    Args:
        latent: channels between the two.
        n_filters: channels next to the PCM; twice as many after each stride.
        strides: of the decoder's blocks; their product is the samples of a frame.
        kernel: taps of the first layer.
        last_kernel: taps of the last one.
        residual_kernel: taps of the residual units.
        n_residual: units after each stride.
        dilation_base: unit j has a dilation of this to the power of j.
        compress: inner channels of a unit are its own over this.
        n_lstm_layers: of the LSTM.
    """

    latent: int
    n_filters: int
    strides: tuple[int, ...]
    kernel: int
    last_kernel: int
    residual_kernel: int
    n_residual: int
    dilation_base: int
    compress: int
    n_lstm_layers: int

    @property
    def width(self) -> int:
        """Channels of the LSTM."""
        return self.n_filters << len(self.strides)

    @property
    def dilations(self) -> tuple[int, ...]:
        """Of the residual units after a stride."""
        return tuple(self.dilation_base**idx for idx in range(self.n_residual))

    @property
    def edge(self) -> int:
        """Frames to either side that the LSTM's input of a frame depends on."""
        return self.kernel // 2

    @property
    def reach(self) -> int:
        """Frames to either side whose LSTM output changes a frame's audio."""
        finest = n_samples = math.prod(self.strides)
        reach = self.last_kernel // 2
        for stride in self.strides:
            finest //= stride
            # A transposed kernel of two strides: half a stride to either side, rounded up.
            reach += math.ceil(stride / 2) * finest
            reach += sum(self.dilations) * (self.residual_kernel // 2) * finest
        return math.ceil(reach / n_samples)


class SeanetDecoder(nn.Module):
    """Latents to PCM: a convolution, the LSTM, upsampling blocks.

    Args:
        config: its shape.
    """

    def __init__(self, config: SeanetConfig) -> None:
        super().__init__()
        width = config.width
        layers: list[nn.Module] = [
            MirrorConv(config.latent, width, config.kernel),
            SkipLstm(width, config.n_lstm_layers),
        ]
        for stride in config.strides:
            layers += [Snake(1), Upsample(width, width // 2, stride)]
            width //= 2
            layers += _residuals(config, width)
        layers += [Snake(1), MirrorConv(width, 1, config.last_kernel)]
        self.model = nn.ModuleList(layers)

    @property
    def lstm(self) -> SkipLstm:
        """Between what enters and what leaves."""
        lstm = self.model[1]
        assert isinstance(lstm, SkipLstm), "made so"
        return lstm

    def enter(self, x: Tensor, span: Span) -> Tensor:
        """Latents `(B, latent, 1, n)` to the LSTM's inputs `(B, width, n)`."""
        out: Tensor = self.model[0](x, span, 1)
        return out[:, :, 0]

    def leave(self, x: Tensor, span: Span) -> Tensor:
        """The LSTM's outputs `(B, width, 1, n)` to PCM `(B, n * samples_per_frame)`."""
        rate = 1
        for layer in self.model[2:]:
            x = layer(x) if isinstance(layer, Snake) else layer(x, span, rate)
            if isinstance(layer, Upsample):
                rate *= layer.stride[0]
        return x[:, 0, 0]


class SeanetEncoder(nn.Module):
    """Whole signals to latents.

    Args:
        config: its shape.
    """

    def __init__(self, config: SeanetConfig) -> None:
        super().__init__()
        width = config.n_filters
        layers: list[nn.Module] = [MirrorConv(1, width, config.kernel)]
        for stride in reversed(config.strides):
            layers += _residuals(config, width)
            layers += [Snake(1), MirrorConv(width, 2 * width, 2 * stride, stride=stride)]
            width *= 2
        layers += [SkipLstm(width, config.n_lstm_layers), Snake(1)]
        layers.append(MirrorConv(width, config.latent, config.last_kernel))
        self.model = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1, 1, n)` to `(B, latent, 1, T)`; the end is padded to a whole frame."""
        start = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for layer in self.model:
            if isinstance(layer, Snake):
                x = layer(x)
            elif isinstance(layer, SkipLstm):
                x = layer.whole(x)
            else:
                x = layer(x, Span(start=start, end=start + x.shape[3]), 1)
        return x


def _residuals(config: SeanetConfig, width: int) -> list[nn.Module]:
    inner = width // config.compress
    return [MirrorResidual(width, inner, config.residual_kernel, d) for d in config.dilations]


class MirrorConv(nn.Conv1d):
    """A same-padded convolution, for strides over whole signals too.

    Args:
        n_in: channels.
        n_out: channels.
        kernel: taps.
        stride: inputs for each output; the end is padded to whole strides.
        dilation: between taps.
    """

    def __init__(
        self, n_in: int, n_out: int, kernel: int, *, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__(n_in, n_out, kernel, stride=stride, dilation=dilation)
        n_edges = dilation * (kernel - 1) + 1 - stride
        self.n_right = n_edges // 2
        self.n_left = n_edges - self.n_right

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:  # type: ignore[override] # edges
        """Map `(B, n_in, 1, n)` to `(B, n_out, 1, n / stride)`; `rate` positions a frame."""
        n_right = self.n_right + -x.shape[3] % self.stride[0]
        return functional.conv2d(
            mirrored(x, span, rate, self.n_left, n_right),
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, self.stride[0]),
            dilation=(1, self.dilation[0]),
        )


class MirrorResidual(nn.Module):
    """`shortcut(x) + conv1(snake(conv(snake(x))))`, with one alpha a snake.

    Args:
        n_channels: in and out.
        n_inner: channels between the two convolutions.
        kernel: taps of the first.
        dilation: between them.
    """

    def __init__(self, n_channels: int, n_inner: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                Snake(1),
                MirrorConv(n_channels, n_inner, kernel, dilation=dilation),
                Snake(1),
                Pointwise(n_inner, n_channels),
            ]
        )
        self.shortcut = Pointwise(n_channels, n_channels)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        """Same shape."""
        y = self.block[1](self.block[0](x), span, rate)
        out: Tensor = self.block[3](self.block[2](y)).add_(self.shortcut(x))
        return out


class SkipLstm(nn.Module):
    """An LSTM beside its input.

    Args:
        size: of a row.
        n_layers: of the LSTM.
    """

    def __init__(self, size: int, n_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, size, n_layers)

    def forward(
        self, rows: Tensor, carried: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Map rows `(n, B, size)`, which follow on what is carried, `(layers, B, size)` each."""
        out, carried = self.lstm(rows, carried)
        return out + rows, carried

    def whole(self, x: Tensor) -> Tensor:
        """Map a whole signal `(B, size, 1, n)` to the same shape."""
        rows = x[:, :, 0].permute(2, 0, 1)
        out: Tensor = self.lstm(rows)[0] + rows
        return out.permute(1, 2, 0).unsqueeze(2).contiguous(memory_format=torch.channels_last)


def mirrored(x: Tensor, span: Span, rate: int, n_left: int, n_right: int) -> Tensor:
    """`x` `(B, C, 1, n)` with so many positions more to either side, mirrored outside of the whole.

    Positions that are neither in `x` nor outside of the utterance get values without meaning. An
    utterance that is no longer than its edges is mirrored with zeros behind it, as the reference
    pads it.
    """
    n_rows, n_channels, _, n = x.shape
    first, end = (span.start * rate).unsqueeze(1), (span.end * rate).unsqueeze(1)
    time = (first + torch.arange(-n_left, n + n_right, device=x.device)).abs()
    length = end.clamp(min=max(n_left, n_right) + 1)
    time = torch.where(time < length, time, 2 * (length - 1) - time)
    at = (time - first).clamp(0, n - 1)
    flat = at + n * torch.arange(n_rows, device=x.device).unsqueeze(1)
    rows = x.squeeze(2).transpose(1, 2).reshape(n_rows * n, n_channels)
    picked = rows.index_select(0, flat.flatten()).view(n_rows, -1, n_channels)
    return picked.mul_((time < end).unsqueeze(2)).transpose(1, 2).unsqueeze(2)
