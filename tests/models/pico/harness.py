"""Run `pico` without the engine: random weights, a plain KV cache, greedy rollouts, chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from models.base import PromptPlan, TextFeed
from models.pico.config import PicoConfig, parse_config
from models.pico.model import PicoModel
from models.pico.units import N_UNITS
from models.pico.weights import expected_shapes


def config_fields(n_books: int = 2) -> dict[str, Any]:
    """What `lm.json` of a small model holds."""
    book = {"temperature": 0.7, "top_k": 0}
    return {
        "vocab": N_UNITS,
        "S": n_books,
        "K": 32,
        "d": 32,
        "L": 2,
        "heads": 2,
        "ff": 48,
        "max_stay": 4,
        "window": [-1, 0, 1, 2, 3],
        "sampling": {"advance": {"temperature": 1.0, "top_k": 0}, "codes": [book] * n_books},
        "post": {
            "width": 24,
            "unit_dim": 8,
            "stay_dim": 4,
            "dims": 16,
            "kernel": 3,
            "dilation": [1, 1, 1, 2],
            "ahead": [1, 1, 0, 0],
        },
        "codec": {"frames": 4, "latent": 12, "dims": 16},
        "vocoder": {
            "sample_rate": 22050,
            "hop": 256,
            "ups": [[8, 16], [8, 16], [4, 8]],
            "res_kernels": [3, 5, 7],
            "res_dilations": [[1, 2], [2, 6], [3, 12]],
        },
    }


def tiny_config(n_books: int = 2) -> PicoConfig:
    """A small model in the layout of the shipped one; its vocoder is narrower than any file's."""
    config = parse_config(config_fields(n_books))
    return replace(config, vocoder=replace(config.vocoder, width=16))


def tiny_model(n_books: int = 2, seed: int = 0) -> tuple[PicoModel, dict[str, dict[str, Tensor]]]:
    """A small model and the random weights that it was made from."""
    config = tiny_config(n_books)
    weights = random_weights(config, seed)
    return PicoModel(config, weights), weights


def random_frames(config: PicoConfig, n_steps: int, seed: int = 0) -> Tensor:
    """Frames `(T, Q)` of random codes (some absent), units and stays."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n_steps, config.n_books)
    codes = torch.randint(0, config.n_codes + 1, shape, generator=generator)
    units = torch.randint(0, config.n_units, (n_steps, len(config.window)), generator=generator)
    stays = torch.randint(0, 16, (n_steps, 1), generator=generator)
    return torch.cat([codes, units, stays], dim=1)


def random_weights(config: PicoConfig, seed: int = 0) -> dict[str, dict[str, Tensor]]:
    """Weights that keep activations near unit size, so that every layer matters."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, dict[str, Tensor]] = {}
    for stem, shapes in expected_shapes(config).items():
        weights[stem] = {key: _draw(key, shape, generator) for key, shape in shapes.items()}
    weights["post"]["sc"] = torch.tensor(1.3)
    weights["post"]["C"][:, -1] = 0.0
    return weights


def _draw(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, generator=generator)
    if key.endswith((".w", ".n", "nf")):
        return 1.0 + 0.1 * drawn
    if key.endswith("bias") or len(shape) < 2:
        return 0.3 * drawn
    if key.startswith(("temb", "wemb", "semb", "cemb", "uemb", "C")):
        return drawn
    # `ups` weights are (in, out, kernel) and each output sees two taps of them.
    fan_in = 2 * shape[0] if key.startswith("ups") else drawn[0].numel()
    return drawn / fan_in**0.5


def no_feed(n_rows: int) -> TextFeed:
    """The text feed of models that take their text whole."""
    empty = torch.zeros(n_rows, 0, dtype=torch.int64)
    return TextFeed(ids=empty, n_ids=empty.sum(1), is_final=torch.ones(n_rows, dtype=torch.bool))


class PlainCache:
    """Attention of a ragged batch: keys and values of each sequence in a list."""

    def __init__(self, n_layers: int, n_sequences: int) -> None:
        self.keys = [[torch.zeros(0)] * n_sequences for _ in range(n_layers)]
        self.values = [[torch.zeros(0)] * n_sequences for _ in range(n_layers)]
        self.lengths = [1] * n_sequences

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, start = [], 0
        for idx, n_rows in enumerate(self.lengths):
            rows = slice(start, start + n_rows)
            keys = self._append(self.keys[layer_idx], idx, k[rows])
            values = self._append(self.values[layer_idx], idx, v[rows])
            mask = torch.ones(n_rows, len(keys), dtype=torch.bool).tril(len(keys) - n_rows)
            heads = torch.nn.functional.scaled_dot_product_attention(
                q[rows].transpose(0, 1),
                keys.transpose(0, 1),
                values.transpose(0, 1),
                attn_mask=mask,
            )
            out.append(heads.transpose(0, 1))
            start += n_rows
        return torch.cat(out)

    @staticmethod
    def _append(store: list[Tensor], idx: int, new: Tensor) -> Tensor:
        store[idx] = new if store[idx].numel() == 0 else torch.cat([store[idx], new])
        return store[idx]


class Take:
    """What a rollout gave for one stream."""

    def __init__(self) -> None:
        self.frames: list[Tensor] = []
        self.advances: list[int] = []
        self.logits: list[list[Tensor]] = []
        self.is_finished = False


def roll_out(model: PicoModel, plans: Sequence[PromptPlan], n_rows: int) -> list[Take]:
    """Decode plans as one batch, each column greedily, for at most `n_rows` rows."""
    cache = PlainCache(model.spec.backbone.n_layers, len(plans))
    cache.lengths = [len(plan.ids) for plan in plans]
    ids = torch.cat([plan.ids for plan in plans])
    positions = torch.cat([torch.arange(n) for n in cache.lengths])
    x = model.embed(ids, torch.full((len(ids),), -1))
    last = torch.tensor(cache.lengths).cumsum(0) - 1
    hidden = model.backbone(x, positions, cache)[last]
    positions = positions[last]
    state = torch.stack([plan.state for plan in plans])
    takes = [Take() for _ in plans]
    feed = no_feed(len(plans))
    cache.lengths = [1] * len(plans)
    for _ in range(n_rows):
        logits = model.heads(hidden)
        for idx, take in enumerate(takes):
            if not take.is_finished:
                take.logits.append([column[idx] for column in logits])
        drawn = [column.argmax(1) for column in model.constrain(state, logits, feed)]
        row = torch.zeros(len(plans), model.spec.n_columns, dtype=torch.int64)
        row[:, list(model.spec.backbone_columns)] = torch.stack(drawn, dim=1)
        step = model.advance(state, row, feed)
        state = step.state
        for idx, take in enumerate(takes):
            if take.is_finished:
                continue
            take.advances.append(int(row[idx, 0]))
            if step.emits[idx]:
                take.frames.append(step.frames[idx])
            take.is_finished = bool(step.is_finished[idx])
        if all(take.is_finished for take in takes):
            break
        positions = positions + 1
        hidden = model.backbone(model.embed(step.rows, state[:, 0]), positions, cache)
    return takes


def decode_chunks(
    model: PicoModel,
    frames: Sequence[Tensor],
    chunks: Sequence[Sequence[int]],
    speeds: Sequence[int] | None = None,
) -> list[Tensor]:
    """Detokenize streams `(T, Q)`, each cut by its own chunk sizes (the last size repeats).

    Streams whose next chunk has the same size share a call. The last chunk is padded with garbage.
    """
    size = model.detokenizer.layout.size
    clocks = [torch.tensor([0, speed]) for speed in speeds or [0] * len(frames)]
    states = [{"context": torch.zeros(size), "clock": clock} for clock in clocks]
    done = [0] * len(frames)
    turn = [0] * len(frames)
    pcm: list[list[Tensor]] = [[] for _ in frames]
    waiting = set(range(len(frames)))
    while waiting:
        sizes = {i: chunks[i][min(turn[i], len(chunks[i]) - 1)] for i in waiting}
        n_frames = min(sizes.values())
        group = sorted(i for i in waiting if sizes[i] == n_frames)
        batch, n_valid, is_last = [], [], []
        for i in group:
            part = frames[i][done[i] : done[i] + n_frames]
            filler = torch.full((n_frames - len(part), part.shape[1]), 3)
            batch.append(torch.cat([part, filler]))
            n_valid.append(len(part))
            is_last.append(done[i] + n_frames >= len(frames[i]))
        decoded = model.decode(
            torch.stack(batch),
            torch.tensor(n_valid),
            {name: torch.stack([states[i][name] for i in group]) for name in states[0]},
            torch.tensor([turn[i] == 0 for i in group]),
            torch.tensor(is_last),
        )
        for place, i in enumerate(group):
            pcm[i].append(decoded.pcm[place, : int(decoded.n_samples[place])])
            states[i] = {name: decoded.state[name][place] for name in decoded.state}
            done[i] += n_valid[place]
            turn[i] += 1
            if is_last[place]:
                waiting.remove(i)
    return [torch.cat(parts) for parts in pcm]
