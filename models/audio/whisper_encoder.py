"""Encoders of the Whisper kind: mel spectra of speech to hidden rows. Worker threads.

Two convolutions, positions, and layers of attention that normalise before they compute. The speech
tokenizers and audio encoders of several families are one of these, and differ in what
`EncoderShape` states. What stands behind the last layer (a norm, pooling, codes) is the family's.

Source: openai/whisper, `model.py` (MIT); zai-org/GLM-4-Voice, `speech_tokenizer` (Apache-2.0), for
convolutions and attention that do not see ahead; xingchensong/S3Tokenizer 0.3.0, `model_v2.py`
(Apache-2.0), for the memory beside attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from models.layers.rotary import Angles, Rotary
from models.weights import load_weights

KERNEL: Final = 3
THETA: Final = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """In what encoders of this kind differ.

    Args:
        n_mels: bands of a mel frame.
        hidden: channels of a row.
        n_heads: of attention.
        inner: channels between the two matrices of a layer.
        n_layers: that are run; a file may have more.
        max_rows: rows of one input at most.
        strides: of the two convolutions.
        is_causal: the convolutions see nothing ahead.
        block_rows: attention sees its own block of so many rows and those before it; 0: all rows.
        is_rotary: positions turn queries and keys; otherwise a table is added to the rows.
        n_memory: taps of the convolution over values that is added to what attention gives (FSMN);
            0: none.
    """

    n_mels: int
    hidden: int
    n_heads: int
    inner: int
    n_layers: int
    max_rows: int
    strides: tuple[int, int] = (1, 2)
    is_causal: bool = False
    block_rows: int = 0
    is_rotary: bool = False
    n_memory: int = 0

    def n_rows(self, n_frames: int) -> int:
        """Rows that so many mel frames become."""
        for stride in self.strides:
            n_frames = -(-n_frames // stride)
        return n_frames


class WhisperEncoder(nn.Module):
    """The encoder.

    Args:
        shape: of it.
    """

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        first, second = shape.strides
        self.conv1 = nn.Conv1d(shape.n_mels, shape.hidden, KERNEL, stride=first)
        self.conv2 = nn.Conv1d(shape.hidden, shape.hidden, KERNEL, stride=second)
        if shape.is_rotary:
            self.rotary: Rotary | None = Rotary(
                shape.hidden // shape.n_heads, shape.max_rows, THETA
            )
        else:
            self.rotary = None
            self.positions = nn.Parameter(torch.zeros(shape.max_rows, shape.hidden))
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.n_layers))

    def forward(
        self, mel: Tensor, n_frames: Tensor | None = None, n_attended: Tensor | None = None
    ) -> Tensor:
        """Rows `(B, shape.n_rows(T), hidden)` of mel frames, as the last layer gives them.

        A recording's rows do not depend on what it is batched with. Rows behind its own are 0.

        Args:
            mel: `(B, n_mels, T)`.
            n_frames: `(B,)`, leading frames that are the recording's; None: all.
            n_attended: `(B,)`, leading rows that attention looks at, where those are fewer than
                the recording has (references that pad a recording and mask the padding).
        """
        x = mel.to(self.conv1.weight.dtype)
        for conv in (self.conv1, self.conv2):
            x = nn.functional.gelu(self._convolved(conv, x, n_frames))
            n_frames = None if n_frames is None else _over(n_frames, conv.stride[0])
        x = x.transpose(1, 2)
        n_rows = x.shape[1]
        assert n_rows <= self.shape.max_rows, "families cut what they hear into pieces"
        if self.rotary is None:
            x, angles = x + self.positions[:n_rows], None
        else:
            positions = torch.arange(n_rows, device=x.device).repeat(len(x))
            angles = self.rotary.angles(positions)
        there = _leading(n_frames, n_rows)
        seen = self._seen(there if n_attended is None else _leading(n_attended, n_rows), x)
        for layer in self.layers:
            x = layer(x, seen, there, self.rotary, angles)
        return x if there is None else x.masked_fill(~there.unsqueeze(2), 0.0)

    def _convolved(self, conv: nn.Module, x: Tensor, n_valid: Tensor | None) -> Tensor:
        there = _leading(n_valid, x.shape[2])
        if there is not None:
            x = x.masked_fill(~there.unsqueeze(1), 0.0)
        n_before = KERNEL - 1 if self.shape.is_causal else KERNEL // 2
        out: Tensor = conv(nn.functional.pad(x, (n_before, KERNEL - 1 - n_before)))
        return out

    def _seen(self, there: Tensor | None, x: Tensor) -> Tensor | None:
        """Which rows (last axis) a row attends to, for all heads; None: all."""
        seen = None if there is None else there[:, None, None]
        if self.shape.block_rows:
            blocks = torch.arange(x.shape[1], device=x.device) // self.shape.block_rows
            before = (blocks <= blocks.unsqueeze(1))[None, None]
            seen = before if seen is None else seen & before
        return seen


class _Layer(nn.Module):
    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.n_heads = shape.n_heads
        self.attention_norm = nn.LayerNorm(shape.hidden)
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.value = nn.Linear(shape.hidden, shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)
        self.memory = _memory(shape)
        self.mlp_norm = nn.LayerNorm(shape.hidden)
        self.up = nn.Linear(shape.hidden, shape.inner)
        self.down = nn.Linear(shape.inner, shape.hidden)

    def forward(
        self,
        x: Tensor,
        seen: Tensor | None,
        there: Tensor | None,
        rotary: Rotary | None,
        angles: Angles | None,
    ) -> Tensor:
        y = self.attention_norm(x)
        n_heads = (*x.shape[:2], self.n_heads, -1)
        q, k, v = (part(y).view(n_heads) for part in (self.query, self.key, self.value))
        if rotary is not None and angles is not None:
            turned = rotary.rotate(torch.cat([q, k], dim=2).flatten(0, 1), angles)
            q, k = turned.view(*x.shape[:2], -1, q.shape[3]).chunk(2, dim=2)
        heads = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=seen
        )
        out = self.out(heads.transpose(1, 2).flatten(2))
        if self.memory is not None:
            out = out + self._remembered(v.flatten(2), there)
        x = x + out
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))
        return result

    def _remembered(self, v: Tensor, there: Tensor | None) -> Tensor:
        """Values, and a few of their neighbours'. The padding behind a recording has none."""
        assert self.memory is not None, "the caller looked"
        if there is not None:
            v = v.masked_fill(~there.unsqueeze(2), 0.0)
        out: Tensor = v + self.memory(v.transpose(1, 2)).transpose(1, 2)
        return out


def _memory(shape: EncoderShape) -> nn.Conv1d | None:
    if not shape.n_memory:
        return None
    n = shape.hidden
    return nn.Conv1d(n, n, shape.n_memory, padding=shape.n_memory // 2, groups=n, bias=False)


def _over(n: Tensor, stride: int) -> Tensor:
    return (n + (stride - 1)).div(stride, rounding_mode="floor")


def _leading(n: Tensor | None, size: int) -> Tensor | None:
    """Which of `size` places are among the first `n` `(B,)`: `(B, size)`; None where all are."""
    if n is None:
        return None
    return torch.arange(size, device=n.device) < n.unsqueeze(1)


_OPENAI: Final = {
    "positions": "positional_embedding",
    "layers": "blocks",
    "attention_norm": "attn_ln",
    "query": "attn.query",
    "key": "attn.key",
    "value": "attn.value",
    "out": "attn.out",
    "memory": "attn.fsmn_block",
    "mlp_norm": "mlp_ln",
    "up": "mlp.0",
    "down": "mlp.2",
}
_HUGGING_FACE: Final = {
    "positions": "embed_positions.weight",
    "attention_norm": "self_attn_layer_norm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}
"""Names of ours, and what files call them; all others are the same."""


def load_whisper_encoder(
    shape: EncoderShape, tensors: Mapping[str, Tensor], *, source: str
) -> WhisperEncoder:
    """The encoder with the weights of a file, in OpenAI's spelling or in Hugging Face's.

    Args:
        shape: of it; layers of the file behind `n_layers` are left out.
        tensors: those of the encoder alone, without a prefix.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; named as the file has them.
    """
    encoder = WhisperEncoder(shape)
    is_openai = any(key.startswith("blocks.") for key in tensors)
    spelling = dict(_OPENAI if is_openai else _HUGGING_FACE)
    # As a table of `nn.Embedding`, in Step-Audio 2.
    if is_openai and "positional_embedding.weight" in tensors:
        spelling["positions"] = "positional_embedding.weight"
    names = {own: _spelled(own, spelling) for own in encoder.state_dict()}
    own_names = {name: own for own, name in names.items()}
    stack = spelling.get("layers", "layers")
    kept = {
        own_names.get(key, key): tensor
        for key, tensor in tensors.items()
        if not _is_behind(key, stack, shape.n_layers)
    }
    load_weights(encoder, kept, source=source, names=names)
    return encoder.requires_grad_(False).eval()


def _spelled(own: str, spelling: Mapping[str, str]) -> str:
    return ".".join(spelling.get(part, part) for part in own.split("."))


def _is_behind(key: str, stack: str, n_layers: int) -> bool:
    """Whether a key is of a layer that is not run."""
    name, _, rest = key.partition(".")
    number = rest.partition(".")[0]
    return name == stack and number.isdecimal() and int(number) >= n_layers
