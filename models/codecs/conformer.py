"""A conformer that doubles the rate of its tokens, by chunks: before flow matching.

Tokens see their own chunk, those of earlier chunks, and three tokens ahead at the very front.
Streamed in whole chunks, keys and values of the tokens before are remembered, and the last inputs
of the convolutions; so a chunk is computed once, and every pattern of whole chunks gives the same.

Source: Gulati et al. 2020 (Conformer); CosyVoice, `transformer/upsample_encoder.py` (Apache-2.0).
Keys of the modules are those of its checkpoints (`flow.pt`, under `encoder.`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.codecs.place import Place, old_times, rows_after, whole
from models.codecs.relative import Past, RelativeLayer, Sight, relative_table
from models.spec import StateSpec
from models.weights import load_weights

FACTOR: Final = 2
"""Positions out for each token in."""
_TAPS: Final = 3
"""Of the convolution behind the one that looks ahead."""
INPUTS, REPEATS = "encoder_inputs", "encoder_repeats"
_LAYERS: Final = ("encoder", "up_encoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerConfig:
    """Shape of a checkpoint, and how far it looks back.

    Args:
        n_in: channels of a token.
        size: channels of a row.
        n_heads: of the attention.
        inner: of the feed-forward parts.
        n_layers: before the rate is doubled.
        n_up_layers: after it.
        lookahead: tokens that a token sees ahead, whatever its chunk.
        chunk_tokens: tokens that see one another.
        kept_tokens: tokens before its chunk that a token sees, whole chunks of them.
        first_tokens: tokens from a stream's start that all later ones see. What was forgotten since
            leaves no gap: they then count as right before those that were not.
        dtype: in which keys and values are remembered.
    """

    n_in: int
    size: int
    n_heads: int
    inner: int
    n_layers: int
    n_up_layers: int
    lookahead: int
    chunk_tokens: int
    kept_tokens: int
    first_tokens: int = 0
    dtype: Literal["float32", "float16"] = "float32"


class UpsampleConformer(nn.Module):
    """The encoder.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        assert config.kept_tokens % config.chunk_tokens == 0, "whole chunks are kept"
        self.config = config
        self.embed = _Embed(config.n_in, config.size)
        self.pre_lookahead_layer = _Lookahead(config.size, config.lookahead)
        self.encoders = _layers(config, config.n_layers)
        self.up_layer = _Repeat(config.size)
        self.up_embed = _Embed(config.n_in, config.size)
        self.up_encoders = _layers(config, config.n_up_layers)
        self.after_norm = nn.LayerNorm(config.size)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All that a stream remembers; when it began is the caller's to know."""
        size, dtype = self.config.size, self.config.dtype
        kept = self.config.first_tokens + self.config.kept_tokens
        shapes = (
            (_LAYERS[0], (self.config.n_layers, kept, size)),
            (_LAYERS[1], (self.config.n_up_layers, FACTOR * kept, size)),
        )
        return (
            StateSpec(name=INPUTS, shape=(_TAPS - 1, size)),
            StateSpec(name=REPEATS, shape=(FACTOR, size)),
            *(
                StateSpec(name=f"{name}_{part}", shape=shape, dtype=dtype)
                for name, shape in shapes
                for part in ("keys", "values")
            ),
        )

    def forward(
        self,
        tokens: Tensor,
        place: Place,
        state: Mapping[str, Tensor],
        *,
        is_chunked: bool = True,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Rows `(B, 2 * n, size)` of tokens that follow on what is remembered, and what then is.

        The last `lookahead` tokens are there to be looked at: their own rows count only where the
        utterance ends with them, and they are to be given again.

        Args:
            tokens: `(B, n, n_in)`.
            place: of the tokens in their stream.
            state: as `states` lists it; zeros at the start.
            is_chunked: tokens see their own chunk and those before; else all tokens.
        """
        n_new = tokens.shape[1] - self.config.lookahead
        pasts = {
            name: Past(
                state[f"{name}_keys"],
                state[f"{name}_values"],
                rows_after(
                    place.start * factor,
                    n_new * factor,
                    self.config.first_tokens * factor,
                    self.config.kept_tokens * factor,
                ),
            )
            for name, factor in zip(_LAYERS, (1, FACTOR), strict=True)
        }
        held = (state[INPUTS], state[REPEATS])
        chunk = self.config.chunk_tokens if is_chunked else None
        out, held = self._run(tokens, place, held, pasts, chunk)
        after = {INPUTS: held[0], REPEATS: held[1]}
        for name, past in pasts.items():
            after[f"{name}_keys"] = torch.stack(past.new_keys, dim=1)
            after[f"{name}_values"] = torch.stack(past.new_values, dim=1)
        return out, after

    def whole(self, tokens: Tensor, n_valid: Tensor, *, is_chunked: bool = True) -> Tensor:
        """Rows `(B, 2 * n, size)` of whole utterances `(B, n, n_in)`.

        Args:
            tokens: zeros need not stand past `n_valid`.
            n_valid: `(B,)` tokens that count.
            is_chunked: tokens see their own chunk and those before; else all tokens.
        """
        blank = tokens.new_zeros(len(tokens), 1, self.config.size)
        held = (blank.expand(-1, _TAPS - 1, -1), blank.expand(-1, FACTOR, -1))
        chunk = self.config.chunk_tokens if is_chunked else None
        return self._run(tokens, whole(n_valid), held, {}, chunk)[0]

    def _run(
        self,
        tokens: Tensor,
        place: Place,
        held: tuple[Tensor, Tensor],
        pasts: Mapping[str, Past],
        chunk: int | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        inside = place.holds(place.times(0, tokens.shape[1])).unsqueeze(2)
        n_new = tokens.shape[1] - self.config.lookahead
        x, inputs = self.pre_lookahead_layer(self.embed(tokens) * inside, inside, held[0], n_new)
        if pasts and chunk is None:
            # What is only looked at is seen by the convolution alone.
            place = replace(place, end=torch.minimum(place.end, place.start + n_new))
        x = self._attend(self.encoders, x, place, pasts.get(_LAYERS[0]), chunk, 1)
        x, repeats = self.up_layer(x * inside, held[1], n_new)
        x = self.up_embed(x)
        x = self._attend(self.up_encoders, x, place, pasts.get(_LAYERS[1]), chunk, FACTOR)
        return self.after_norm(x), (inputs, repeats)

    def _attend(
        self,
        layers: nn.ModuleList,
        x: Tensor,
        place: Place,
        past: Past | None,
        chunk: int | None,
        rate: int,
    ) -> Tensor:
        fine, n_new = place.finer(rate), x.shape[1]
        first, last = (0, 0) if past is None else self._kept(rate)
        time = torch.cat([old_times(fine.start, first, last), fine.times(0, n_new)], dim=1)
        width = None if chunk is None else chunk * rate
        sight = Sight(
            mask=_seen(fine, time, n_new, width, None if past is None else (first, last)),
            table=relative_table(n_new, first + last, self.config.size, x.device).to(x.dtype),
            behind=_behind(time, n_new, width, first, last) if first else None,
        )
        for idx, layer in enumerate(layers):
            x = layer(x, sight, past, idx)
        return x

    def _kept(self, rate: int) -> tuple[int, int]:
        """Positions that are remembered: the first ones, and the last."""
        return self.config.first_tokens * rate, self.config.kept_tokens * rate


def _seen(
    place: Place, time: Tensor, n_new: int, chunk: int | None, kept: tuple[int, int] | None
) -> Tensor:
    """Which rows, at `time` `(B, n_old + n_new)`, a new one sees: `(B, 1, n_new, n_old + n_new)`.

    Args:
        place: of the new ones.
        time: of all.
        n_new: rows at the end of them.
        chunk: rows that see one another; None: all do.
        kept: how many of the first, and of those before its chunk, a row sees; None: all.
    """
    keys, queries = time.unsqueeze(1), time[:, -n_new:].unsqueeze(2)
    is_seen = place.holds(time).unsqueeze(1).expand(-1, n_new, -1)
    if chunk is not None:
        here = queries.div(chunk, rounding_mode="floor") * chunk
        is_seen = is_seen & (keys < here + chunk)
        if kept is not None:
            is_seen = is_seen & ((keys >= here - kept[1]) | (keys < kept[0]))
    # What does not count sees itself at least: attention to nothing has no value.
    return (is_seen | (keys == queries)).unsqueeze(1)


def _behind(time: Tensor, n_new: int, chunk: int | None, first: int, last: int) -> Tensor:
    """How far each row, at `time` `(B, n_old + n_new)`, lies behind each new one, without gaps.

    However many chunks a call brings, the gap is that of a call of one.
    """
    queries = time[:, -n_new:]
    here = queries[:, :1] if chunk is None else queries.div(chunk, rounding_mode="floor") * chunk
    n_gone = (here - first - last).clamp(min=0).unsqueeze(2)
    behind = queries.unsqueeze(2) - time.unsqueeze(1)
    return torch.cat([behind[:, :, :first] - n_gone, behind[:, :, first:]], dim=2)


class _Embed(nn.Module):
    """A map, a norm, and a gain."""

    def __init__(self, n_in: int, size: int) -> None:
        super().__init__()
        self.out = nn.ModuleList([nn.Linear(n_in, size), nn.LayerNorm(size)])
        self.gain = math.sqrt(size)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.out[1](self.out[0](x)) * self.gain
        return rows


class _Lookahead(nn.Module):
    """A convolution over what comes, one over what was, beside the input."""

    def __init__(self, size: int, n_ahead: int) -> None:
        super().__init__()
        self.n_ahead = n_ahead
        self.conv1 = nn.Conv1d(size, size, n_ahead + 1)
        self.conv2 = nn.Conv1d(size, size, _TAPS)

    def forward(self, x: Tensor, inside: Tensor, held: Tensor, n_new: int) -> tuple[Tensor, Tensor]:
        """Map `(B, n, size)` to the same shape; `held` `(B, 2, size)` are inputs of the second."""
        ahead = functional.pad(x.transpose(1, 2), (0, self.n_ahead))
        y = functional.leaky_relu(self.conv1(ahead)).transpose(1, 2) * inside
        window = torch.cat([held.to(y.dtype), y], dim=1)
        out = self.conv2(window.transpose(1, 2)).transpose(1, 2)
        return x + out, window[:, n_new : n_new + _TAPS - 1]


class _Repeat(nn.Module):
    """Each row twice, and a convolution over five of them, none ahead."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(size, size, 2 * FACTOR + 1)

    def forward(self, x: Tensor, held: Tensor, n_new: int) -> tuple[Tensor, Tensor]:
        """Map `(B, n, size)` to `(B, 2 * n, size)`; `held` `(B, 2, size)` are the rows before."""
        window = torch.cat([held.to(x.dtype), x], dim=1)
        twice = window.repeat_interleave(FACTOR, dim=1).transpose(1, 2)
        return self.conv(twice).transpose(1, 2), window[:, n_new : n_new + FACTOR]


def _layers(config: ConformerConfig, n_layers: int) -> nn.ModuleList:
    return nn.ModuleList(
        RelativeLayer(config.size, config.n_heads, config.inner) for _ in range(n_layers)
    )


def make_conformer(
    config: ConformerConfig, tensors: Mapping[str, Tensor], *, source: str
) -> UpsampleConformer:
    """The encoder with its weights, on the CPU.

    Args:
        config: their shape.
        tensors: those of `flow.pt` under `encoder.`, without that prefix.
        source: where they came from, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = UpsampleConformer(config)
    load_weights(model, tensors, source=source)
    return model.requires_grad_(False)
