"""Streams a mark: PCM in chunks in, the same PCM with the mark added out, frames later.

The signal itself passes unchanged. What a mark adds is computed at the mark's rate from a window of
the last samples, and brought to the signal's rate; so any pattern of chunks gives what the whole
signal would, up to rounding, and all that a stream carries is its last samples and its level.

Lengths are the same for every stream of a call, whatever it has to give: each reads its own part of
the window by index. At the signal's rate `q` samples take the time of `p` at the mark's; resampling
goes by blocks of so many.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.resample import phase_filters
from models.layers.conv import ENDLESS
from models.spec import FrameSpec, StateSpec
from models.watermark.spectra import Columns, Mark

PCM: Final = "mark.pcm"
CLOCK: Final = "mark.n_samples"
LEVEL: Final = "mark.level"
_LEAST_COVER: Final = 1e-8


class Stage(nn.Module):
    """The mark on streams of one frame shape.

    Args:
        mark: that is added.
        frame: of the model that speaks.
    """

    window: Tensor

    def __init__(self, mark: Mark, frame: FrameSpec) -> None:
        super().__init__()
        self.mark = mark
        self.up = BlockResampler(frame.sample_rate_hz, mark.rate_hz)
        self.down = BlockResampler(mark.rate_hz, frame.sample_rate_hz)
        self.register_buffer("window", torch.hann_window(mark.n_fft), persistent=False)
        p, q = self.up.n_out, self.up.n_in
        reach = mark.n_fft + mark.reach * mark.n_hop + self.down.width
        # What a sample depends on to either side; a block more, twice, for where blocks begin.
        self.reach_samples = 2 * q + self.up.width + math.ceil(reach * q / p)
        self.lookahead_frames = -(-self.reach_samples // frame.samples_per_frame)
        self._n_late = self.lookahead_frames * frame.samples_per_frame

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """What a stream carries."""
        return (
            StateSpec(name=PCM, shape=(self._n_late + self.reach_samples,)),
            StateSpec(name=CLOCK, shape=(1,), dtype="int64"),
            StateSpec(name=LEVEL, shape=(self.mark.level_size,)),
        )

    def forward(
        self, pcm: Tensor, n_new: Tensor, state: dict[str, Tensor], is_last: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One chunk of each stream.

        Args:
            pcm: `(B, n)`, zeros behind `n_new`.
            n_new: `(B,)` samples that each stream brings.
            state: as `states` lists it.
            is_last: `(B,)`: give what is held back.

        Returns:
            PCM `(B, n + samples held back)`, how many of them count `(B,)`, and the new state.
        """
        n_before = state[CLOCK][:, 0]
        n_after = n_before + n_new
        heard = torch.cat([state[PCM], pcm], dim=1)
        heard_first = n_before - state[PCM].shape[1]
        first = (n_before - self._n_late).clamp(min=0)
        end = torch.where(is_last, n_after, (n_after - self._n_late).clamp(min=0))
        n_whole = torch.where(is_last, n_after, ENDLESS)
        n_most = pcm.shape[1] + self._n_late
        added, level = self._added(heard, heard_first, (first, end), n_whole, n_most, state[LEVEL])
        marked = take(heard, first - heard_first, n_most) + added
        is_given = torch.arange(n_most, device=pcm.device) < (end - first).unsqueeze(1)
        after = {
            PCM: take(heard, n_new, state[PCM].shape[1]),
            CLOCK: n_after.unsqueeze(1),
            LEVEL: level,
        }
        return marked.clamp(-1.0, 1.0).masked_fill(~is_given, 0.0), end - first, after

    def _added(
        self,
        heard: Tensor,
        heard_first: Tensor,
        given: tuple[Tensor, Tensor],
        n_whole: Tensor,
        n_most: int,
        level: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What the mark adds to `n_most` samples from the first that is given on, and the level."""
        mark, q = self.mark, self.up.n_in
        p = self.up.n_out
        first, end = given
        # Backwards from what is given: blocks of it, samples and columns of the mark.
        block = first // q
        n_blocks = -(-(q - 1 + n_most) // q)
        late_first = block * p - self.down.width
        n_late = n_blocks * p + 2 * self.down.width
        changed = self._column_after(late_first)
        n_changed = (n_late + mark.n_fft) // mark.n_hop + 1
        last = self._column_after((end - 1) // q * p + p + self.down.width + mark.n_fft)
        last = torch.where(end > first, last, changed)
        n_mark = torch.where(n_whole == ENDLESS, ENDLESS, -(-n_whole * p // q))
        n_padded = torch.where(n_whole == ENDLESS, ENDLESS, mark.padded(n_mark))
        n_all = n_padded // mark.n_hop + 1
        needed = torch.stack([-changed, torch.minimum(last, n_all) - changed], dim=1)
        columns = Columns(
            first=changed - mark.reach,
            n_all=n_all,
            count=n_changed + 2 * mark.reach,
            needed=needed.clamp(0, n_changed),
        )
        spectra = self._spectra(heard, heard_first, columns, n_mark, n_padded)
        changes, levels = mark.changes(spectra, columns, level)
        sums = self._overlapped(changes, columns)
        late = take(sums, late_first - (changed * mark.n_hop - mark.n_fft // 2), n_late)
        at_rate = self.down(_within(late, late_first, n_mark))
        # The next call begins where this one ends.
        n_on = self._column_after(end // q * p - self.down.width) - changed
        rows = torch.arange(len(n_on), device=n_on.device)
        return take(at_rate, first - block * q, n_most), levels[rows, n_on]

    def _column_after(self, sample: Tensor) -> Tensor:
        """The first column whose window ends behind a sample."""
        mark = self.mark
        return (sample - mark.n_fft // 2).div(mark.n_hop, rounding_mode="floor") + 1

    def _spectra(
        self,
        heard: Tensor,
        heard_first: Tensor,
        columns: Columns,
        n_mark: Tensor,
        n_padded: Tensor,
    ) -> Tensor:
        """The columns `(B, count, n_fft / 2 + 1)`, complex."""
        mark, q, p = self.mark, self.up.n_in, self.up.n_out
        start = columns.first * mark.n_hop - mark.n_fft // 2
        n_samples = (columns.count - 1) * mark.n_hop + mark.n_fft
        block = start.div(p, rounding_mode="floor")
        n_blocks = -(-(p - 1 + n_samples) // p)
        n_read = n_blocks * q + 2 * self.up.width
        read = take(heard, block * q - self.up.width - heard_first, n_read)
        at_rate = _within(self.up(read), block * p, n_mark)
        # Both ends are mirrored, the second behind the zeros that some marks put there.
        time = start.unsqueeze(1) + torch.arange(n_samples, device=heard.device)
        edge = 2 * (n_padded.unsqueeze(1) - 1)
        time = torch.minimum(time.abs(), edge - time.abs())
        signal = pick(at_rate, time - (block * p).unsqueeze(1))
        spectra: Tensor = torch.fft.rfft(signal.unfold(1, mark.n_fft, mark.n_hop) * self.window)
        return spectra

    def _overlapped(self, changes: Tensor, columns: Columns) -> Tensor:
        """The signal of the columns that were changed, from the first sample of the first on."""
        mark = self.mark
        exist = columns.exist[:, mark.reach : columns.count - mark.reach].unsqueeze(2)
        parts = torch.fft.irfft(changes, n=mark.n_fft) * self.window * exist
        cover = self.window.square() * exist
        n_samples = (changes.shape[1] - 1) * mark.n_hop + mark.n_fft
        both = torch.cat([parts, cover]).transpose(1, 2)
        sums = nn.functional.fold(
            both, (1, n_samples), (1, mark.n_fft), stride=(1, mark.n_hop)
        ).flatten(1)
        added, covered = sums.chunk(2)
        return added / covered.clamp(min=_LEAST_COVER)


class BlockResampler(nn.Module):
    """Another sample rate, by blocks of `n_in` samples that become `n_out`.

    `width` samples more are read at either side. The filters are those of `models.audio.resample`.

    Args:
        from_hz: rate of the signal.
        to_hz: rate that it gets.
    """

    filters: Tensor

    def __init__(self, from_hz: int, to_hz: int) -> None:
        super().__init__()
        common = math.gcd(from_hz, to_hz)
        self.n_in, self.n_out = from_hz // common, to_hz // common
        self.is_same = from_hz == to_hz
        filters, self.width = (torch.ones(1, 1), 0) if self.is_same else self._filters()
        self.register_buffer("filters", filters.unsqueeze(1), persistent=False)

    def _filters(self) -> tuple[Tensor, int]:
        return phase_filters(self.n_in, self.n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n * n_in + 2 * width)` to `(B, n * n_out)`."""
        if self.is_same:
            return x
        phases = nn.functional.conv1d(x.unsqueeze(1), self.filters, stride=self.n_in)
        return phases.transpose(1, 2).flatten(1)


def take(x: Tensor, first: Tensor, n: int) -> Tensor:
    """`(B, n)` of `x` `(B, m)` from index `first` `(B,)` on; zeros where `x` has none."""
    return pick(x, first.unsqueeze(1) + torch.arange(n, device=x.device))


def pick(x: Tensor, idx: Tensor) -> Tensor:
    """`x` `(B, m)` at each index of `idx` `(B, n)`; zeros where `x` has none."""
    outside = (idx < 0) | (idx >= x.shape[1])
    return x.gather(1, idx.clamp(0, x.shape[1] - 1)).masked_fill(outside, 0.0)


def _within(x: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """`x` `(B, n)` from time `first` `(B,)` on, zero before time 0 and from `end` on."""
    time = first.unsqueeze(1) + torch.arange(x.shape[1], device=x.device)
    return x.masked_fill((time < 0) | (time >= end.unsqueeze(1)), 0.0)
