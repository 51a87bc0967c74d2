"""HiFT: mel frames to PCM by a sine source, a filter and an inverse Fourier transform.

The vocoder of the flow-matching families. It reads the future: its convolutions reach some twenty
mel frames to either side. Streamed, it remembers that many frames, and the phase of its source;
the source's noise is a fixed table over time. So chunks join without a seam: what comes out is
whole decoding up to rounding, for every pattern of chunks. Of the frames ahead few are heard:
`Hift.look_ahead` makes a stream's audio earlier, for a difference that a test bounds.

Source: Li et al. 2023 (HiFTNet); Kaneko et al. 2022 (iSTFTNet); CosyVoice, `hifigan/generator.py`
(Apache-2.0). Keys of the modules are those of its checkpoints (`hift.pt`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.base import Decoded
from models.checkpoint import fold_weight_norm
from models.codecs.hift_source import F0_REACH, F0Predictor, Source
from models.codecs.seanet import mirrored
from models.codecs.snake import EdgeConv, Snake, as_channels_last, at_edges
from models.codecs.spectrum import InverseTransform, Transform
from models.codecs.windowed import cut
from models.layers.conv import ENDLESS, Span
from models.spec import StateSpec
from models.weights import load_weights

KERNEL = 7
"""Taps of the first and of the last layer."""
CLOCK, MEL, CYCLES = "hift_frames", "hift_mel", "hift_cycles"


@dataclass(frozen=True, slots=True, kw_only=True)
class HiftConfig:
    """Shape of a checkpoint.

    Args:
        sample_rate_hz: of the PCM.
        n_mels: channels of a mel frame.
        n_channels: after the first layer; each upsampling halves them.
        strides: of the upsampling layers.
        kernels: of the upsampling layers; each longer than its stride by an even number.
        n_fft: samples of a transform.
        n_hop: samples between transforms.
        residual_kernels: of the residual blocks side by side after each upsampling.
        residual_dilations: of the convolutions of each.
        source_kernels: of the residual block of the source at each upsampling.
        source_dilations: of the convolutions of each.
        n_f0_channels: of the predictor of the pitch.
        n_harmonics: of the source, beside the fundamental.
        sine_gain: of the source.
        noise_gain: of its noise where there is a voice.
        voiced_hz: a pitch above is a voice.
        is_interpolated: the source's phase runs straight between the middles of frames (24 kHz
            form), not by steps of a frame (22.05 kHz form).
        slope: of the rectifiers before upsampling.
        limit: of the PCM.
    """

    sample_rate_hz: int
    n_mels: int
    n_channels: int
    strides: tuple[int, ...]
    kernels: tuple[int, ...]
    n_fft: int
    n_hop: int
    residual_kernels: tuple[int, ...]
    residual_dilations: tuple[tuple[int, ...], ...]
    source_kernels: tuple[int, ...]
    source_dilations: tuple[tuple[int, ...], ...]
    n_f0_channels: int
    n_harmonics: int
    sine_gain: float
    noise_gain: float
    voiced_hz: float
    is_interpolated: bool
    slope: float
    limit: float

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a mel frame."""
        return math.prod(self.strides) * self.n_hop

    @property
    def reach(self) -> int:
        """Mel frames to either side that change a frame's audio."""
        width = self.samples_per_frame
        by_mel, by_source = (KERNEL // 2) * width, 0
        finest = width
        for idx, (stride, kernel) in enumerate(zip(self.strides, self.kernels, strict=True)):
            finest //= stride
            by_mel += (kernel - stride) // 2 * finest
            own = (F0_REACH + self.is_interpolated) * width + self.n_fft // 2 + finest
            own += _reach(self.source_kernels[idx], self.source_dilations[idx]) * finest
            by_source = max(by_source + (kernel - stride) // 2 * finest, own)
            pairs = zip(self.residual_kernels, self.residual_dilations, strict=True)
            blocks = max(_reach(kernel, dilations) for kernel, dilations in pairs) * finest
            by_mel, by_source = by_mel + blocks, by_source + blocks
        return math.ceil((max(by_mel, by_source) + self._last_reach) / width)

    @property
    def block_reaches(self) -> tuple[int, ...]:
        """Mel frames to either side that the residual blocks of each upsampling must see."""
        finest, reach, frames = self.n_hop, self._last_reach, []
        for idx in reversed(range(len(self.strides))):
            pairs = zip(self.residual_kernels, self.residual_dilations, strict=True)
            reach += max(_reach(kernel, dilations) for kernel, dilations in pairs) * finest
            frames.append(math.ceil(reach / self.samples_per_frame))
            stride = self.strides[idx]
            by_mel = (self.kernels[idx] - stride) // 2 * finest + finest * stride
            by_source = (1 + _reach(self.source_kernels[idx], self.source_dilations[idx])) * finest
            reach += max(by_mel, by_source + self.n_fft // 2)
            finest *= stride
        return tuple(reversed(frames))

    @property
    def _last_reach(self) -> int:
        """Samples: the last grid begins a position early; the last layer, and the way back."""
        return (1 + KERNEL // 2) * self.n_hop + self.n_fft // 2 + self.n_hop


def _reach(kernel: int, dilations: tuple[int, ...]) -> int:
    """Positions to either side that a residual block sees."""
    return sum((1 + dilation) * (kernel // 2) for dilation in dilations)


class Hift(nn.Module):
    """The vocoder.

    Args:
        config: shape of the weights.

    Attributes:
        ahead: mel frames by which the audio of a stream is late.
    """

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        self.config = config
        self.ahead = config.reach
        self.samples_per_frame = config.samples_per_frame
        self.f0_predictor = F0Predictor(config.n_mels, config.n_f0_channels)
        self.m_source = Source(
            n_waves=config.n_harmonics + 1,
            sample_rate_hz=config.sample_rate_hz,
            samples_per_frame=config.samples_per_frame,
            gains=(config.sine_gain, config.noise_gain),
            voiced_hz=config.voiced_hz,
            is_interpolated=config.is_interpolated,
        )
        self.transform = Transform(config.n_fft, config.n_hop)
        self.inverse = InverseTransform(config.n_fft, config.n_hop)
        widths = [config.n_channels >> idx for idx in range(len(config.strides) + 1)]
        n_bins = config.n_fft + 2
        self.conv_pre = EdgeConv(config.n_mels, widths[0], KERNEL)
        self.ups = nn.ModuleList(
            _Upsample(widths[idx], widths[idx + 1], kernel, stride)
            for idx, (kernel, stride) in enumerate(zip(config.kernels, config.strides, strict=True))
        )
        self.source_downs = nn.ModuleList(
            _Downsample(n_bins, width, math.prod(config.strides[idx + 1 :]))
            for idx, width in enumerate(widths[1:])
        )
        self.source_resblocks = nn.ModuleList(
            _Residual(width, config.source_kernels[idx], config.source_dilations[idx])
            for idx, width in enumerate(widths[1:])
        )
        self.resblocks = nn.ModuleList(
            _Residual(width, kernel, dilations)
            for width in widths[1:]
            for kernel, dilations in zip(
                config.residual_kernels, config.residual_dilations, strict=True
            )
        )
        self.conv_post = EdgeConv(widths[-1], n_bins, KERNEL)

    def look_ahead(self, n_frames: int) -> None:
        """Make audio with so many mel frames after it, if the network reaches further.

        Calls then bring only real frames, but for the last; and give what they gave in chunks of
        the same borders.
        """
        assert n_frames > F0_REACH, "the pitch must be known"
        self.ahead = min(n_frames, self.config.reach)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream remembers: mel frames for context, and where its source is."""
        return (
            StateSpec(name=CLOCK, shape=(1,), dtype="int64"),
            StateSpec(name=MEL, shape=(self.config.n_mels, self.config.reach + self.ahead)),
            StateSpec(name=CYCLES, shape=(1,)),
        )

    def decode(
        self, mel: Tensor, n_valid: Tensor, state: Mapping[str, Tensor], is_last: Tensor
    ) -> Decoded:
        """PCM of one chunk of each stream, `ahead` frames late; the last chunk gives all.

        Args:
            mel: `(B, n_mels, F)`, new frames.
            n_valid: `(B,)` real ones among them, the first ones.
            state: as `states` lists it; zeros at the start.
            is_last: `(B,)`.
        """
        reach, ahead = self.config.reach, self.ahead
        n_new = mel.shape[2]
        n_before = state[CLOCK][:, 0]
        n_after = n_before + n_valid
        window = torch.cat([state[MEL].to(mel.dtype), mel], dim=2)
        start = n_before - reach - ahead
        span = Span(start=start, end=torch.where(is_last, n_after, ENDLESS))
        pcm, cycles = self._run(window, span, state[CYCLES][:, 0], F0_REACH + 1, n_valid)
        start = start + reach - self.config.block_reaches[-1]
        first = (n_before - ahead).clamp(min=0)
        last = torch.where(is_last, n_after, (n_after - ahead).clamp(min=0))
        given, n_samples = cut(pcm, start, first, last, n_new + ahead, self.samples_per_frame)
        kept = n_valid.unsqueeze(1) + torch.arange(reach + ahead, device=mel.device)
        return Decoded(
            pcm=given,
            n_samples=n_samples,
            state={
                CLOCK: n_after.unsqueeze(1),
                MEL: window.gather(2, kept.unsqueeze(1).expand(-1, window.shape[1], -1)),
                CYCLES: cycles.unsqueeze(1),
            },
        )

    def _run(
        self, mel: Tensor, span: Span, cycles: Tensor, anchor: int, n_on: Tensor
    ) -> tuple[Tensor, Tensor]:
        """PCM of a window, and the source's cycles before frame `anchor + n_on` `(B,)` of it.

        `cycles` are those before frame `anchor`, the first whose pitch has all its context.
        """
        x = as_channels_last(mel)
        f0 = self.f0_predictor(x, span)
        wave, cycles = self.m_source(f0, span, cycles, anchor, n_on)
        return self._filter(x, wave, span).clamp(-self.config.limit, self.config.limit), cycles

    def _filter(self, x: Tensor, wave: Tensor, span: Span) -> Tensor:
        """PCM of a window, but for what lies too far back for its audio to be asked for."""
        n_edge, n_hops = self.config.n_fft // 2, math.prod(self.config.strides)
        # The transforms' grid has one position more than there are hops.
        fine = Span(start=span.start * n_hops, end=span.end * n_hops + 1)
        source = as_channels_last(wave.unsqueeze(1))
        source = mirrored(source, span, self.samples_per_frame, n_edge, n_edge)
        spectrum = at_edges(self.transform(source), fine, 1)
        x, rate = self.conv_pre(x, span, 1), 1
        n_left, n_blocks = self.config.reach, len(self.config.residual_kernels)
        for idx, up in enumerate(self.ups):
            x = up(functional.leaky_relu(x, self.config.slope), span, rate)
            rate *= self.config.strides[idx]
            is_last = idx == len(self.ups) - 1
            if is_last:
                x = mirrored(x, span, rate, 1, 0)
            beside = self.source_downs[idx](spectrum)
            grid = (fine, 1) if is_last else (span, rate)
            x = x + self.source_resblocks[idx](beside, *grid)
            # The finer the grid, the fewer frames back are seen from here on.
            n_cut, n_left = n_left - self.config.block_reaches[idx], self.config.block_reaches[idx]
            span, fine = _later(span, n_cut), _later(fine, n_cut * n_hops)
            x, spectrum = x[..., n_cut * rate :], spectrum[..., n_cut * n_hops :]
            grid = (fine, 1) if is_last else (span, rate)
            first, *others = self.resblocks[idx * n_blocks : (idx + 1) * n_blocks]
            total = first(x, *grid)
            for block in others:
                total += block(x, *grid)
            x = total / n_blocks
        x = self.conv_post(functional.leaky_relu(x), fine, 1)
        pcm: Tensor = self.inverse(x[:, :, 0], fine)
        return pcm


def _later(span: Span, n: int) -> Span:
    """Without its first `n` steps."""
    return Span(start=span.start + n, end=span.end)


class _Residual(nn.Module):
    """Convolutions in pairs, a dilated one and a plain one, each behind a snake."""

    def __init__(self, n_channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            EdgeConv(n_channels, n_channels, kernel, dilation=dilation) for dilation in dilations
        )
        self.convs2 = nn.ModuleList(EdgeConv(n_channels, n_channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(n_channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(n_channels) for _ in dilations)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:
        """Same shape."""
        for idx in range(len(self.convs1)):
            y = self.convs1[idx](self.activations1[idx](x), span, rate)
            x = x + self.convs2[idx](self.activations2[idx](y), span, rate)
        return x


class _Upsample(nn.ConvTranspose1d):
    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int) -> None:
        super().__init__(n_in, n_out, kernel, stride, padding=(kernel - stride) // 2)

    def forward(self, x: Tensor, span: Span, rate: int) -> Tensor:  # type: ignore[override] # edges
        """Map `(B, n_in, 1, n)` to `(B, n_out, 1, n * stride)`; `rate` is that of the input."""
        return functional.conv_transpose2d(
            at_edges(x, span, rate),
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, self.stride[0]),
            padding=(0, self.padding[0]),  # type: ignore[arg-type] # a tuple, by the class
        )


class _Downsample(nn.Conv1d):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        is_plain = stride == 1
        kernel = 1 if is_plain else 2 * stride
        super().__init__(n_in, n_out, kernel, stride, padding=0 if is_plain else stride // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n_in, 1, n)`, silent outside of the whole, to `(B, n_out, 1, n / stride)`."""
        return functional.conv2d(
            x,
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, self.stride[0]),
            padding=(0, self.padding[0]),  # type: ignore[arg-type] # a tuple, by the class
        )


def make_hift(config: HiftConfig, tensors: Mapping[str, Tensor], *, source: str) -> Hift:
    """The vocoder with its weights, on the CPU; weight norm in both spellings.

    Args:
        config: their shape.
        tensors: of `hift.pt`, whose keys may begin with `generator.`.
        source: where they came from, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    own = {key.removeprefix("generator."): tensor for key, tensor in tensors.items()}
    folded = {
        key: tensor.view(1, -1, 1) if key.endswith(".alpha") else tensor
        for key, tensor in fold_weight_norm(own).items()
    }
    model = Hift(config)
    load_weights(model, folded, source=source)
    return model.requires_grad_(False)
