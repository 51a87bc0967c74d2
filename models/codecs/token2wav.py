"""Speech tokens to PCM, streamed: the detokenizer of the flow-matching families.

Three parts, each with what it remembers: the encoder (`models.codecs.conformer`), the flow with its
estimator (`models.codecs.flow`), the vocoder (`models.codecs.hift`). Nothing is computed twice, and
the last chunk is made as all others are.

The grid. Tokens see one another in chunks of, say, 25, counted from the first of the prompt, and
three tokens ahead. A chunk is made when its look-ahead is there. A voice's prompt ends inside of a
chunk: its last `n_pending` tokens wait for `first_tokens` new ones to fill it. So the first call
needs 12 + 3 tokens and the following ones 25 or 50, whatever came before, and the tokens at hand
are always on the grid. A last call gives all, and has room for the three tokens that waited.
Where a prompt stands apart it is a chunk of its own, however long, of whose end so much is kept as
tokens are remembered for good; the grid begins behind it.

The vocoder runs chunk by chunk too, in calls of several as well: with less look-ahead than its
network reaches it gives the same for every pattern of calls only so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.base import Decoded
from models.codecs.causal import DTYPES
from models.codecs.conformer import FACTOR
from models.codecs.hift import Hift
from models.codecs.place import Place
from models.codecs.speech_flow import SpeechFlow
from models.layers.conv import ENDLESS
from models.spec import CodecSpec, StateSpec

CLOCK, BEGIN = "token_start", "token_begin"
TOKENS, KNOWN, SPEAKER = "tokens", "known_mel", "speaker"
_SEED_CHUNKS: Final = 4
"""Of a call over a prompt: what is remembered is looked at once for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token2WavConfig:
    """How tokens are streamed.

    Args:
        first_tokens: new tokens in a stream's first chunk, with a prompt's before them.
        chunks: of a call, ascending.
        vocoder_frames: mel frames ahead that the vocoder makes audio with. The reference gives what
            has 8, and fades; each two more take a token's time from a first sound.
        max_batch: most streams in a call.
        silence: token that is looked at behind a prompt that stands apart; None: it does not.
    """

    first_tokens: int = 12
    chunks: tuple[int, ...] = (1, 2)
    vocoder_frames: int = 12
    max_batch: int = 8
    silence: int | None = None


class Token2Wav(nn.Module):
    """The detokenizer.

    Args:
        flow: encoder and flow.
        hift: the vocoder.
        config: how tokens are streamed.
    """

    def __init__(self, flow: SpeechFlow, hift: Hift, config: Token2WavConfig | None = None) -> None:
        super().__init__()
        config = config or Token2WavConfig()
        encoder = flow.config.encoder
        hift.look_ahead(config.vocoder_frames)
        self.flow = flow
        self.hift = hift
        self.n_ahead = encoder.lookahead
        self.chunk_tokens = encoder.chunk_tokens
        self.n_pending = self.chunk_tokens - config.first_tokens
        assert config.first_tokens > 0, "a first chunk brings something"
        assert self.n_pending > self.n_ahead, "a first call has a size of its own"
        self.silence = config.silence
        self.n_first = encoder.first_tokens
        is_fit = (self.n_first + config.first_tokens) % self.chunk_tokens == 0
        assert self.silence is None or is_fit, "behind the prompt a first chunk ends on the grid"
        calls = [n * self.chunk_tokens for n in config.chunks]
        self.spec = CodecSpec(
            chunk_frames=tuple(calls),
            first_frames=tuple(n - self.n_pending + self.n_ahead for n in calls),
            lookahead_frames=self.n_ahead + math.ceil(hift.ahead / FACTOR),
            last_room_frames=self.n_ahead,
            state=(*self._own_states, *flow.states, *hift.states),
            max_batch=config.max_batch,
        )

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a token."""
        return FACTOR * self.hift.samples_per_frame

    @property
    def _own_states(self) -> tuple[StateSpec, ...]:
        n_mels = self.flow.config.flow.n_mels
        return (
            StateSpec(name=CLOCK, shape=(1,), dtype="int64"),
            StateSpec(name=BEGIN, shape=(1,), dtype="int64"),
            StateSpec(name=TOKENS, shape=(self.n_pending,), dtype="int64"),
            StateSpec(name=KNOWN, shape=(n_mels, FACTOR * self.n_pending)),
            StateSpec(name=SPEAKER, shape=(n_mels,)),
        )

    @torch.inference_mode()
    def seed(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> dict[str, Tensor]:
        """What a voice leaves in the state of a stream, by name, on the host. Worker thread.

        Seconds of work: callers keep it by what the voice was made of.

        So much of the prompt's beginning is left out (under a second) that its end lies right on
        the grid; a short prompt, or none, is taken whole, and so is one that stands apart.

        Args:
            tokens: `(m,)` of the prompt, none or more.
            mel: `(n_mels, 2 * m)`, its mel frames.
            speaker: `(speaker_dim,)`, the speaker's embedding.
        """
        assert mel.shape[1] == FACTOR * len(tokens), "two mel frames for each token"
        told = self.flow.speaker(speaker.unsqueeze(0).to(self.flow.noise.device))
        tokens, mel = tokens.to(told.device), mel.to(told)
        make = self._seed_on_grid if self.silence is None else self._seed_apart
        return {name: _on_host(tensor) for name, tensor in make(tokens, mel, told).items()}

    def _seed_on_grid(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> dict[str, Tensor]:
        """Of a prompt whose end lies on the grid."""
        n_whole = max(0, len(tokens) - self.n_pending) // self.chunk_tokens * self.chunk_tokens
        first = max(0, len(tokens) - self.n_pending - n_whole)
        tokens, mel = tokens[first:], mel[:, FACTOR * first :]
        state = self._seen(tokens, mel, speaker, n_whole)
        n_missing = max(0, self.n_pending - len(tokens))
        own = {
            CLOCK: torch.tensor([n_whole]),
            BEGIN: torch.tensor([n_missing]),
            TOKENS: functional.pad(tokens[n_whole:], (n_missing, 0)),
            KNOWN: functional.pad(mel[:, FACTOR * n_whole :], (FACTOR * n_missing, 0)),
            SPEAKER: speaker[0],
        }
        return {**{name: tensor[0] for name, tensor in state.items()}, **own}

    def _seed_apart(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> dict[str, Tensor]:
        """The same for a prompt that is a chunk of its own."""
        begin = torch.tensor([self.n_first - len(tokens)], device=mel.device)
        state = self._blank(mel.device)
        if len(tokens):
            window = functional.pad(tokens, (0, self.n_ahead), value=self.silence).unsqueeze(0)
            place = Place(start=begin, begin=begin, end=begin + ENDLESS)
            known = mel.unsqueeze(0)
            _, state = self.flow.stream(window, place, known, speaker, state, is_chunked=False)
        own = {
            CLOCK: torch.tensor([self.n_first]),
            BEGIN: begin.cpu(),
            TOKENS: torch.zeros(self.n_pending, dtype=torch.int64),
            KNOWN: mel.new_zeros(len(mel), FACTOR * self.n_pending),
            SPEAKER: speaker[0],
        }
        return {**{name: tensor[0] for name, tensor in state.items()}, **own}

    def _blank(self, device: torch.device) -> dict[str, Tensor]:
        """State of encoder and flow before anything came."""
        return {
            one.name: torch.zeros(1, *one.shape, dtype=DTYPES[one.dtype], device=device)
            for one in self.flow.states
        }

    def _seen(
        self, tokens: Tensor, mel: Tensor, speaker: Tensor, n_whole: int
    ) -> Mapping[str, Tensor]:
        """State of encoder and flow after the first `n_whole` tokens of a prompt."""
        state: Mapping[str, Tensor] = self._blank(mel.device)
        for start in range(0, n_whole, _SEED_CHUNKS * self.chunk_tokens):
            end = min(n_whole, start + _SEED_CHUNKS * self.chunk_tokens)
            at = torch.tensor([start], device=mel.device)
            place = Place(start=at, begin=torch.zeros_like(at), end=at + ENDLESS)
            window = tokens[None, start : end + self.n_ahead]
            known = mel[None, :, FACTOR * start : FACTOR * end]
            _, state = self.flow.stream(window, place, known, speaker, state)
        return state

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """One chunk of each stream; see `models.base.SpeechModel.decode`.

        The size of the call says whether it is the first of its streams.
        """
        n_new = frames.shape[1]
        n_waited = (self.n_ahead - n_new) % self.chunk_tokens
        is_opening = n_waited == self.n_pending
        if is_opening and self.silence is not None:
            n_waited = 0
        waited = state[TOKENS][:, self.n_pending - n_waited :]
        window = torch.cat([waited, frames[:, :, 0].clamp(min=0)], dim=1)
        n_frames = FACTOR * (window.shape[1] - self.n_ahead)
        known = state[KNOWN][:, :, FACTOR * (self.n_pending - n_waited) :]
        known = functional.pad(known, (0, n_frames - known.shape[2]))
        start, begin = state[CLOCK][:, 0], state[BEGIN][:, 0]
        end = torch.where(is_last, start + n_waited + n_valid, ENDLESS)
        place = Place(start=start, begin=begin, end=end)
        mel, after = self.flow.stream(window, place, known, state[SPEAKER], state)
        # The prompt's frames are the voice's, not the stream's.
        n_prompt = FACTOR * n_waited if is_opening else 0
        n_frames_valid = (FACTOR * (end - start)).clamp(max=n_frames) - n_prompt
        sound = self._sound(mel[:, :, n_prompt:], n_frames_valid, state, is_last)
        own = {
            CLOCK: (start + window.shape[1] - self.n_ahead).unsqueeze(1),
            BEGIN: state[BEGIN],
            TOKENS: window[:, window.shape[1] - self.n_pending :],
            KNOWN: torch.zeros_like(state[KNOWN]),
            SPEAKER: state[SPEAKER],
        }
        return Decoded(
            pcm=sound.pcm, n_samples=sound.n_samples, state={**own, **after, **sound.state}
        )

    def _sound(
        self, mel: Tensor, n_valid: Tensor, state: Mapping[str, Tensor], is_last: Tensor
    ) -> Decoded:
        """PCM of mel frames, chunk by chunk of the grid."""
        width = self.hift.samples_per_frame
        n_most = (mel.shape[2] + self.hift.ahead) * width
        pcm = mel.new_zeros(len(mel), n_most + 1)
        n_given = torch.zeros_like(n_valid)
        for first, end in self._chunks(mel.shape[2]):
            is_end = is_last & (n_valid <= end) & ((n_valid > first) | (first == 0))
            n_new = (n_valid - first).clamp(0, end - first)
            made = self.hift.decode(mel[:, :, first:end], n_new, state, is_end)
            steps = torch.arange(made.pcm.shape[1], device=mel.device)
            # What is not given goes to a place of its own, behind the rest.
            is_given = steps < made.n_samples.unsqueeze(1)
            pcm.scatter_(1, torch.where(is_given, n_given.unsqueeze(1) + steps, n_most), made.pcm)
            n_given = n_given + made.n_samples
            state = made.state
        return Decoded(pcm=pcm[:, :n_most], n_samples=n_given, state=dict(state))

    def _chunks(self, n_frames: int) -> Iterator[tuple[int, int]]:
        """First and last mel frame of each chunk; that of a first call may be shorter."""
        width = FACTOR * self.chunk_tokens
        first, end = 0, n_frames % width or width
        while first < n_frames:
            yield first, end
            first, end = end, end + width


def _on_host(tensor: Tensor) -> Tensor:
    """A copy that a GPU can read by itself: every stream begins with one, and steps wait for it."""
    host = tensor.cpu()
    return host.pin_memory() if tensor.is_cuda else host
