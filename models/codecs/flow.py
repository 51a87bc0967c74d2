"""Conditional flow matching: mel frames from noise, in a few Euler steps, guided.

The decoder of the flow-matching families. A step's estimator is a stack of causal convolutions and
of attention that sees whole chunks: a frame sees its own chunk and all before, and so never changes
when more chunks follow. Guidance runs as one batch of twice the rows.

Source: Lipman et al. 2023 (flow matching); Mehta et al. 2024 (Matcha-TTS); CosyVoice,
`flow/flow_matching.py` and `flow/decoder.py` (Apache-2.0). Keys of the modules are those of its
checkpoints (`flow.pt`, under `decoder.estimator.`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.weights import load_weights

NOISE_FRAMES: Final = 15_000
"""Length of the published noise: 300 s at 50 frames a second."""
_NOISE_SEED: Final = 0
_TIME_SCALE: Final = 1000.0
_KERNEL: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """Shape of a checkpoint, and how it is solved.

    Args:
        n_mels: channels of a frame.
        n_channels: of the estimator.
        n_layers: attention layers behind each convolutional block.
        n_middle: blocks between the first and the last.
        n_heads: of the attention.
        head_dim: of a head.
        n_steps: of the solver.
        guidance: how far from the unconditioned flow; 0 is none.
        chunk_frames: frames that see one another.
    """

    n_mels: int
    n_channels: int
    n_layers: int
    n_middle: int
    n_heads: int
    head_dim: int
    n_steps: int
    guidance: float
    chunk_frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What mel frames are to follow from. Rows of a batch are independent.

    Args:
        mu: `(B, n_mels, n)`, from the encoder.
        known: `(B, n_mels, n)`, mel frames of a prompt, zeros where there are none.
        speaker: `(B, n_mels)`.
        n_valid: `(B,)` frames that count.
    """

    mu: Tensor
    known: Tensor
    speaker: Tensor
    n_valid: Tensor


class Flow(nn.Module):
    """The decoder.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.estimator = Estimator(config)
        # Steps are short at first: noise is far from speech.
        times = torch.linspace(0, 1, config.n_steps + 1, dtype=torch.float64)
        self.times: tuple[float, ...] = tuple((1 - torch.cos(times * torch.pi / 2)).tolist())

    def forward(self, noise: Tensor, condition: Condition, *, is_chunked: bool = True) -> Tensor:
        """Mel frames `(B, n_mels, n)`, zeros past `n_valid`.

        Args:
            noise: `(B, n_mels, n)`.
            condition: of each row.
            is_chunked: frames see their own chunk and those before; else all frames.
        """
        n_frames = noise.shape[2]
        chunk = self.config.chunk_frames if is_chunked else None
        mask = seen(condition.n_valid, n_frames, chunk)
        given = torch.cat(
            [condition.mu, condition.speaker.unsqueeze(2).expand_as(noise), condition.known], dim=1
        )
        # With the condition, then without: one batch.
        both = torch.cat([given, torch.zeros_like(given)])
        mask = torch.cat([mask, mask])
        x, weight = noise, self.config.guidance
        for now, then in zip(self.times[:-1], self.times[1:], strict=True):
            speed = self.estimator(torch.cat([torch.cat([x, x]), both], dim=1), now, mask)
            with_it, without = speed.chunk(2)
            x = x + (then - now) * ((1 + weight) * with_it - weight * without)
        is_valid = torch.arange(n_frames, device=x.device) < condition.n_valid.unsqueeze(1)
        return x * is_valid.unsqueeze(1)


class Estimator(nn.Module):
    """The speed of the flow.

    Args:
        config: its shape.
    """

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        width = config.n_channels
        self.n_in = 4 * config.n_mels
        self.time_mlp = nn.ModuleDict(
            {
                "linear_1": nn.Linear(self.n_in, 4 * width),
                "linear_2": nn.Linear(4 * width, 4 * width),
            }
        )
        self.down_blocks = nn.ModuleList([_block(config, self.n_in, has_conv=True)])
        self.mid_blocks = nn.ModuleList(
            _block(config, width, has_conv=False) for _ in range(config.n_middle)
        )
        self.up_blocks = nn.ModuleList([_block(config, 2 * width, has_conv=True)])
        self.final_block = _Conv(width, width)
        self.final_proj = nn.Conv1d(width, config.n_mels, 1)

    def forward(self, x: Tensor, time: float, mask: Tensor) -> Tensor:
        """Map `(B, 4 * n_mels, n)`, seen by `mask` at `time` in [0, 1], to `(B, n_mels, n)`."""
        moment = self._moment(time, x)
        skip = _run(self.down_blocks[0], x, moment, mask)
        x = self.down_blocks[0][2](skip)  # type: ignore[index] # a ModuleList
        for block in self.mid_blocks:
            x = _run(block, x, moment, mask)
        x = _run(self.up_blocks[0], torch.cat([x, skip], dim=1), moment, mask)
        x = self.up_blocks[0][2](x)  # type: ignore[index] # a ModuleList
        out: Tensor = self.final_proj(self.final_block(x))
        return out

    def _moment(self, time: float, like: Tensor) -> Tensor:
        """`(1, 4 * n_channels)`, the same for all rows."""
        half = self.n_in // 2
        steps = torch.arange(half, device=like.device, dtype=torch.float32)
        angles = _TIME_SCALE * time * torch.exp(steps * (-math.log(10_000) / (half - 1)))
        x = torch.cat([angles.sin(), angles.cos()]).unsqueeze(0).to(like.dtype)
        moment: Tensor = self.time_mlp["linear_2"](functional.silu(self.time_mlp["linear_1"](x)))
        return moment


class CausalConv3(nn.Conv1d):
    """Three taps: a frame and the two before."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, _KERNEL)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, n_in, n)` to `(B, n_out, n)`."""
        return super().forward(functional.pad(x, (_KERNEL - 1, 0)))


class _Conv(nn.Module):
    """A causal convolution, a norm over channels, a rectifier; named as in the checkpoints."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"0": CausalConv3(n_in, n_out), "2": nn.LayerNorm(n_out)})

    def forward(self, x: Tensor) -> Tensor:
        normed = self.block["2"](self.block["0"](x).transpose(1, 2))
        return functional.mish(normed.transpose(1, 2))


class _Resnet(nn.Module):
    """Two such, told between them which moment it is, beside a plain map."""

    def __init__(self, n_in: int, n_out: int, n_moment: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"1": nn.Linear(n_moment, n_out)})
        self.block1 = _Conv(n_in, n_out)
        self.block2 = _Conv(n_out, n_out)
        self.res_conv = nn.Conv1d(n_in, n_out, 1)

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        y = self.block1(x) + self.mlp["1"](functional.mish(moment)).unsqueeze(2)
        out: Tensor = self.block2(y) + self.res_conv(x)
        return out


class _Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, size: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        inner = n_heads * head_dim
        self.norm1 = nn.LayerNorm(size)
        self.attn1 = nn.ModuleDict(
            {
                "to_q": nn.Linear(size, inner, bias=False),
                "to_k": nn.Linear(size, inner, bias=False),
                "to_v": nn.Linear(size, inner, bias=False),
                "to_out": nn.ModuleList([nn.Linear(inner, size)]),
            }
        )
        self.norm3 = nn.LayerNorm(size)
        self.ff = nn.ModuleDict(
            {
                "net": nn.ModuleDict(
                    {
                        "0": nn.ModuleDict({"proj": nn.Linear(size, 4 * size)}),
                        "2": nn.Linear(4 * size, size),
                    }
                )
            }
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map `(B, n, size)` to the same shape."""
        y = self.norm1(x)
        query, key, value = (
            self.attn1[name](y).unflatten(2, (self.n_heads, -1)).transpose(1, 2)
            for name in ("to_q", "to_k", "to_v")
        )
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.attn1["to_out"][0](heads.transpose(1, 2).flatten(2))  # type: ignore[index]
        net = self.ff["net"]
        inner = functional.gelu(net["0"]["proj"](self.norm3(x)))  # type: ignore[index]
        out: Tensor = x + net["2"](inner)  # type: ignore[index]
        return out


def _block(config: FlowConfig, n_in: int, *, has_conv: bool) -> nn.ModuleList:
    """A convolutional block, its attention layers, and a convolution behind them where asked."""
    width = config.n_channels
    layers = nn.ModuleList(
        _Layer(width, config.n_heads, config.head_dim) for _ in range(config.n_layers)
    )
    parts: list[nn.Module] = [_Resnet(n_in, width, 4 * width), layers]
    return nn.ModuleList([*parts, CausalConv3(width, width)] if has_conv else parts)


def _run(block: nn.Module, x: Tensor, moment: Tensor, mask: Tensor) -> Tensor:
    """A block but its last convolution."""
    assert isinstance(block, nn.ModuleList), "made so"
    resnet, layers = block[0], block[1]
    assert isinstance(layers, nn.ModuleList), "made so"
    rows: Tensor = resnet(x, moment).transpose(1, 2)
    for layer in layers:
        rows = layer(rows, mask)
    return rows.transpose(1, 2)


def seen(n_valid: Tensor, n_frames: int, chunk: int | None) -> Tensor:
    """Which keys a query may see, `(B, 1, n_frames, n_frames)` bool.

    Args:
        n_valid: `(B,)` frames that count.
        n_frames: of the batch.
        chunk: frames of a chunk, which see those of earlier chunks too; None: all frames.
    """
    time = torch.arange(n_frames, device=n_valid.device)
    is_seen = (time < n_valid.unsqueeze(1)).unsqueeze(1)
    if chunk is not None:
        is_seen = is_seen & (time // chunk <= (time // chunk).unsqueeze(1))
    # What does not count sees itself at least: attention to nothing has no value.
    return (is_seen | torch.eye(n_frames, dtype=torch.bool, device=time.device)).unsqueeze(1)


def flow_noise(n_mels: int) -> Tensor:
    """The published noise, `(n_mels, NOISE_FRAMES)`: the same for every utterance, by time."""
    generator = torch.Generator().manual_seed(_NOISE_SEED)
    return torch.randn(1, n_mels, NOISE_FRAMES, generator=generator)[0]


def make_flow(config: FlowConfig, tensors: Mapping[str, Tensor], *, source: str) -> Flow:
    """The decoder with its weights, on the CPU.

    Args:
        config: their shape.
        tensors: those of `flow.pt` under `decoder.`, without that prefix.
        source: where they came from, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = Flow(config)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)
