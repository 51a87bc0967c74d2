"""Batched sampling: every row and column with its own settings, seed and history. Engine thread.

A draw depends on the stream's logits, settings, seed, own history, how many rows it has drawn and
the column: never on its slot, its neighbours or the batch size (`engine.chance`). Which filters run
at all (`Filters`) is decided on the host from the settings of the streams in the batch; a filter
that is off for a row leaves that row as it was.

Order (the runner merges guidance before): repetition penalty, phase mask, the model's `constrain`,
temperature, top-k, top-p, min-p, draw; where an id came that has just been there, another draw
without top-k, top-p and min-p, by random numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.chance import mixed_seed, uniforms
from models.spec import MAX_REPETITION_WINDOW, ModelSpec, SamplingParams

NEVER = float("-inf")
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _PENALTY, _WINDOW = range(6)
_IS_OF_ALL, _REDRAW_WINDOW, _REDRAW_COUNT = range(6, 9)
_N_SETTINGS: Final = 9
_WHOLE_COLUMN = 2**31

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which filters a batch runs; more than its rows need changes nothing but the time it takes.

    Args:
        n_sorted: leading logits that top-k and top-p need; 0: both are off everywhere.
        has_chance: some row is drawn at random.
        has_min_p: some row has a min-p.
        n_recent: rows of history that the repetition penalty needs; 0: it is off everywhere.
        n_redraw: rows of history that decide on second draws; 0: nowhere is one.
        has_top_p_of_all: some row's top-p counts the ids that its top-k leaves out.
    """

    n_sorted: int
    has_chance: bool
    has_min_p: bool
    n_recent: int
    n_redraw: int
    has_top_p_of_all: bool

    def covers(self, other: Filters) -> bool:
        """Whether a batch that needs `other` may run these."""
        return (
            self.n_sorted >= other.n_sorted
            and self.has_chance >= other.has_chance
            and self.has_min_p >= other.has_min_p
            and self.n_recent >= other.n_recent
            and self.n_redraw >= other.n_redraw
            and self.has_top_p_of_all >= other.has_top_p_of_all
        )


ALL_FILTERS: Final = Filters(
    n_sorted=_WHOLE_COLUMN,
    has_chance=True,
    has_min_p=True,
    n_recent=MAX_REPETITION_WINDOW,
    n_redraw=MAX_REPETITION_WINDOW,
    has_top_p_of_all=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What one batch draws with: `settings` (B, K, 9), `uniforms` and `n_drawn` (B,).

    `uniforms` are (B, K), or (B, 2 K) with those of second draws behind.
    """

    slots: Tensor
    phase: Tensor
    settings: Tensor
    uniforms: Tensor
    n_drawn: Tensor
    filters: Filters


class Sampler:
    """Sampling settings, seeds and recent ids of every slot, on the device.

    Like `engine.slot_state`, it has a place more than there are slots, for rows of nobody.
    """

    def __init__(self, spec: ModelSpec, n_slots: int, device: torch.device) -> None:
        n_phases, n_columns = len(spec.phases), spec.n_columns
        n_places = n_slots + 1
        self._spec = spec
        self._device = device
        self._settings = torch.ones(n_places, n_phases, n_columns, _N_SETTINGS, device=device)
        self._seeds = torch.zeros(n_places, dtype=torch.int64, device=device)
        self._n_drawn = torch.zeros(n_places, dtype=torch.int64, device=device)
        self._ring = torch.full(
            (n_places, n_columns, MAX_REPETITION_WINDOW), -1, dtype=torch.int64, device=device
        )
        # Second draws have numbers of their own, as if of more columns.
        self._column_idx = torch.arange(1, 2 * n_columns + 1, device=device)
        self._low = [column.ids[0] for column in spec.columns]
        self._forbidden = [_forbidden_ids(spec, idx, device) for idx in range(n_columns)]
        # Host copies of what decides which filters run.
        self._n = np.zeros((n_places, 3), dtype=np.int64)
        self._has = np.zeros((n_places, 3), dtype=bool)

    @property
    def n_bytes(self) -> int:
        """Of what it holds for each slot."""
        return sum(t.nbytes for t in (self._settings, self._seeds, self._n_drawn, self._ring))

    def open_slot(self, slot: int, seed: int, overrides: Mapping[str, SamplingParams]) -> None:
        """Give `slot` to a stream: its settings, its seed, an empty history."""
        settings = stream_settings(self._spec, overrides)
        needed = filters_of(settings)
        self._n[slot] = (needed.n_sorted, needed.n_recent, needed.n_redraw)
        self._has[slot] = (needed.has_chance, needed.has_min_p, needed.has_top_p_of_all)
        self._settings[slot] = torch.from_numpy(settings).to(self._device, non_blocking=True)
        self._seeds[slot] = mixed_seed(seed)
        self._n_drawn[slot] = 0
        self._ring[slot] = -1

    def take_out(self, slot: int) -> tuple[Tensor, Tensor]:
        """What the stream has drawn so far, on the host: rows, and the ids of the last of them."""
        return self._n_drawn[slot].to("cpu", copy=True), self._ring[slot].to("cpu", copy=True)

    def put_back(self, slot: int, drawn: tuple[Tensor, Tensor]) -> None:
        """Let a stream whose slot was opened again go on from what `take_out` gave."""
        self._n_drawn[slot], self._ring[slot] = (part.to(self._device) for part in drawn)

    def tensors(self) -> dict[str, Tensor]:
        """What draws read and write, by name."""
        return {
            "settings": self._settings,
            "seeds": self._seeds,
            "n_drawn": self._n_drawn,
            "recent ids": self._ring,
        }

    def filters(self, slots: Indices) -> Filters:
        """The filters that the streams in `slots` (B,) need. Host knowledge alone."""
        n_sorted, n_recent, n_redraw = self._n[slots].max(axis=0).tolist()
        has_chance, has_min_p, is_of_all = np.logical_or.reduce(self._has[slots]).tolist()
        return Filters(
            n_sorted=n_sorted,
            has_chance=has_chance,
            has_min_p=has_min_p,
            n_recent=n_recent,
            n_redraw=n_redraw,
            has_top_p_of_all=is_of_all,
        )

    def begin(self, slots: Tensor, phase: Tensor, filters: Filters) -> Draws:
        """Gather what the rows of one batch, in `slots` (B,) and `phase` (B,), draw with."""
        n_drawn = self._n_drawn[slots]
        n_uniforms = len(self._column_idx) // (1 if filters.n_redraw else 2)
        return Draws(
            slots=slots,
            phase=phase,
            settings=self._settings[slots, phase],
            uniforms=uniforms(self._seeds[slots], n_drawn, self._column_idx[:n_uniforms]),
            n_drawn=n_drawn,
            filters=filters,
        )

    def shape(self, logits: Tensor, column_idx: int, draws: Draws) -> Tensor:
        """Apply repetition penalty and phase mask to `logits` (B, V_c) of a column."""
        if draws.filters.n_recent:
            recent = self._recent_ids(column_idx, draws, draws.filters.n_recent, _WINDOW)
            penalty = draws.settings[:, column_idx, _PENALTY]
            logits = penalised(logits, recent, penalty)
        forbidden = self._forbidden[column_idx]
        if forbidden is not None:
            logits = logits.masked_fill(forbidden[draws.phase], NEVER)
        return logits

    def draw(self, logits: Tensor, column_idx: int, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draw one id (B,) from `logits` (B, V_c) of a column.

        Returns:
            The ids, and whether each row was sound (B,): its largest logit is NaN if any is, and
            -inf if no id is left. An unsound row still gets some legal id.
        """
        largest, likeliest = logits.max(dim=-1)
        is_sound = largest.isfinite()
        if not draws.filters.has_chance:
            return likeliest + self._low[column_idx], is_sound
        settings = draws.settings[:, column_idx]
        temperature = settings[:, _TEMPERATURE]
        is_greedy = temperature == 0
        scaled = logits / temperature.masked_fill(is_greedy, 1.0).unsqueeze(1)
        kept = scaled
        if draws.filters.n_sorted:
            n_sorted = min(draws.filters.n_sorted, logits.shape[1])
            is_of_all = settings[:, _IS_OF_ALL] if draws.filters.has_top_p_of_all else None
            top_k, top_p = settings[:, _TOP_K], settings[:, _TOP_P]
            kept = keep_top(kept, top_k, top_p, n_sorted, is_of_all)
        if draws.filters.has_min_p:
            kept = keep_min_p(kept, settings[:, _MIN_P])
        drawn = pick(kept, draws.uniforms[:, column_idx])
        if draws.filters.n_redraw:
            drawn = self._redrawn(drawn, scaled, column_idx, draws)
        return torch.where(is_greedy, likeliest, drawn) + self._low[column_idx], is_sound

    def commit(self, draws: Draws, slots: Tensor, ids: Tensor, is_drawn: Tensor) -> None:
        """Take the drawn rows `ids` (B, K) into the history of `slots`, where `is_drawn` (B, K)."""
        if draws.filters.n_recent or draws.filters.n_redraw:
            place = draws.n_drawn % MAX_REPETITION_WINDOW
            self._ring[slots, :, place] = ids.masked_fill(~is_drawn, -1)
        self._n_drawn[slots] = draws.n_drawn + 1

    def _redrawn(self, drawn: Tensor, logits: Tensor, column_idx: int, draws: Draws) -> Tensor:
        """`drawn` (B,), where it is not too often in its window; else another, of all `logits`.

        Source: Chen et al. 2024, VALL-E 2, algorithm 1.
        """
        recent = self._recent_ids(column_idx, draws, draws.filters.n_redraw, _REDRAW_WINDOW)
        n_times = (recent == drawn.unsqueeze(1)).sum(dim=1)
        is_worn = n_times >= draws.settings[:, column_idx, _REDRAW_COUNT]
        n_columns = len(self._column_idx) // 2
        return torch.where(is_worn, pick(logits, draws.uniforms[:, n_columns + column_idx]), drawn)

    def _recent_ids(self, column_idx: int, draws: Draws, n_rows: int, window: int) -> Tensor:
        """Ids `(B, n_rows)` as logit indices, -1 beyond each row's window, which is a setting."""
        age = torch.arange(n_rows, device=self._device)
        place = (draws.n_drawn.unsqueeze(1) - 1 - age) % MAX_REPETITION_WINDOW
        ids = self._ring[draws.slots.unsqueeze(1), column_idx, place]
        in_window = age < draws.settings[:, column_idx, window].unsqueeze(1)
        return torch.where(in_window & (ids >= 0), ids - self._low[column_idx], -1)


def stream_settings(
    spec: ModelSpec, overrides: Mapping[str, SamplingParams]
) -> npt.NDArray[np.float32]:
    """Settings `(P, K, 9)` of a stream: the spec's defaults, and `overrides` over them.

    Source: `models.base.PromptPlan.sampling` says what the names mean.
    """
    settings = np.ones((len(spec.phases), spec.n_columns, _N_SETTINGS), dtype=np.float32)
    for phase_idx, phase in enumerate(spec.phases):
        for column_idx, column in enumerate(phase.columns):
            name = spec.columns[column_idx].name
            everywhere = overrides.get(name, column.sampling)
            params = overrides.get(f"{phase.name}.{name}", everywhere)
            is_chosen = column.fill in ("sampled", "depth")
            settings[phase_idx, column_idx] = (
                params.temperature if is_chosen else 0.0,
                params.top_k,
                params.top_p,
                params.min_p,
                params.repetition_penalty if is_chosen and params.repetition_window else 1.0,
                params.repetition_window,
                params.is_top_p_of_all,
                params.redraw_window,
                params.redraw_count,
            )
    return settings


def filters_of(settings: npt.NDArray[np.float32]) -> Filters:
    """The filters that a stream of these settings `(P, K, 9)` needs in any phase and column."""
    is_random = settings[..., _TEMPERATURE] > 0
    by_rank = is_random & ((settings[..., _TOP_K] > 0) | (settings[..., _TOP_P] < 1))
    n_sorted = np.where(settings[..., _TOP_K] > 0, settings[..., _TOP_K], _WHOLE_COLUMN)
    has_penalty = settings[..., _PENALTY] != 1
    is_of_all = by_rank & (settings[..., _IS_OF_ALL] > 0)
    return Filters(
        n_sorted=int(np.max(n_sorted, initial=0, where=by_rank)),
        has_chance=bool(is_random.any()),
        has_min_p=bool((is_random & (settings[..., _MIN_P] > 0)).any()),
        n_recent=int(np.max(settings[..., _WINDOW], initial=0, where=has_penalty)),
        n_redraw=int(np.max(settings[..., _REDRAW_WINDOW], initial=0, where=is_random)),
        has_top_p_of_all=bool(is_of_all.any()),
    )


def penalised(logits: Tensor, recent: Tensor, penalty: Tensor) -> Tensor:
    """Make recent ids less likely: positive logits are divided, negative ones multiplied.

    Source: Keskar et al. 2019 (CTRL), section 4.1. `recent` (B, W) holds logit indices or -1;
    `penalty` is (B,); a repeated id counts once.
    """
    n_ids = logits.shape[1]
    # The extra column swallows entries that are no id of this column.
    padded = torch.nn.functional.pad(logits, (0, 1))
    at = recent.masked_fill((recent < 0) | (recent >= n_ids), n_ids)
    old, penalty = padded.gather(1, at), penalty.unsqueeze(1)
    padded.scatter_(1, at, torch.where(old > 0, old / penalty, old * penalty))
    return padded[:, :n_ids]


def keep_top(
    logits: Tensor, top_k: Tensor, top_p: Tensor, n_sorted: int, is_of_all: Tensor | None = None
) -> Tensor:
    """Keep the `top_k` (B,) likeliest ids, then of those the fewest that hold `top_p` (B,).

    Both work by the value of the last kept logit, so ids that tie with it stay. 0 and 1 are off.
    `n_sorted` must reach the largest `top_k`, or the whole column where `top_p` acts alone.
    `top_p` is a share of what `top_k` keeps; of all ids where `is_of_all` (B,) is not 0.
    """
    values = logits.topk(n_sorted, dim=-1).values
    rank = (top_k.long() - 1).clamp(0, n_sorted - 1).unsqueeze(1)
    kth = values.gather(1, rank).masked_fill((top_k == 0).unsqueeze(1), NEVER)
    kept = values.masked_fill(values < kth, NEVER)
    upto = kept.softmax(dim=1).cumsum(dim=1)
    # The first id at which the mass reaches its share is the last one kept.
    target = top_p.unsqueeze(1) * upto[:, -1:]
    if is_of_all is not None:
        share = (kept.logsumexp(dim=1) - logits.logsumexp(dim=1)).exp()
        target = target / torch.where(is_of_all > 0, share, 1.0).unsqueeze(1)
    last = torch.searchsorted(upto, target).clamp(max=n_sorted - 1)
    nth = values.gather(1, last).masked_fill((top_p == 1).unsqueeze(1), NEVER)
    return logits.masked_fill(logits < torch.maximum(kth, nth), NEVER)


def keep_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Keep ids at least `min_p` (B,) times as likely as the likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(1)
    return logits.masked_fill(logits < least, NEVER)


def pick(logits: Tensor, uniform: Tensor) -> Tensor:
    """Index (B,) drawn from softmax of `logits` (B, V) by inverting its distribution function.

    An index with no probability is never drawn: the target lies under the total, and the function
    does not rise there. A row without any finite logit gives index 0.
    """
    upto = logits.softmax(dim=-1).cumsum(dim=-1)
    total = upto[:, -1]
    # A uniform near 1 could round up to the total itself, which no index lies above.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(upto, target.unsqueeze(1), right=True).squeeze(1)
    return index.clamp(max=logits.shape[1] - 1)


def _forbidden_ids(spec: ModelSpec, column_idx: int, device: torch.device) -> Tensor | None:
    """Mask `(P, V_c)` of the ids that a phase forbids in a column; None where none does."""
    column = spec.columns[column_idx]
    forbidden = torch.zeros(len(spec.phases), column.n_ids, dtype=torch.bool)
    for phase_idx, phase in enumerate(spec.phases):
        allowed = phase.columns[column_idx].allowed
        if not allowed:
            continue
        forbidden[phase_idx] = True
        for low, high in allowed:
            forbidden[phase_idx, low - column.ids[0] : high - column.ids[0]] = False
    return forbidden.to(device) if bool(forbidden.any()) else None
