"""A plain engine for one stream: whole sequence in lists, no batch, no pages. Slow and clear."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.base import Advance, PromptPlan, SpeechModel, TextFeed


class FullAttention:
    """Causal attention over everything that one sequence has stored."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        old_k, old_v = self.keys.get(layer_idx), self.values.get(layer_idx)
        keys = k if old_k is None else torch.cat([old_k, k])
        values = v if old_v is None else torch.cat([old_v, v])
        self.keys[layer_idx], self.values[layer_idx] = keys, values
        n_new, n_all = q.shape[0], keys.shape[0]
        n_groups = q.shape[1] // k.shape[1]
        keys = keys.repeat_interleave(n_groups, dim=1)
        values = values.repeat_interleave(n_groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[-1] ** 0.5
        reach = torch.arange(n_all) <= torch.arange(n_all - n_new, n_all).unsqueeze(1)
        weights = scores.masked_fill(~reach, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


class FullDepthCache:
    """Keys and values of one frame's depth rows."""

    def __init__(self) -> None:
        self.rows = FullAttention()

    def __call__(self, layer_idx: int, position: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape[0] == 1, "one stream only"
        return self.rows(layer_idx, q, k, v)


@dataclass
class Spoken:
    """What a stream gave."""

    rows: list[list[int]] = field(default_factory=list)
    frames: list[list[int]] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    text_ids: list[int] = field(default_factory=list)
    is_finished: bool = False
    n_starved: int = 0

    @property
    def codes(self) -> Tensor:
        """`(n_frames, Q)`."""
        return torch.tensor(self.frames, dtype=torch.int64)


def make_feed(model: SpeechModel, ids: list[int], *, is_final: bool) -> TextFeed:
    capacity = model.spec.text_capacity
    padded = torch.zeros(1, capacity, dtype=torch.int64)
    padded[0, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return TextFeed(ids=padded, n_ids=torch.tensor([len(ids)]), is_final=torch.tensor([is_final]))


def sample(logits: Tensor, generator: torch.Generator) -> int:
    assert not torch.isnan(logits).any()
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


class Stream:
    """One stream, run row by row."""

    def __init__(self, model: SpeechModel, plan: PromptPlan, *, seed: int = 0) -> None:
        self.model = model
        self.generator = torch.Generator().manual_seed(seed)
        self.attention = FullAttention()
        self.state = plan.state.unsqueeze(0)
        self.n_positions = 0
        first_ids = [] if plan.text_ids is None else plan.text_ids.tolist()
        self.text: list[int] = first_ids
        self.is_text_final = plan.is_text_final
        self.spoken = Spoken()
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        if plan.embeds is not None:
            assert plan.embed_mask is not None
            x = torch.where(plan.embed_mask.unsqueeze(1), plan.embeds, x)
        self.hidden = self._forward(x)
        self.drawn: Tensor | None = None

    def _forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(self.n_positions, self.n_positions + len(x))
        self.n_positions += len(x)
        return self.model.backbone(x, positions, self.attention)[-1:]

    def step(self) -> bool:
        """Generate one row; False when finished or starved.

        As in the engine, a starved advance counts for nothing and is made again from the same ids.
        """
        spoken = self.spoken
        feed = make_feed(self.model, self.text, is_final=self.is_text_final)
        if self.drawn is None:
            spoken.phases.append(int(self.state[0, 0]))
            self.drawn = self._sample_row(feed)
        out = self.model.advance(self.state, self.drawn, feed)
        if bool(out.is_starved):
            spoken.n_starved += 1
            return False
        self._take(out)
        self.state, self.drawn = out.state, None
        spoken.rows.append(out.rows[0].tolist())
        if bool(out.is_finished):
            spoken.is_finished = True
            return False
        self.hidden = self._forward(self.model.embed(out.rows, self.state[:, 0]))
        return True

    def _take(self, out: Advance) -> None:
        if bool(out.emits):
            self.spoken.frames.append(out.frames[0].tolist())
        if int(out.text_ids) >= 0:
            self.spoken.text_ids.append(int(out.text_ids))

    def _sample_row(self, feed: TextFeed) -> Tensor:
        spec = self.model.spec
        phase = spec.phases[int(self.state[0, 0])]
        row = [0] * spec.n_columns
        logits = self.model.heads(self.hidden)
        logits = self.model.constrain(self.state, logits, feed)
        for idx, column_logits in zip(spec.backbone_columns, logits, strict=True):
            column, rule = spec.columns[idx], phase.columns[idx]
            if rule.fill != "sampled":
                continue
            low = column.ids[0]
            masked = column_logits[0]
            if rule.allowed:
                is_allowed = torch.zeros(column.n_ids, dtype=torch.bool)
                for first, end in rule.allowed:
                    is_allowed[first - low : end - low] = True
                masked = masked.masked_fill(~is_allowed, -torch.inf)
            row[idx] = low + sample(masked, self.generator)
        for idx, rule in enumerate(phase.columns):
            if rule.fill == "forced":
                assert rule.forced_id is not None
                row[idx] = rule.forced_id
        if any(rule.fill == "depth" for rule in phase.columns):
            self._sample_depth(row)
        return torch.tensor([row])

    def _sample_depth(self, row: list[int]) -> None:
        spec = self.model.spec
        assert spec.depth is not None
        cache = FullDepthCache()
        x = self.model.depth_embed(0, self.hidden, None)
        self.model.depth_step(x, 0, cache)
        previous = spec.column_idx(spec.depth.first_column)
        for position, name in enumerate(spec.depth.columns, start=1):
            x = self.model.depth_embed(position, self.hidden, torch.tensor([row[previous]]))
            hidden = self.model.depth_step(x, position, cache)
            logits = self.model.depth_head(position, hidden)
            previous = spec.column_idx(name)
            row[previous] = spec.columns[previous].ids[0] + sample(logits[0], self.generator)


def speak(model: SpeechModel, plan: PromptPlan, *, seed: int = 0, max_rows: int = 5000) -> Spoken:
    """Run a stream to its end (or to `max_rows`)."""
    stream = Stream(model, plan, seed=seed)
    for _ in range(max_rows):
        if not stream.step():
            break
    return stream.spoken


def codec_state(model: SpeechModel, plan: PromptPlan | None = None) -> dict[str, Tensor]:
    """Codec state of one stream before its first chunk."""
    state = {}
    for part in model.spec.codec.state:
        state[part.name] = torch.zeros(1, *part.shape, dtype=getattr(torch, part.dtype))
    if plan is not None:
        state.update({name: seed.unsqueeze(0) for name, seed in plan.codec_state.items()})
    return state


def with_context(model: SpeechModel, codes: Tensor, first: int, n_frames: int) -> Tensor:
    """Frames `(1, context + F, Q)` of a call: -1 before the stream, rubbish after its end."""
    n_context = model.spec.codec.left_context_frames
    before = torch.full((n_context, codes.shape[1]), -1)
    after = torch.full((n_frames, codes.shape[1]), 3)
    padded = torch.cat([before, codes, after])
    return padded[first : first + n_context + n_frames].unsqueeze(0)


def decode_whole(model: SpeechModel, codes: Tensor, plan: PromptPlan | None = None) -> Tensor:
    """All frames in one call: `(n_samples,)`."""
    n_frames = len(codes)
    out = model.decode(
        with_context(model, codes, 0, n_frames),
        torch.tensor([n_frames]),
        codec_state(model, plan),
        torch.tensor([True]),
        torch.tensor([True]),
    )
    return out.pcm[0, : int(out.n_samples)]


def decode_chunks(
    model: SpeechModel, codes: Tensor, sizes: list[int], plan: PromptPlan | None = None
) -> list[Tensor]:
    """The frames in calls of these sizes, then as few calls as needed; PCM of each call.

    Without look-ahead and with nothing left, the last full call is marked last; with look-ahead,
    what is held back comes with a last call, which may have no new frame.
    """
    codec, state = model.spec.codec, codec_state(model, plan)
    wanted, done, pieces = list(sizes), 0, []
    is_first, is_last = True, False
    while not is_last:
        left = len(codes) - done
        size = wanted.pop(0) if wanted else codec.chunk_frames[-1]
        if left < size or (left == size and not codec.lookahead_frames):
            size = next(n for n in codec.chunk_frames if n >= left)
            is_last = True
        n_valid = min(size, left)
        out = model.decode(
            with_context(model, codes, done, size),
            torch.tensor([n_valid]),
            state,
            torch.tensor([is_first]),
            torch.tensor([is_last]),
        )
        pieces.append(out.pcm[0, : int(out.n_samples)])
        state, done, is_first = out.state, done + n_valid, False
    return pieces
