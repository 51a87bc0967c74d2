"""Conditional flow matching: mel frames from noise, in a few Euler steps, guided.

The decoder of the flow-matching families. What moves a frame in a step is an estimator
(`models.codecs.flow_memory.Estimator`): a frame sees its own chunk and those before, and so never
changes when more chunks follow. Guidance runs as one batch of twice the rows, and is not paid for
where there is none. Streamed, the estimator looks back at what it remembers
(`models.codecs.flow_memory`), and every chunk is solved once.

Source: Lipman et al. 2023 (flow matching); Mehta et al. 2024 (Matcha-TTS); CosyVoice,
`flow/flow_matching.py` (Apache-2.0). Keys of the modules are those of its checkpoints (`flow.pt`,
under `decoder.`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from models.codecs.flow_memory import (
    N_HALVES,
    Estimator,
    KeptFrames,
    Recall,
    Sight,
    WholeSight,
    flow_states,
)
from models.codecs.place import Place, whole
from models.spec import StateSpec
from models.weights import load_weights

NOISE_FRAMES: Final = 15_000
"""Length of the published noise: 300 s at 50 frames a second."""
_NOISE_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """How a flow is solved, and how far it looks back.

    Args:
        n_mels: channels of a frame.
        n_steps: of the solver.
        guidance: how far from the unconditioned flow; 0 is none.
        chunk_frames: frames that see one another.
        kept: frames before a chunk that are remembered.
        is_even: steps are of one length, as for flows that were distilled; else short at first.
    """

    n_mels: int
    n_steps: int
    guidance: float
    chunk_frames: int
    kept: KeptFrames
    is_even: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What mel frames are to follow from. Rows of a batch are independent.

    Args:
        mu: `(B, n_mels, n)`, from the encoder.
        known: `(B, n_mels, n)`, mel frames of a prompt, zeros where there are none.
        speaker: `(B, n_mels)`.
    """

    mu: Tensor
    known: Tensor
    speaker: Tensor


class Flow(nn.Module):
    """The decoder.

    Args:
        config: how it is solved.
        estimator: a module that implements `Estimator`.
    """

    def __init__(self, config: FlowConfig, estimator: nn.Module) -> None:
        super().__init__()
        assert config.kept.last % config.chunk_frames == 0, "whole chunks are kept"
        self.config = config
        self.estimator = estimator
        self.n_halves = N_HALVES if config.guidance else 1
        times = torch.linspace(0, 1, config.n_steps + 1, dtype=torch.float64, device="cpu")
        if not config.is_even:
            # Noise is far from speech.
            times = 1 - torch.cos(times * torch.pi / 2)
        self.times: tuple[float, ...] = tuple(times.tolist())

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream remembers; when it began is the caller's to know."""
        return flow_states(self.config.kept, self._speed, self.config.n_steps, self.n_halves)

    def forward(
        self, noise: Tensor, condition: Condition, n_valid: Tensor, *, is_chunked: bool = True
    ) -> Tensor:
        """Mel frames `(B, n_mels, n)` of whole utterances, zeros past `n_valid`.

        Args:
            noise: `(B, n_mels, n)`.
            condition: of each row.
            n_valid: `(B,)` frames that count.
            is_chunked: frames see their own chunk and those before; else all frames.
        """
        n_frames = noise.shape[2]
        place = whole(n_valid)
        chunk = self.config.chunk_frames if is_chunked else None
        sight = WholeSight(place, n_frames, chunk, self.n_halves)
        mel = self._solve(noise, condition, lambda step: sight)
        return mel * place.holds(place.times(0, n_frames)).unsqueeze(1)

    def stream(
        self,
        noise: Tensor,
        condition: Condition,
        place: Place,
        state: Mapping[str, Tensor],
        *,
        is_chunked: bool = True,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mel frames `(B, n_mels, n)` up to the end of a chunk, and what is remembered after them.

        Args:
            noise: `(B, n_mels, n)`.
            condition: of each row.
            place: of the frames; those outside of their stream have no meaning.
            state: as `states` lists it; zeros at the start.
            is_chunked: frames see their own chunk and those before; else all frames.
        """
        n_frames = noise.shape[2]
        chunk = self.config.chunk_frames if is_chunked else None
        recall = Recall(state, place, n_frames, chunk, self.config.kept, self._speed.contexts)
        mel = self._solve(noise, condition, recall.sight)
        return mel, recall.after

    @property
    def _speed(self) -> Estimator:
        return self.estimator  # type: ignore[return-value] # a module that implements it

    def _solve(
        self, noise: Tensor, condition: Condition, sight_of: Callable[[int], Sight]
    ) -> Tensor:
        x = noise.transpose(1, 2)
        given = [condition.mu.transpose(1, 2), condition.speaker.unsqueeze(1).expand_as(x)]
        told = torch.cat([*given, condition.known.transpose(1, 2)], dim=2)
        # With the condition, then without: two rows of one batch.
        both = torch.stack([told, torch.zeros_like(told)][: self.n_halves], dim=1)
        weight = self.config.guidance
        for step, (now, then) in enumerate(zip(self.times[:-1], self.times[1:], strict=True)):
            same = x.unsqueeze(1).expand(-1, self.n_halves, -1, -1)
            rows = torch.cat([same, both], dim=3).flatten(0, 1)
            speed = self._speed(rows, now, sight_of(step))
            if weight:
                speed = (1 + weight) * speed[0::N_HALVES] - weight * speed[1::N_HALVES]
            x = x + (then - now) * speed
        return x.transpose(1, 2)


def flow_noise(n_mels: int) -> Tensor:
    """The published noise, `(n_mels, NOISE_FRAMES)`: the same for every utterance, by time."""
    generator = torch.Generator().manual_seed(_NOISE_SEED)
    return torch.randn(1, n_mels, NOISE_FRAMES, generator=generator)[0]


def make_flow(
    config: FlowConfig, estimator: nn.Module, tensors: Mapping[str, Tensor], *, source: str
) -> Flow:
    """The decoder with its weights, on the CPU.

    Args:
        config: how it is solved.
        estimator: of the shape of the weights.
        tensors: those of `flow.pt` under `decoder.`, without that prefix.
        source: where they came from, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = Flow(config, estimator)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)
