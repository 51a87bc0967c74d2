"""Speech tokens to PCM where a token has no whole number of mel frames, by windows: GLM-4-Voice.

Nothing of this flow can be streamed exactly: norms are over time, and every frame sees all others.
So a call solves a window: the last `context_tokens` tokens, whose mel frames are known, and the new
ones. As long as a stream fits into its window, that is what the reference computes, which runs all
tokens again for each chunk; later the beginning is out of sight, and a chunk costs the same however
long the stream is. The frames of the last `overlap_tokens` tokens are held back, and solved again
with those that follow: the two are faded into each other, with weights that add up to one (the
reference's add up to 1.08). Noise is a table over time. The vocoder goes on from where it was
(`models.codecs.hift`), so that PCM has no seam of its own.

Calls have one size: what a token sounds like follows from the tokens alone, not from how busy a
server was. The reference begins with 10 tokens and takes up to 200, as they come.

Time. A token of 80 ms has 1764 samples and 6.890625 mel frames of 256: 441 frames for each 64
tokens. Frame j begins at sample 256 j and follows from the token that sounds then, so n tokens have
`ceil(441 n / 64)` frames; the last call cuts what the last frame has beyond `1764 n` samples. (The
reference has one frame less, and ends up to 12 ms early.)

Source: zai-org/GLM-4-Voice, `flow_inference.py` and `cosyvoice/flow` (Apache-2.0). Keys of the
modules are those of `flow.pt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Decoded
from models.codecs.block_conformer import BlockConformer, BlockConformerConfig, Regulator
from models.codecs.flow import Condition, Flow, FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import Hift
from models.codecs.unet import UnetConfig
from models.codecs.wide_unet import WideUnet
from models.spec import CodecSpec, StateSpec
from models.weights import load_weights

CLOCK: Final = StateSpec(name="n_tokens", shape=(1,), dtype="int64")
"""Tokens that a stream has had."""
KNOWN: Final = "mel"
CHUNK_TOKENS: Final = 20
"""Of a call; whole blocks of an encoder, as the tokens before them that are seen again."""
NOISE_FRAMES: Final = 1 << 14
"""Length of the noise, which repeats: 190 s."""
_NOISE_SEED: Final = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFlowConfig:
    """Shape of a checkpoint, and how it is streamed.

    Args:
        n_tokens: that a speech tokenizer knows.
        token_rate_hz: of them.
        speaker_dim: of a speaker's embedding.
        encoder: its shape.
        n_smooth: convolutions of the regulator.
        estimator: its shape.
        n_levels: of the estimator.
        n_steps: of the solver.
        guidance: how far from the unconditioned flow; 0 is none.
        chunk_tokens: of a call; whole blocks of the encoder.
        context_tokens: that are seen again with a chunk; whole blocks.
        overlap_tokens: of these, the ones whose frames are solved again.
    """

    n_tokens: int
    token_rate_hz: float
    speaker_dim: int
    encoder: BlockConformerConfig
    n_smooth: int
    estimator: UnetConfig
    n_levels: int
    n_steps: int
    guidance: float
    chunk_tokens: int = CHUNK_TOKENS
    context_tokens: int = 2 * CHUNK_TOKENS
    overlap_tokens: int = 5

    @property
    def flow(self) -> FlowConfig:
        """How it is solved: every frame sees all others, and nothing is remembered."""
        return FlowConfig(
            n_mels=self.estimator.n_mels,
            n_steps=self.n_steps,
            guidance=self.guidance,
            chunk_frames=1,
            kept=KeptFrames(first=0, last=0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What there is of mel frames before they are solved, `(B, n_mels, n)` each.

    Args:
        noise: from which they are made.
        known: those that are known, zeros elsewhere.
    """

    noise: Tensor
    known: Tensor


class BlockFlow(nn.Module):
    """Tokens to mel frames: encoder, regulator and flow as one checkpoint holds them.

    Args:
        config: shape of the weights.
    """

    noise: Tensor

    def __init__(self, config: BlockFlowConfig) -> None:
        super().__init__()
        self.config = config
        n_mels = config.estimator.n_mels
        self.input_embedding = nn.Embedding(config.n_tokens, config.encoder.n_in)
        self.spk_embed_affine_layer = nn.Linear(config.speaker_dim, n_mels)
        self.encoder = BlockConformer(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.size, n_mels)
        self.length_regulator = Regulator(n_mels, config.n_smooth)
        self.decoder = Flow(config.flow, WideUnet(config.estimator, config.n_levels))
        generator = torch.Generator().manual_seed(_NOISE_SEED)
        noise = torch.randn(n_mels, NOISE_FRAMES, generator=generator)
        self.register_buffer("noise", noise, persistent=False)

    def forward(
        self, tokens: Tensor, n_tokens: Tensor, source: Tensor, n_frames: Tensor, given: Given
    ) -> Tensor:
        """Mel frames `(B, n_mels, n)`, zeros where they do not count.

        Args:
            tokens: `(B, m)`.
            n_tokens: `(B,)`, of each row the first ones that count.
            source: `(B, n)`, the token of each frame.
            n_frames: `(B,)`, the first ones that count.
            given: what there is of the frames already.
        """
        valid = torch.arange(source.shape[1], device=source.device) < n_frames.unsqueeze(1)
        rows = self.encoder_proj(self.encoder(self.input_embedding(tokens), n_tokens))
        mu = self.length_regulator(rows, source, valid)
        # There is no speaker: this is what an embedding of zeros is mapped to.
        speaker = self.spk_embed_affine_layer.bias.expand(len(tokens), -1)
        condition = Condition(mu=mu, known=given.known, speaker=speaker)
        mel: Tensor = self.decoder(given.noise, condition, n_frames, is_chunked=False)
        return mel


class BlockCodec(nn.Module):
    """Both parts as one detokenizer.

    Args:
        flow: tokens to mel frames.
        hift: mel frames to PCM.
    """

    def __init__(self, flow: BlockFlow, hift: Hift) -> None:
        super().__init__()
        self.flow = flow
        self.hift = hift
        config = flow.config
        self.samples_per_token = round(hift.config.sample_rate_hz / config.token_rate_hz)
        self.frames_per_token = Fraction(self.samples_per_token, hift.samples_per_frame)
        block = config.encoder.block_tokens
        assert config.chunk_tokens % block == 0, "whole blocks"
        assert config.context_tokens % block == 0, "whole blocks"
        self.n_known = ceil(config.context_tokens * self.frames_per_token) + 1

    @property
    def spec(self) -> CodecSpec:
        """The codec's side of a model's spec."""
        config = self.flow.config
        return CodecSpec(
            chunk_frames=(config.chunk_tokens,),
            left_context_frames=config.context_tokens,
            lookahead_frames=config.overlap_tokens
            + ceil(self.hift.config.reach / self.frames_per_token),
            state=(
                CLOCK,
                StateSpec(name=KNOWN, shape=(config.estimator.n_mels, self.n_known)),
                *self.hift.states,
            ),
        )

    def decode(
        self, frames: Tensor, n_valid: Tensor, state: Mapping[str, Tensor], is_last: Tensor
    ) -> Decoded:
        """One chunk of each stream; see `models.base.SpeechModel.decode`."""
        window = _Window(self, frames, n_valid, state[CLOCK.name][:, 0], is_last)
        mel = self._mel(frames[:, :, 0], window, state[KNOWN])
        new = mel.gather(2, _like(mel, window.at(window.n_given, window.n_most)))
        heard = {one.name: state[one.name] for one in self.hift.states}
        decoded = self.hift.decode(new, window.n_final - window.n_given, heard, is_last)
        # What was given before stands `reach` frames back, and only the last frame is cut.
        n_before = (window.n_given - self.hift.config.reach).clamp(min=0)
        n_left = window.n_after * self.samples_per_token - n_before * self.hift.samples_per_frame
        n_samples = torch.where(is_last, n_left, decoded.n_samples)
        is_there = torch.arange(decoded.pcm.shape[1], device=mel.device) < n_samples.unsqueeze(1)
        n_all = window.n_frames(window.n_after)
        return Decoded(
            pcm=decoded.pcm.masked_fill(~is_there, 0.0),
            n_samples=n_samples,
            state={
                CLOCK.name: window.n_after.unsqueeze(1),
                KNOWN: window.taken(mel, n_all - self.n_known, self.n_known),
                **decoded.state,
            },
        )

    def _mel(self, tokens: Tensor, window: _Window, old: Tensor) -> Tensor:
        """Mel frames of the window `(B, n_mels, n)`, known and new."""
        flow = self.flow
        tokens = tokens.gather(1, window.token_idx).clamp(min=0)
        time = window.time
        first_old = window.n_frames(window.n_before) - self.n_known
        at_old = (time - first_old.unsqueeze(1)).clamp(0, self.n_known - 1)
        old = old.gather(2, _like(old, at_old))
        is_known = (time < window.n_given.unsqueeze(1)).unsqueeze(1)
        given = Given(
            noise=flow.noise[:, time.remainder(NOISE_FRAMES)].transpose(0, 1),
            known=old.masked_fill(~is_known, 0.0),
        )
        n_frames = window.n_frames(window.n_after) - window.first_frame
        new = flow(tokens, window.n_tokens, window.source, n_frames, given)
        # From what was solved before to what is solved now, over the frames that were held back.
        n_solved = window.n_frames(window.n_before).unsqueeze(1)
        age = time - window.n_given.unsqueeze(1) + 0.5
        share = age / (n_solved - window.n_given.unsqueeze(1)).clamp(min=1)
        # A last call that brings nothing gives what was held back, as it was solved.
        is_new = (window.n_after > window.n_before).unsqueeze(1)
        share = torch.where(time < n_solved, share.clamp(min=0.0) * is_new, 1.0).unsqueeze(1)
        mel: Tensor = old + (new - old) * share
        return mel


class _Window:
    """Where a call's tokens and frames lie in their streams.

    The window's tokens are moved to its start: those that count come first.
    """

    def __init__(
        self, codec: BlockCodec, frames: Tensor, n_valid: Tensor, n_before: Tensor, is_last: Tensor
    ) -> None:
        config, ratio = codec.flow.config, codec.frames_per_token
        n_context, n_window = config.context_tokens, frames.shape[1]
        self._ratio = ratio
        self.n_before, self.n_after = n_before, n_before + n_valid
        n_seen = n_before.clamp(max=n_context)
        self.n_tokens = n_seen + n_valid
        first = n_before - n_seen
        """Token at which the window starts."""
        steps = torch.arange(n_window, device=frames.device)
        self.token_idx = (steps + (n_context - n_seen).unsqueeze(1)).clamp(max=n_window - 1)
        self.first_frame = self.n_frames(first)
        self.n_given = self.n_frames(n_before - config.overlap_tokens).clamp(min=0)
        """Frames that the vocoder was given before this call, all of them final."""
        n_ready = self.n_after - torch.where(is_last, 0, config.overlap_tokens)
        self.n_final = self.n_frames(n_ready).clamp(min=0)
        self.n_most = ceil((n_window - n_context + config.overlap_tokens) * ratio) + 1
        """Most frames that a call gives to the vocoder."""
        steps = torch.arange(ceil(n_window * ratio) + 1, device=frames.device)
        self.time = self.first_frame.unsqueeze(1) + steps
        source = (self.time * ratio.denominator).div(ratio.numerator, rounding_mode="floor")
        self.source = (source - first.unsqueeze(1)).clamp(max=n_window - 1)

    def n_frames(self, n_tokens: Tensor) -> Tensor:
        """Frames that begin within so many tokens."""
        total = n_tokens * self._ratio.numerator + (self._ratio.denominator - 1)
        return total.div(self._ratio.denominator, rounding_mode="floor")

    def at(self, start: Tensor, n: int) -> Tensor:
        """Places in the window of `n` frames from `start` `(B,)` on: `(B, n)`."""
        steps = torch.arange(n, device=start.device)
        at = (start - self.first_frame).unsqueeze(1) + steps
        return at.clamp(0, self.time.shape[1] - 1)

    def taken(self, mel: Tensor, start: Tensor, n: int) -> Tensor:
        """Frames `(B, n_mels, n)` of the window from `start` `(B,)` on; zeros before a stream's."""
        taken = mel.gather(2, _like(mel, self.at(start, n)))
        time = start.unsqueeze(1) + torch.arange(n, device=start.device)
        return taken.masked_fill((time < 0).unsqueeze(1), 0.0)


def _like(mel: Tensor, at: Tensor) -> Tensor:
    """Places `(B, n)` for all channels of `mel`."""
    return at.unsqueeze(1).expand(-1, mel.shape[1], -1)


def make_block_flow(
    config: BlockFlowConfig, tensors: Mapping[str, Tensor], *, source: str
) -> BlockFlow:
    """The flow with its weights, those of `flow.pt`, on the CPU.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = BlockFlow(config)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)
