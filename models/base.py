"""The model contract: the pure functions that a speech language model gives the engine.

A model states facts in a frozen `models.spec.ModelSpec` and gives tensor functions in a
`SpeechModel`. The engine owns requests, sampling, guidance, KV pages, graphs, chunking and time. No
function here takes a request object of the engine, mutates its arguments, reads a tensor on the
host, or knows the scheduler. `plan` and `extend` run in a worker thread; everything else runs on
the engine thread.

Words. A *row* is one position of the LM and holds K ids, one a *column*. A *frame* is one codec
step of Q codes. A *chunk* is the frames that are detokenized together. Letters in shapes: N rows
of a ragged batch, B streams, T prompt rows, K columns, H hidden size, P phases, Q codebooks,
F frames of a chunk, S integers of per-stream state, V_c ids of column c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from models.spec import ModelSpec, PlanRequest, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """A prompt, ready for the engine.

    Args:
        ids: `(T, K)` int64 on the CPU, T >= 1.
        embeds: `(T, H)` float rows that replace the embedding where `embed_mask` is true.
        embed_mask: `(T,)` bool.
        positions: `(T,)` int64; None means 0..T-1. Generated rows go on from the last plus one.
        state: `(S,)` int64, the stream's state before its first generated row.
        max_frames: cap on generated frames (generated rows, for a model that only gives text).
        max_rows: cap on generated rows, for models with rows that complete no frame; None: what
            `max_frames` allows where every phase makes frames, else all positions that are left.
        codec_state: seeds of codec state tensors by name; absent ones start at zero.
        text_ids: first streamed text ids, `(n,)` int64 (only where `text_capacity` > 0).
        is_text_final: no more streamed text will come.
        prefix_key: names the voice or system prompt whose rows may be shared between streams; full
            pages are shared only where ids and embeds agree as well.
        prefix_rows: how many leading rows may be shared.
        companion: prompt of the guidance companion (`own_rows` only): its ids, same K.
        guidance_scale: None takes the spec's.
        sampling: overrides by column name, for every phase in which it is sampled; one for
            `phase.column` goes before it, in that phase.
    """

    ids: Tensor
    state: Tensor
    max_frames: int
    max_rows: int | None = None
    embeds: Tensor | None = None
    embed_mask: Tensor | None = None
    positions: Tensor | None = None
    codec_state: Mapping[str, Tensor] = field(default_factory=dict)
    text_ids: Tensor | None = None
    is_text_final: bool = True
    prefix_key: str | None = None
    prefix_rows: int = 0
    companion: PromptPlan | None = None
    guidance_scale: float | None = None
    sampling: Mapping[str, SamplingParams] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFeed:
    """Streamed text of the batch, on the device. Models without streamed text ignore it.

    `ids` is `(B, text_capacity)` int64, `n_ids` is `(B,)` int64 (ids that have arrived), `is_final`
    is `(B,)` bool (no more will come).
    """

    ids: Tensor
    n_ids: Tensor
    is_final: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What one generated row led to.

    Args:
        rows: `(B, K)` int64, the next input rows: sampled ids, overridden where a column is forced
            or derived, delayed or drained.
        state: `(B, S)` int64.
        frames: `(B, Q)` int64, the frame completed by this row, where `emits` is true.
        emits: `(B,)` bool.
        text_ids: `(B,)` int64, an id for the text output, or -1.
        is_finished: `(B,)` bool: the stream ends after this row; its next row is not used.
        is_starved: `(B,)` bool: the next row needs streamed text that has not come. Nothing else of
            this advance counts then: the engine leaves the stream out until more text has come and
            makes the same call again, with the same ids and state.
    """

    rows: Tensor
    state: Tensor
    frames: Tensor
    emits: Tensor
    text_ids: Tensor
    is_finished: Tensor
    is_starved: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Audio of one codec call: `pcm` (B, S_max) float32 in [-1, 1], `n_samples` (B,), new state."""

    pcm: Tensor
    n_samples: Tensor
    state: dict[str, Tensor]


class Attention(Protocol):
    """Paged attention of one step, as the model sees it: pages and lengths are the engine's."""

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store `k`, `v` and attend causally over each row's own sequence.

        Args:
            layer_idx: backbone layer.
            q: `(N, n_query_heads, head_dim)`, rotary already applied.
            k: `(N, n_kv_heads, head_dim)`.
            v: `(N, n_kv_heads, head_dim)`.

        Returns:
            `(N, n_query_heads, head_dim)`.
        """
        ...


class DepthCache(Protocol):
    """Contiguous KV of the depth model for the frame at hand; made anew for every frame."""

    def __call__(self, layer_idx: int, position: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store `k`, `v` `(B, heads, head_dim)` at `position` and attend over 0..position."""
        ...


class SpeechModel(Protocol):
    """The functions of a model. See the module docstring for the letters in shapes."""

    spec: ModelSpec

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread. Raises: `models.errors.PlanError` kinds."""
        ...

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """Turn further streamed text into ids `(n,)` int64 for the text feed. Worker thread."""
        ...

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """Text of output text ids; may hold back an incomplete character.

        The engine asks for the last few ids: more ids only ever add to the end of the text, and
        what they add depends on few of those before them.
        """
        ...

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """Rows `ids` (N, K) to `(N, H)`; `phase` (N,) is -1 for prompt rows."""
        ...

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states `(N, H)` of rows `x` (N, H) at `positions` (N,)."""
        ...

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of each of `spec.backbone_columns` from `hidden` (B, H): `(B, V_c)` each."""
        ...

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Fill -inf where a stream's own state forbids an id (after guidance, before sampling)."""
        ...

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """Depth input `(B, H_depth)`: position 0 from `hidden` (B, H), then from `ids` (B,)."""
        ...

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """Depth hidden state `(B, H_depth)` of row `x` at `position`."""
        ...

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """Logits `(B, V_c)` of depth column `position - 1`."""
        ...

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Take the sampled row `ids` (B, K) and move `state` (B, S) on. Pure, on the device."""
        ...

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """Detokenize one chunk of each stream.

        Args:
            frames: `(B, L + F, Q)` int64: the last L = `codec.left_context_frames` frames before
                the chunk (-1 for context from before the start), then F new ones, F one of
                `codec.sizes` (0 past `n_valid`).
            n_valid: `(B,)` real new frames in each row; fewer than F only in a last chunk.
            state: `(B, *shape)` tensors by name; at `is_first` the plan's seeds, else zeros.
            is_first: `(B,)` bool.
            is_last: `(B,)` bool: flush everything held back.
        """
        ...
