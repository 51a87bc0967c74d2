"""Streaming for causal codecs: every layer keeps the last inputs that it will look back at.

A layer is given what is new and gives as much as is new; what it must remember goes through a
`Memory`, which the engine keeps from chunk to chunk. So a chunk of one frame costs one frame,
nothing is computed twice, and any pattern of chunks equals whole decoding up to rounding. Channels
first, `(B, C, n)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from models.base import Decoded
from models.spec import CodecSpec, StateSpec

Padding = Literal["constant", "replicate"]
CLOCK: Final = StateSpec(name="n_frames", shape=(1,), dtype="int64")
"""Frames that a stream has had."""
DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "int64": torch.int64}


class Memory:
    """What the layers of a stack remember of the streams of one call.

    Args:
        before: tensors `(B, ...)` by name, from the call before.
    """

    def __init__(self, before: Mapping[str, Tensor]) -> None:
        self._before = before
        self.after: dict[str, Tensor] = {}

    def extend(self, name: str, x: Tensor, n_context: int) -> Tensor:
        """`x` `(B, C, n)` behind what `name` remembers; the last `n_context` inputs are kept."""
        window = torch.cat([self._before[name].to(x.dtype), x], dim=2)
        self.after[name] = window[:, :, window.shape[2] - n_context :]
        return window

    def get(self, name: str) -> Tensor:
        """What was remembered under `name`."""
        return self._before[name]

    def time(self, rate: int) -> Tensor:
        """Position `(B,)` of the call's first input on a grid of `rate` positions a frame."""
        return self._before[CLOCK.name][:, 0] * rate

    def advance(self, n_frames: int) -> None:
        """The call brought so many frames."""
        self.after[CLOCK.name] = self._before[CLOCK.name] + n_frames


class CausalConv(nn.Module):
    """A convolution that sees only what was.

    Args:
        n_in: channels.
        n_out: channels.
        kernel: taps.
        name: under which its inputs are remembered.
        stride: inputs for each output; above 1 only over whole signals.
        dilation: between taps.
        groups: of channels.
        has_bias: is there one.
        padding: what stands before the first input of a whole signal.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel: int,
        *,
        name: str = "",
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        has_bias: bool = True,
        padding: Padding = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            n_in, n_out, kernel, stride=stride, dilation=dilation, groups=groups, bias=has_bias
        )
        self.name = name
        self.n_in = n_in
        self.stride = stride
        self.n_context = dilation * (kernel - 1) + 1 - stride
        self.padding = padding

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """What it remembers."""
        return (StateSpec(name=self.name, shape=(self.n_in, self.n_context)),) * bool(
            self.n_context
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Map `(B, n_in, n)`, which follows on what is remembered, to `(B, n_out, n)`."""
        assert self.stride == 1, "strided layers are not streamed"
        window = memory.extend(self.name, x, self.n_context) if self.n_context else x
        out: Tensor = self.conv(window)
        return out

    def whole(self, x: Tensor) -> Tensor:
        """Map a whole signal `(B, n_in, n)`; the end is padded to whole strides."""
        n_missing = -x.shape[2] % self.stride
        out: Tensor = self.conv(nn.functional.pad(x, (self.n_context, n_missing), self.padding))
        return out


class CausalUpsample(nn.Module):
    """A transposed convolution with a kernel of whole strides, cut on the right.

    Args:
        n_in: channels.
        n_out: channels.
        stride: outputs for each input.
        name: under which its last inputs are remembered.
        n_context: earlier inputs that reach into the outputs of one: strides of the kernel, less 1.
        groups: of channels.
        has_bias: is there one.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        stride: int,
        *,
        name: str,
        n_context: int = 1,
        groups: int = 1,
        has_bias: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(
            n_in, n_out, (1 + n_context) * stride, stride=stride, groups=groups, bias=has_bias
        )
        self.n_context = n_context
        self.name = name
        self.n_in = n_in
        self.stride = stride

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """What it remembers."""
        return (StateSpec(name=self.name, shape=(self.n_in, self.n_context)),) * bool(
            self.n_context
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Map `(B, n_in, n)`, which follows on what is remembered, to `(B, n_out, n * stride)`."""
        window = memory.extend(self.name, x, self.n_context) if self.n_context else x
        out: Tensor = self.conv(window)
        first = self.n_context * self.stride
        return out[:, :, first : first + x.shape[2] * self.stride]


class LayerScale(nn.Module):
    """A gain for each channel. Source: Touvron et al. 2021."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return x * self.scale


class WindowAttention(nn.Module):
    """Attention over the last `window` positions, with rotary positions.

    Args:
        size: of a row.
        n_heads: of queries, keys and values.
        head_dim: width of a head.
        window: positions that a query sees, its own among them.
    """

    def __init__(self, size: int, n_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.window = window
        inner = n_heads * head_dim
        self.q_proj = nn.Linear(size, inner, bias=False)
        self.k_proj = nn.Linear(size, inner, bias=False)
        self.v_proj = nn.Linear(size, inner, bias=False)
        self.o_proj = nn.Linear(inner, size, bias=False)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor, old: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """New rows, and the keys and values that the next call will look back at.

        Args:
            x: `(B, n, size)`.
            turns: cosines and sines, `(B, 1, n, head_dim / 2)`.
            mask: `(B, 1, n, window - 1 + n)`, which keys a row may see.
            old: keys and values `(B, window - 1, heads * head_dim)`, keys turned.
        """
        q = _turned(self._heads(self.q_proj(x)), turns)
        k = torch.cat([old[0].to(x.dtype), _rows(_turned(self._heads(self.k_proj(x)), turns))], 1)
        v = torch.cat([old[1].to(x.dtype), self.v_proj(x)], dim=1)
        context = nn.functional.scaled_dot_product_attention(
            q, self._heads(k), self._heads(v), attn_mask=mask
        )
        n_kept = self.window - 1
        first = k.shape[1] - n_kept
        out: Tensor = self.o_proj(_rows(context))
        return out, (k[:, first:], v[:, first:])

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class WindowLayer(nn.Module):
    """Pre-norm attention and feed-forward layer, each with a gain a channel.

    Args:
        attention: of its rows.
        mlp: feed-forward part.
        norms: before each.
        size: of a row.
    """

    def __init__(
        self,
        attention: WindowAttention,
        mlp: nn.Module,
        norms: tuple[nn.Module, nn.Module],
        size: int,
    ) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn = attention
        self.self_attn_layer_scale = LayerScale(size)
        self.mlp = mlp
        self.mlp_layer_scale = LayerScale(size)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor, old: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """See `WindowAttention.forward`."""
        attended, kept = self.self_attn(self.input_layernorm(x), turns, mask, old)
        x = x + self.self_attn_layer_scale(attended)
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x))), kept


class WindowTransformer(nn.Module):
    """Layers over a window of the past.

    Args:
        layers: all with attention of the same shape.
        rate: positions a frame.
        theta: base of the rotary embedding.
        dtype: in which keys and values are remembered.
    """

    def __init__(
        self,
        layers: list[WindowLayer],
        *,
        rate: int,
        theta: float,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        attention = layers[0].self_attn
        self.rate = rate
        self.n_kept = attention.window - 1
        self.inner = attention.k_proj.out_features
        self.dtype: Literal["float32", "float16"] = dtype
        steps = torch.arange(0, attention.head_dim, 2, dtype=torch.float64) / attention.head_dim
        self.register_buffer("inv_freq", 1.0 / theta**steps, persistent=False)

    inv_freq: Tensor

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """Keys and values of all layers."""
        shape = (len(self.layers), self.n_kept, self.inner)
        return tuple(
            StateSpec(name=name, shape=shape, dtype=self.dtype) for name in ("keys", "values")
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Map rows `(B, n, size)`, which follow on what is remembered, to the same shape."""
        return self._run(x, memory.time(self.rate), memory)

    def whole(self, x: Tensor) -> Tensor:
        """Map the rows of a whole signal."""
        return self._run(x, torch.zeros(len(x), dtype=torch.int64, device=x.device), None)

    def _run(self, x: Tensor, first: Tensor, memory: Memory | None) -> Tensor:
        time = first.unsqueeze(1) + torch.arange(x.shape[1], device=x.device)
        angles = time.unsqueeze(2) * self.inv_freq
        turns = (angles.cos().to(x.dtype).unsqueeze(1), angles.sin().to(x.dtype).unsqueeze(1))
        n_old = self.n_kept if memory is not None else 0
        key_time = first.unsqueeze(1) + torch.arange(-n_old, x.shape[1], device=x.device)
        mask = _seen(time, key_time, self.n_kept).unsqueeze(1)
        kept = []
        for idx, layer in enumerate(self.layers):
            x, new = layer(x, turns, mask, self._old(memory, idx, x))
            kept.append(new)
        if memory is not None:
            dtype = DTYPES[self.dtype]
            memory.after["keys"] = torch.stack([keys for keys, _ in kept], dim=1).to(dtype)
            memory.after["values"] = torch.stack([values for _, values in kept], dim=1).to(dtype)
        return x

    def _old(self, memory: Memory | None, idx: int, x: Tensor) -> tuple[Tensor, Tensor]:
        if memory is None:
            nothing = x.new_zeros(len(x), 0, self.inner)
            return nothing, nothing
        return memory.get("keys")[:, idx], memory.get("values")[:, idx]


def _seen(time: Tensor, key_time: Tensor, n_kept: int) -> Tensor:
    """`(B, n, n_keys)`: a key is seen from its own time on, while it is within the window."""
    age = time.unsqueeze(2) - key_time.unsqueeze(1)
    return (age >= 0) & (age <= n_kept) & (key_time >= 0).unsqueeze(1)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = turns
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _rows(x: Tensor) -> Tensor:
    """Heads `(B, heads, n, head_dim)` back to rows."""
    return x.transpose(1, 2).flatten(2)


class CausalCodec(nn.Module):
    """A codec of such layers: one frame sounds at once, and no context is passed again.

    A codec states the sizes of its chunks, its frame, what its layers remember, and its PCM.
    """

    chunk_frames: ClassVar[tuple[int, ...]]
    samples_per_frame: int

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream remembers."""
        raise NotImplementedError

    def pcm(self, frames: Tensor, memory: Memory) -> Tensor:
        """PCM `(B, T * samples_per_frame)` of codes `(B, T, Q)`."""
        raise NotImplementedError

    def codec_spec(self, *, max_batch: int = 16) -> CodecSpec:
        """The codec's side of a spec."""
        return CodecSpec(chunk_frames=self.chunk_frames, state=self.states, max_batch=max_batch)

    def decode(self, frames: Tensor, n_valid: Tensor, state: dict[str, Tensor]) -> Decoded:
        """One chunk of each stream; see `models.base.SpeechModel.decode`.

        Only a last chunk has fewer frames than it could hold, and what is remembered after it is
        not used.
        """
        memory = Memory(state)
        pcm = self.pcm(frames, memory)
        memory.advance(frames.shape[1])
        n_samples = n_valid * self.samples_per_frame
        is_given = torch.arange(pcm.shape[1], device=pcm.device) < n_samples.unsqueeze(1)
        return Decoded(
            pcm=pcm.clamp(-1.0, 1.0).masked_fill(~is_given, 0.0),
            n_samples=n_samples,
            state=memory.after,
        )


def n_bytes(states: tuple[StateSpec, ...]) -> int:
    """Bytes that a stream's state takes."""
    widths = {"float32": 4, "float16": 2, "int64": 8}
    return sum(math.prod(one.shape) * widths[one.dtype] for one in states)
