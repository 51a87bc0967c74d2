"""The toys' detokenizer: a table of waveforms, then a causal filter. Wrong chunking is audible.

Every mistake that an engine can make (a chunk twice, a lost state, a missing context, no flush)
changes samples. The filter adds its taps in a fixed order, so that streaming equals one-shot
decoding bit for bit, however the frames are cut.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.base import Decoded
from models.spec import CodecSpec, FrameSpec, StateSpec

N_TAPS = 8
HISTORY = StateSpec(name="history", shape=(N_TAPS - 1,))
"""Unfiltered samples just before the chunk."""
GAIN = StateSpec(name="gain", shape=(1,))
"""Loudness of the voice. Seeded by the plan: a codec that lost its seed is silent."""


def held_codes(n_codebooks: int) -> StateSpec:
    """State of a codec with look-ahead: the codes of the frame that is held back."""
    return StateSpec(name="held", shape=(n_codebooks,), dtype="int64")


class ToyCodec(nn.Module):
    """Codes (B, F, Q) to samples, in one of three manners that the spec's state decides.

    - `history` in the state: the filter's memory is carried from chunk to chunk.
    - no state, left context: the filter's memory is computed anew from the context frames, and the
      earliest of them is heard as an echo. Code 0 and any negative one are silence here, so that
      either may stand for context from before the start.
    - look-ahead of one frame (with `history`): a frame's waveform contains a part of the next one.
    """

    table: Tensor
    taps: Tensor

    def __init__(self, frame: FrameSpec, spec: CodecSpec, *, n_codes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = (frame.n_codebooks, n_codes, frame.samples_per_frame)
        table = (torch.rand(shape, generator=generator) - 0.5) / frame.n_codebooks
        table[:, 0] = 0.0 if spec.left_context_frames else table[:, 0]
        self.register_buffer("table", table, persistent=False)
        taps = torch.rand(N_TAPS, generator=generator) + 0.1
        self.register_buffer("taps", taps / taps.sum(), persistent=False)
        assert spec.lookahead_frames in (0, 1), "the toys look ahead by one frame at most"
        self.spec = spec
        self.samples_per_frame = frame.samples_per_frame

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.base.SpeechModel.decode`."""
        new_state = dict(state)
        if self.spec.left_context_frames:
            pcm, n_samples = self._windowed(frames, n_valid)
        elif self.spec.lookahead_frames:
            frames, n_valid, new_state["held"] = _hold_back(
                frames, n_valid, state["held"], is_first, is_last
            )
            wave = self._waves(frames[:, :-1]) + 0.5 * self._next_waves(frames, n_valid)
            n_valid = torch.where(is_last, n_valid, n_valid - 1)
            pcm, n_samples, new_state["history"] = self._filtered(wave, n_valid, state["history"])
        else:
            wave = self._waves(frames)
            pcm, n_samples, new_state["history"] = self._filtered(wave, n_valid, state["history"])
        if "gain" in state:
            pcm = pcm * state["gain"]
        return Decoded(pcm=pcm, n_samples=n_samples, state=new_state)

    def _waves(self, frames: Tensor) -> Tensor:
        """Unfiltered samples `(B, F, samples_per_frame)`."""
        codes = frames.clamp(0, self.table.shape[1] - 1)
        wave = self.table[0][codes[..., 0]]
        for codebook in range(1, self.table.shape[0]):
            wave = wave + self.table[codebook][codes[..., codebook]]
        return wave

    def _next_waves(self, frames: Tensor, n_valid: Tensor) -> Tensor:
        """For each frame but the last, the waveform of its follower; silence after the end."""
        follower = torch.arange(1, frames.shape[1], device=frames.device)
        exists = follower < n_valid.unsqueeze(1)
        return torch.where(exists.unsqueeze(-1), self._waves(frames[:, 1:]), 0.0)

    def _filtered(
        self, wave: Tensor, n_valid: Tensor, history: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Filtered samples, their number, and the filter's memory after `n_valid` frames."""
        samples = torch.cat([history, wave.flatten(1)], dim=1)
        pcm = self._convolved(samples)
        n_samples = n_valid * self.samples_per_frame
        memory = torch.arange(N_TAPS - 1, device=wave.device) + n_samples.unsqueeze(1)
        return _silent_after(pcm, n_samples), n_samples, samples.gather(1, memory)

    def _windowed(self, frames: Tensor, n_valid: Tensor) -> tuple[Tensor, Tensor]:
        """Filter context and chunk as one, keep the chunk, add an echo of the earliest context."""
        wave = self._waves(frames).flatten(1)
        first = self.spec.left_context_frames * self.samples_per_frame
        pcm = self._convolved(wave[:, first - (N_TAPS - 1) :]) + 0.25 * wave[:, :-first]
        n_samples = n_valid * self.samples_per_frame
        return _silent_after(pcm, n_samples), n_samples

    def _convolved(self, samples: Tensor) -> Tensor:
        """Causal filter; `samples` starts with `N_TAPS - 1` of memory."""
        newest, n_out = N_TAPS - 1, samples.shape[1] - (N_TAPS - 1)
        out = self.taps[0] * samples[:, newest:]
        for tap in range(1, N_TAPS):
            out = out + self.taps[tap] * samples[:, newest - tap : newest - tap + n_out]
        return out


def _hold_back(
    frames: Tensor, n_valid: Tensor, held: Tensor, is_first: Tensor, is_last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Put the held frame before the new ones, and find the one to hold now.

    Returns:
        Frames `(B, F + 2, Q)` of which `(B,)` are real, and the newly held codes `(B, Q)`. The
        last column only makes room for a follower.
    """
    empty = torch.zeros_like(held).unsqueeze(1)
    behind = torch.cat([held.unsqueeze(1), frames, empty], dim=1)
    ahead = torch.cat([frames, empty, empty], dim=1)
    joined = torch.where(is_first.view(-1, 1, 1), ahead, behind)
    n_joined = n_valid + torch.where(is_first, 0, 1)
    at = (n_joined - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, frames.shape[2])
    newest = joined.gather(1, at).squeeze(1)
    return joined, n_joined, torch.where(is_last.unsqueeze(1), torch.zeros_like(newest), newest)


def _silent_after(pcm: Tensor, n_samples: Tensor) -> Tensor:
    """Zero what lies past the real samples."""
    at = torch.arange(pcm.shape[1], device=pcm.device)
    return torch.where(at < n_samples.unsqueeze(1), pcm, 0.0)
