"""The detokenizer of `pico`: frames to PCM with cached context, batched over streams.

Three clocks follow each other. Steps (46 ms) go through the post-net and come out as latent frames,
late by its look-ahead. Those are resampled in time by the stream's speed (1 leaves them as they
are), which keeps the pitch, and go through the vocoder, late by its delay. Every row of a batch has
its own place on each clock, and its own number of frames that count.

On the CPU the shapes of a call follow what its rows need, and rows that need more latent frames
than the rest (a flush, slow speech) get further passes of their own; large batches are decoded in
groups of rows. Elsewhere, and where calls are compiled (`is_static`), every
call of a size runs the same operations on the same shapes and reads nothing on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Decoded
from models.layers.conv import ENDLESS, ContextLayout, Grid, Span, keep_context, silence
from models.pico.config import PicoConfig
from models.pico.postnet import Postnet
from models.pico.stretch import MIN_SPEED, UNIT_SPEED, Stretch, plan_stretch, stretch_frames
from models.pico.vocoder import Vocoder
from models.spec import CodecSpec, StateSpec

CHUNK_FRAMES: Final = (1, 2, 4, 6, 8)
"""Six frames are the fewest that give sound at once, because five are held back."""
MAX_BATCH: Final = 16
LATER_PASS_FRAMES: Final = 20
"""Latent frames of a further pass: a flush (19 of them) takes one."""
GROUP_FRAMES: Final = 16
"""Frames, summed over rows, that the CPU decodes together: more of them leave its cache. Eight rows
of eight frames take 113 ms of CPU time at once and 90 ms in groups of two (Zen 5, one thread)."""


class Detokenizer(nn.Module):
    """Post-net, resampling in time, and vocoder, over the state that `spec` names."""

    def __init__(
        self, config: PicoConfig, postnet: Postnet, vocoder: Vocoder, *, is_static: bool = False
    ) -> None:
        super().__init__()
        self.postnet = postnet
        self.vocoder = vocoder
        self._is_always_static = is_static
        self.frames_per_step = config.latents.frames
        self.step_samples = config.step_samples
        self.flush_frames = -(-vocoder.delay // vocoder.hop)
        self.layout = ContextLayout(
            (*postnet.layout.shapes, (1, config.latents.latent), *vocoder.layout.shapes)
        )

    @property
    def is_static(self) -> bool:
        """Whether every shape follows from the inputs' shapes; on a GPU, or compiled, it must."""
        is_of_cpu = self.postnet.units.device.type == "cpu" and not torch.compiler.is_compiling()
        return self._is_always_static or not is_of_cpu

    @is_static.setter
    def is_static(self, value: bool) -> None:
        self._is_always_static = value

    def spec(self) -> CodecSpec:
        """The codec's side of the model's spec."""
        delay = self.postnet.lookahead * self.step_samples + self.vocoder.delay
        return CodecSpec(
            chunk_frames=CHUNK_FRAMES,
            lookahead_frames=-(-delay // self.step_samples),
            state=(
                StateSpec(name="context", shape=(self.layout.size,)),
                StateSpec(name="clock", shape=(2,), dtype="int64"),
            ),
            max_batch=MAX_BATCH,
        )

    def decode(
        self, frames: Tensor, n_valid: Tensor, state: dict[str, Tensor], is_last: Tensor
    ) -> Decoded:
        """See `models.base.SpeechModel.decode`; `clock` holds the steps taken and the speed."""
        n_rows = len(frames) if self.is_static else max(1, GROUP_FRAMES // frames.shape[1])
        if len(frames) <= n_rows:
            return self._decode(frames, n_valid, state, is_last)
        groups = [
            self._decode(
                frames[begin : begin + n_rows],
                n_valid[begin : begin + n_rows],
                {name: part[begin : begin + n_rows] for name, part in state.items()},
                is_last[begin : begin + n_rows],
            )
            for begin in range(0, len(frames), n_rows)
        ]
        return _join(groups)

    def _decode(
        self, frames: Tensor, n_valid: Tensor, state: dict[str, Tensor], is_last: Tensor
    ) -> Decoded:
        """One group of rows."""
        n_taken, speed = state["clock"].unbind(1)
        speed = torch.where(speed == 0, UNIT_SPEED, speed)
        contexts = self.layout.unpack(state["context"])
        n_post = len(self.postnet.layout.shapes)
        post, latent, vocoder = contexts[:n_post], contexts[n_post], contexts[n_post + 1 :]

        n_chunk_frames = frames.shape[1] * self.frames_per_step
        has_last = self.is_static or bool(is_last.any())
        steps = self._steps(n_taken, n_valid, is_last, has_last=has_last)
        if has_last:
            frames = nn.functional.pad(frames, (0, 0, 0, self.postnet.lookahead))
        new_latents, post = self.postnet(frames, post, steps)

        window = torch.cat([latent, new_latents], dim=1)
        latent = keep_context(window, 1, steps, self.frames_per_step)
        stretched, stretch, n_wanted = self._resample(window, steps, speed, is_last)

        pcm, vocoder = self._vocode(stretched, vocoder, stretch, n_wanted, n_chunk_frames)
        pcm, n_samples = self._cut(pcm, stretch, n_wanted)
        new_clock = torch.stack([n_taken + n_valid, speed], dim=1)
        new_context = self.layout.pack([*post, latent, *vocoder])
        return Decoded(
            pcm=pcm, n_samples=n_samples, state={"context": new_context, "clock": new_clock}
        )

    def _steps(self, n_taken: Tensor, n_valid: Tensor, is_last: Tensor, *, has_last: bool) -> Span:
        """The call on the post-net's clock: a last chunk is followed by its look-ahead."""
        lookahead = self.postnet.lookahead
        return Span(
            start=n_taken,
            end=torch.where(is_last, n_taken + n_valid, ENDLESS),
            n_valid=n_valid + torch.where(is_last, lookahead, 0) if has_last else None,
            has_edge=has_last or bool((n_taken < lookahead).any()),
        )

    def _resample(
        self, window: Tensor, steps: Span, speed: Tensor, is_last: Tensor
    ) -> tuple[Tensor, Stretch, Tensor]:
        """Latent frames `(B, n, C)` on the vocoder's clock, and how many of them a row wants."""
        rate = self.frames_per_step
        n_before = (steps.start - self.postnet.lookahead) * rate
        n_in = torch.full_like(n_before, window.shape[1] - 1)
        if steps.n_valid is not None:
            n_in = steps.n_valid * rate
        stretch = plan_stretch(n_before, n_in, steps.end * rate, speed)
        n_wanted = stretch.n_new + torch.where(is_last, self.flush_frames, 0)
        n_most = (window.shape[1] - 1) * UNIT_SPEED // MIN_SPEED + 1 + self.flush_frames
        n_out = n_most if self.is_static else int(n_wanted.max())
        stretched = stretch_frames(window, n_before, n_in, speed, stretch.first, n_out)
        span = Span(start=stretch.first, end=stretch.end)
        return silence(stretched, span, Grid()), stretch, n_wanted

    def _vocode(
        self,
        latents: Tensor,
        contexts: list[Tensor],
        stretch: Stretch,
        n_wanted: Tensor,
        n_chunk_frames: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the vocoder over `latents` in passes; PCM `(B, n)`, counted from the first frame."""
        hop = self.vocoder.hop
        pieces = []
        for begin, stop in self._passes(latents.shape[1], n_chunk_frames):
            rows, is_full = self._rows_left(n_wanted - begin, stop - begin)
            part = latents[:, begin:stop]
            part = nn.functional.pad(part, (0, 0, 0, stop - begin - part.shape[1]))
            start = stretch.first + begin
            span = Span(
                start=start,
                end=stretch.end,
                n_valid=None if is_full else (n_wanted - begin).clamp(0, stop - begin),
                has_edge=self._has_edge(start, stretch.end),
            )
            if rows is None:
                piece, contexts = self.vocoder(part, contexts, span)
            else:
                some = [context[rows] for context in contexts]
                sound, some = self.vocoder(part[rows], some, span.rows(rows))
                piece = sound.new_zeros(latents.shape[0], sound.shape[1])
                piece.index_copy_(0, rows, sound)
                contexts = [
                    context.index_copy(0, rows, new)
                    for context, new in zip(contexts, some, strict=True)
                ]
            pieces.append(piece)
        pcm = torch.cat(pieces, dim=1) if pieces else latents.new_zeros(latents.shape[0], hop)
        return pcm, contexts

    def _passes(self, n_frames: int, n_chunk_frames: int) -> Iterator[tuple[int, int]]:
        """Begin and stop of each vocoder pass: a chunk at speed 1, then what goes beyond it."""
        begin, width = 0, n_chunk_frames
        while begin < n_frames:
            yield begin, begin + width
            begin, width = begin + width, LATER_PASS_FRAMES

    def _rows_left(self, n_left: Tensor, width: int) -> tuple[Tensor | None, bool]:
        """Rows of a pass (None: all), and whether each of them fills it."""
        if self.is_static:
            return None, False
        is_full = bool((n_left >= width).all())
        if is_full or bool((n_left > 0).all()):
            return None, is_full
        return (n_left > 0).nonzero().squeeze(1), False

    def _has_edge(self, start: Tensor, end: Tensor) -> bool:
        """Whether a pass may touch positions before a stream's start or past its end."""
        if self.is_static:
            return True
        return bool(((start < self.flush_frames) | (end < ENDLESS)).any())

    def _cut(self, pcm: Tensor, stretch: Stretch, n_wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Move each row's audio to the front; `(B, n)` and how many samples are audio `(B,)`."""
        hop = self.vocoder.hop
        first = stretch.first * hop - self.vocoder.delay
        skipped = (-first).clamp(min=0)
        stop = torch.minimum(n_wanted * hop, stretch.end * hop - first)
        n_samples = (stop - skipped).clamp(min=0)
        if self.is_static or bool(skipped.any()):
            idx = skipped.unsqueeze(1) + torch.arange(pcm.shape[1], device=pcm.device)
            pcm = pcm.gather(1, idx.clamp(max=pcm.shape[1] - 1))
        return pcm, n_samples


def _join(groups: list[Decoded]) -> Decoded:
    """Rows of several groups, as one result."""
    n_most = max(group.pcm.shape[1] for group in groups)
    padded = [nn.functional.pad(group.pcm, (0, n_most - group.pcm.shape[1])) for group in groups]
    return Decoded(
        pcm=torch.cat(padded),
        n_samples=torch.cat([group.n_samples for group in groups]),
        state={
            name: torch.cat([group.state[name] for group in groups]) for name in groups[0].state
        },
    )
