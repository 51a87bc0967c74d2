"""The sine source of HiFT: a pitch for each mel frame, its harmonics, and noise.

Phases go on from chunk to chunk in cycles of the fundamental; noise and first phases are fixed
tables, so that a stream's sound is a function of its mel frames alone.

Source: Wang et al. 2019 (neural source-filter); CosyVoice, `hifigan/generator.py` and
`f0_predictor.py` (Apache-2.0).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from models.codecs.snake import EdgeConv
from models.layers.conv import Span

F0_REACH: Final = 5
"""Mel frames to either side that change a frame's pitch: five convolutions of three taps."""
NOISE_SAMPLES: Final = 1 << 16
"""Length of the noise that the source repeats: 2.7 s at 24 kHz."""
_NOISE_SEED: Final = 20_241_213


class F0Predictor(nn.Module):
    """A pitch in Hz for each mel frame.

    Args:
        n_mels: channels of a frame.
        n_channels: of the layers.
    """

    def __init__(self, n_mels: int, n_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in in (n_mels, *[n_channels] * (F0_REACH - 1)):
            layers += [EdgeConv(n_in, n_channels, 3), nn.ELU()]
        self.condnet = nn.ModuleList(layers)
        self.classifier = nn.Linear(n_channels, 1)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        """Map `(B, n_mels, 1, n)` to `(B, n)`, 0 or more."""
        for layer in self.condnet:
            x = layer(x, span, 1) if isinstance(layer, EdgeConv) else layer(x)
        f0: Tensor = self.classifier(x[:, :, 0].transpose(1, 2))
        return f0[:, :, 0].abs()


class Source(nn.Module):
    """Harmonics of the pitch and noise, mixed.

    Args:
        n_waves: the fundamental and its harmonics.
        sample_rate_hz: of the wave.
        samples_per_frame: of the wave.
        gains: of the sines, and of the noise where there is a voice.
        voiced_hz: a pitch above is a voice.
        is_interpolated: see `models.codecs.hift.HiftConfig`.
    """

    noise: Tensor
    first_phases: Tensor
    orders: Tensor

    def __init__(
        self,
        *,
        n_waves: int,
        sample_rate_hz: int,
        samples_per_frame: int,
        gains: tuple[float, float],
        voiced_hz: float,
        is_interpolated: bool,
    ) -> None:
        super().__init__()
        self.l_linear = nn.Linear(n_waves, 1)
        self.sample_rate_hz = sample_rate_hz
        self.samples_per_frame = samples_per_frame
        self.gains = gains
        self.voiced_hz = voiced_hz
        self.is_interpolated = is_interpolated
        self.register_buffer("noise", noise_table(n_waves), persistent=False)
        self.register_buffer("first_phases", first_phases(n_waves), persistent=False)
        self.register_buffer("orders", torch.arange(1, n_waves + 1), persistent=False)

    def forward(
        self, f0: Tensor, span: Span, cycles: Tensor, anchor: int, n_on: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The wave of a window, and where the fundamental is for the next one.

        Args:
            f0: `(B, n)`.
            span: of the window's frames.
            cycles: `(B,)` of the fundamental, before frame `anchor` of the window; in [0, 1).
            anchor: a frame's index.
            n_on: `(B,)` frames by which the next window begins later.

        Returns:
            `(B, n * samples_per_frame)`, and `(B,)` cycles before frame `anchor + n_on`.
        """
        time = span.start.unsqueeze(1) + torch.arange(f0.shape[1], device=f0.device)
        # Sums of many cycles of which only the fraction counts: float32 would lose it.
        steps = (f0.double() / self.sample_rate_hz).masked_fill(time < 0, 0.0)
        sums = (steps * self.samples_per_frame).cumsum(dim=1)
        whole = sums + (cycles.double() - sums[:, anchor - 1]).unsqueeze(1)
        last = (anchor + n_on - 1).unsqueeze(1)
        following = whole.gather(1, last)[:, 0].remainder(1.0).to(cycles.dtype)
        phases = self._phases(whole.remainder(1.0).float(), steps.float(), time, span)
        waves = (2 * torch.pi * phases).sin()
        is_voiced = (f0 > self.voiced_hz).repeat_interleave(self.samples_per_frame, dim=1)
        sine_gain, noise_gain = self.gains
        loudness = torch.where(is_voiced, noise_gain, sine_gain / 3).unsqueeze(2)
        mixed = sine_gain * waves * is_voiced.unsqueeze(2) + loudness * self._noise_at(time)
        wave: Tensor = self.l_linear(mixed)
        return wave[:, :, 0].tanh(), following

    def _phases(self, whole: Tensor, steps: Tensor, time: Tensor, span: Span) -> Tensor:
        """Cycles of each wave, `(B, n * samples_per_frame, n_waves)`.

        Args:
            whole: `(B, n)` cycles of the fundamental after each frame.
            steps: `(B, n)` cycles a sample.
            time: `(B, n)` of the frames.
            span: of the window.
        """
        width = self.samples_per_frame
        at = torch.arange(width, device=whole.device)
        if self.is_interpolated:
            # The sums stand in the middles of frames; before the first and past the last, nothing
            # moves.
            before = steps.masked_fill(time <= 0, 0.0)
            after = steps.roll(-1, dims=1)
            after = after.masked_fill(time + 1 >= span.end.unsqueeze(1), 0.0)
            offset = at + 0.5 - width / 2
            step = torch.where(offset < 0, before.unsqueeze(2), after.unsqueeze(2))
            cycles = whole.unsqueeze(2) + offset * step
            return (cycles.flatten(1).unsqueeze(2) * self.orders).remainder(1.0)
        cycles = whole.unsqueeze(2) + (at + 1 - width) * steps.unsqueeze(2)
        waves = cycles.flatten(1).unsqueeze(2) * self.orders
        return (waves + self.first_phases).remainder(1.0)

    def _noise_at(self, time: Tensor) -> Tensor:
        """`(B, n * samples_per_frame, n_waves)` of the table, by time in the utterance."""
        at = torch.arange(self.samples_per_frame, device=time.device)
        samples = (time.unsqueeze(2) * self.samples_per_frame + at).flatten(1)
        return self.noise[samples.remainder(NOISE_SAMPLES)]


def noise_table(n_waves: int) -> Tensor:
    """`(NOISE_SAMPLES, n_waves)`, normal; the same for every stream and every time."""
    generator = torch.Generator().manual_seed(_NOISE_SEED)
    return torch.randn(NOISE_SAMPLES, n_waves, generator=generator)


def first_phases(n_waves: int) -> Tensor:
    """`(n_waves,)` cycles at which the harmonics begin; the fundamental begins at 0."""
    generator = torch.Generator().manual_seed(_NOISE_SEED)
    phases = torch.rand(n_waves, generator=generator)
    phases[0] = 0.0
    return phases
