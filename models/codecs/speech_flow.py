"""Speech tokens to mel frames: encoder and flow matching as one checkpoint holds them.

Whole utterances, or chunk by chunk: mel frames of whole chunks that have their look-ahead are
final, whatever follows. A prompt's tokens stand first, with its mel frames known.

Source: CosyVoice, `flow/flow.py` (Apache-2.0); keys of the modules are those of `flow.pt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.conformer import FACTOR, ConformerConfig, UpsampleConformer
from models.codecs.flow import NOISE_FRAMES, Condition, Flow, FlowConfig, flow_noise
from models.codecs.place import Place
from models.spec import StateSpec
from models.weights import load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechFlowConfig:
    """Shape of a checkpoint.

    Args:
        n_tokens: that a speech tokenizer knows.
        speaker_dim: of a speaker's embedding.
        encoder: its shape.
        flow: how mel frames are solved; chunks of twice as many as the encoder's have tokens.
    """

    n_tokens: int
    speaker_dim: int
    encoder: ConformerConfig
    flow: FlowConfig


class SpeechFlow(nn.Module):
    """Both parts, and the tables around them.

    Args:
        config: shape of the weights.
        estimator: of the flow, see `models.codecs.flow.Flow`.
    """

    noise: Tensor

    def __init__(self, config: SpeechFlowConfig, estimator: nn.Module) -> None:
        super().__init__()
        assert config.flow.chunk_frames == FACTOR * config.encoder.chunk_tokens, "the same chunks"
        self.config = config
        n_mels = config.flow.n_mels
        self.input_embedding = nn.Embedding(config.n_tokens, config.encoder.n_in)
        self.spk_embed_affine_layer = nn.Linear(config.speaker_dim, n_mels)
        self.encoder = UpsampleConformer(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.size, n_mels)
        self.decoder = Flow(config.flow, estimator)
        self.register_buffer("noise", flow_noise(n_mels), persistent=False)

    def speaker(self, embedding: Tensor) -> Tensor:
        """What the flow is told, `(B, n_mels)`, of speakers by their embeddings."""
        told: Tensor = self.spk_embed_affine_layer(functional.normalize(embedding, dim=1))
        return told

    def forward(
        self,
        tokens: Tensor,
        n_valid: Tensor,
        known: Tensor,
        speaker: Tensor,
        *,
        is_chunked: bool = True,
    ) -> Tensor:
        """Mel frames `(B, n_mels, 2 * n)` of utterances from their start, zeros past their end.

        Noise is a function of time, and repeats after 300 s, where the reference stops.

        Args:
            tokens: `(B, n)`, those of a prompt first.
            n_valid: `(B,)` tokens that count.
            known: `(B, n_mels, 2 * n)`, mel frames of the prompt, zeros behind them.
            speaker: `(B, n_mels)`, see `speaker`.
            is_chunked: by chunks; else every token and frame sees all.
        """
        rows = self.encoder.whole(self.input_embedding(tokens), n_valid, is_chunked=is_chunked)
        mu = self.encoder_proj(rows).transpose(1, 2)
        time = torch.arange(mu.shape[2], device=mu.device).expand(len(mu), -1)
        condition = Condition(mu=mu, known=known, speaker=speaker)
        mel: Tensor = self.decoder(
            self._noise_at(time), condition, FACTOR * n_valid, is_chunked=is_chunked
        )
        return mel

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream remembers; when it began is the caller's to know."""
        return (*self.encoder.states, *self.decoder.states)

    def stream(
        self,
        tokens: Tensor,
        place: Place,
        known: Tensor,
        speaker: Tensor,
        state: Mapping[str, Tensor],
        *,
        is_chunked: bool = True,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mel frames `(B, n_mels, 2 * n)` of n tokens, up to the end of a chunk, and what is kept.

        Args:
            tokens: `(B, n + lookahead)`, the last ones only to be looked at; they come again.
            place: of the tokens in their stream.
            known: `(B, n_mels, 2 * n)`, mel frames of the prompt, zeros where there are none.
            speaker: `(B, n_mels)`, see `speaker`.
            state: as `states` lists it; zeros at the start.
            is_chunked: by chunks; else every token and frame sees all.
        """
        embedded = self.input_embedding(tokens)
        rows, after = self.encoder(embedded, place, state, is_chunked=is_chunked)
        n_frames = known.shape[2]
        mu = self.encoder_proj(rows[:, :n_frames]).transpose(1, 2)
        frames = place.finer(FACTOR)
        time = frames.start.unsqueeze(1) + torch.arange(n_frames, device=mu.device)
        noise = self._noise_at((time - frames.begin.unsqueeze(1)).clamp(min=0))
        condition = Condition(mu=mu, known=known, speaker=speaker)
        mel, flow_after = self.decoder.stream(
            noise, condition, frames, state, is_chunked=is_chunked
        )
        return mel, {**after, **flow_after}

    def _noise_at(self, time: Tensor) -> Tensor:
        """`(B, n_mels, n)` at times `(B, n)` of a stream."""
        return self.noise.T[time.remainder(NOISE_FRAMES)].transpose(1, 2)


def make_speech_flow(
    config: SpeechFlowConfig, estimator: nn.Module, tensors: Mapping[str, Tensor], *, source: str
) -> SpeechFlow:
    """Both parts with their weights, those of `flow.pt`, on the CPU.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = SpeechFlow(config, estimator)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)
