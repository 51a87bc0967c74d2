"""Streaming convolution with cached left context, batched over streams: shared by all codecs.

A same-padded convolution reads the future. Streamed, it becomes a causal one whose output lags:
each layer keeps the last `n_context` inputs of every stream (its state), prepends them to the new
ones and gives exactly as many outputs as came in, delayed by its look-ahead. Nothing is computed
twice. Every tensor of a stack then lies on its own *grid*: `rate` positions for each step of the
stack's input, `delay` positions late. Whole decoding pads with zeros at both ends of the utterance
at every layer; streaming must therefore zero what a layer computes outside of it (`silence`), and
then equals whole decoding up to rounding.

Layout: activations are `(B, n, C)` with channels last. A convolution over them is a 2-D one of
height 1 in channels-last format, which oneDNN runs about 1.5 to 2 times as fast as the `(B, C, n)`
form (Zen 5 core: 250 against 165 GFLOP/s at 32 channels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

ENDLESS: Final = 1 << 40
"""`Span.end` of a stream whose end is not known yet; leaves room to be multiplied by a rate."""

_HAS_PACKED_CONV: Final = all(
    hasattr(torch.ops.mkldnn, name)
    for name in ("_reorder_convolution_weight", "_convolution_pointwise")
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Time grid of a tensor: `rate` positions a step of the stack's input, `delay` positions late.

    Position i of a call that starts at step s stands for time `s * rate + i - delay`.
    """

    rate: int = 1
    delay: int = 0

    def later(self, n_positions: int) -> Grid:
        """The grid after a layer that looks `n_positions` ahead."""
        return Grid(self.rate, self.delay + n_positions)

    def finer(self, factor: int) -> Grid:
        """The grid after upsampling without look-ahead."""
        return Grid(self.rate * factor, self.delay * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Which steps of each stream a call brings.

    Args:
        start: `(B,)` int64, time of the call's first step; negative while a layer below warms up.
        end: `(B,)` int64, steps of the whole stream, or `ENDLESS`.
        n_valid: `(B,)` int64, leading steps that count; the rest is scratch and leaves no trace.
            None: all steps of all rows count.
        has_edge: False promises that no position of the call lies outside `[0, end)`.
    """

    start: Tensor
    end: Tensor
    n_valid: Tensor | None = None
    has_edge: bool = True

    def rows(self, idx: Tensor) -> Span:
        """The span of some rows."""
        n_valid = None if self.n_valid is None else self.n_valid[idx]
        return Span(
            start=self.start[idx], end=self.end[idx], n_valid=n_valid, has_edge=self.has_edge
        )


def silence(x: Tensor, span: Span, grid: Grid) -> Tensor:
    """Zero the positions of `x` `(B, n, C)` that lie before the stream's start or past its end."""
    if not span.has_edge:
        return x
    first = (span.start * grid.rate - grid.delay).unsqueeze(1)
    time = first + torch.arange(x.shape[1], device=x.device)
    inside = (time >= 0) & (time < (span.end * grid.rate).unsqueeze(1))
    return x * inside.unsqueeze(-1)


def keep_context(window: Tensor, n_context: int, span: Span, rate: int = 1) -> Tensor:
    """The state after a call: the last `n_context` positions that count.

    Args:
        window: `(B, n_context + n, C)`: the state before the call, then its input.
        n_context: positions to keep.
        span: of the call.
        rate: positions a step.
    """
    if n_context == 0:
        return window[:, :0]
    if span.n_valid is None:
        return window[:, -n_context:]
    n_rows, length, n_channels = window.shape
    first = torch.arange(n_rows, device=window.device) * length + span.n_valid * rate
    idx = (first.unsqueeze(1) + torch.arange(n_context, device=window.device)).flatten()
    kept = window.reshape(n_rows * length, n_channels).index_select(0, idx)
    return kept.view(n_rows, n_context, n_channels)


class StreamConv(nn.Module):
    """Convolution over time; the caller prepends the context and so decides on padding.

    In float32 on the CPU the weights are brought into oneDNN's own layout once, at the first call,
    and must not change after it. `torch.nn.functional.conv2d` does so in every call, or takes a
    slow loop for short inputs: one frame of `pico` then costs 5.9 ms of CPU time and not 3.5 (Zen
    5, one thread, busy machine). The operators are those that `torch.compile` uses; where a build
    of torch lacks them, `conv2d` does the work.

    Args:
        weight: `(C_out, C_in, kernel)`, as in `torch.nn.Conv1d`.
        bias: `(C_out,)` or None.
        dilation: steps between taps.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> None:
        super().__init__()
        four_dim = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", four_dim)
        self.register_buffer("bias", bias)
        self.dilation = dilation
        self.n_context = dilation * (weight.shape[2] - 1)
        self._packed: Tensor | None = None

    def forward(self, window: Tensor) -> Tensor:
        """Map `(B, n_context + n, C_in)` to `(B, n, C_out)`."""
        x = window.transpose(1, 2).unsqueeze(2)
        if _HAS_PACKED_CONV and x.device.type == "cpu" and x.dtype == torch.float32:
            out = self._packed_conv(x)
        else:
            out = nn.functional.conv2d(x, self.weight, self.bias, dilation=(1, self.dilation))
        return out.squeeze(2).transpose(1, 2)

    def _packed_conv(self, x: Tensor) -> Tensor:
        geometry = ([0, 0], [1, 1], [1, self.dilation], 1)
        if self._packed is None:
            weight = self.weight.contiguous()
            self._packed = torch.ops.mkldnn._reorder_convolution_weight(
                weight, *geometry, list(x.shape)
            )
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._packed, self.bias, *geometry, "none", [], ""
        )
        return out


class StreamUpsample(nn.Module):
    """Transposed convolution, as a plain one that gives `stride` outputs a step.

    Output `stride * i + r` of a transposed convolution is a sum over inputs i, i - 1, ...: tap m of
    phase r is `weight[:, :, r + stride * m]`. So the overlap that a transposed convolution would
    carry over is replaced by one or two inputs of left context. Outputs are those of
    `torch.nn.ConvTranspose1d` without padding; with padding p they are late by p (its look-ahead).

    Args:
        weight: `(C_in, C_out, kernel)`, as in `torch.nn.ConvTranspose1d`.
        bias: `(C_out,)` or None.
        stride: outputs a step.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, stride: int) -> None:
        super().__init__()
        n_in, n_out, kernel = weight.shape
        n_taps = -(-kernel // stride)
        padded = nn.functional.pad(weight, (0, n_taps * stride - kernel))
        phases = padded.view(n_in, n_out, n_taps, stride).flip(2).permute(3, 1, 0, 2)
        tiled = None if bias is None else bias.repeat(stride)
        self.conv = StreamConv(phases.reshape(stride * n_out, n_in, n_taps), tiled)
        self.n_context = n_taps - 1
        self.stride = stride
        self.n_out = n_out

    def forward(self, window: Tensor) -> Tensor:
        """Map `(B, n_context + n, C_in)` to `(B, n * stride, C_out)`."""
        phases: Tensor = self.conv(window)
        return phases.reshape(phases.shape[0], -1, self.n_out)


class ContextLayout:
    """The contexts of a stack of layers, packed into one vector a stream.

    One tensor instead of some twenty keeps the cost of moving state in and out of the engine's
    slots to one copy each way.

    Args:
        shapes: `(n_context, channels)` of each layer, in the order in which they run.
    """

    def __init__(self, shapes: tuple[tuple[int, int], ...]) -> None:
        self.shapes = shapes
        self._sizes = [n_context * n_channels for n_context, n_channels in shapes]

    @property
    def size(self) -> int:
        """Floats a stream."""
        return sum(self._sizes)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Views `(B, n_context, channels)` of `packed` `(B, size)`."""
        parts = torch.split(packed, self._sizes, dim=1)
        return [
            part.view(part.shape[0], *shape) for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def pack(self, contexts: list[Tensor]) -> Tensor:
        """One tensor `(B, size)` again."""
        assert len(contexts) == len(self.shapes), "one context for each layer"
        return torch.cat([context.flatten(1) for context in contexts], dim=1)
