"""Repetition-aware sampling: which draws are put back, and what is drawn in their place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.chance import uniforms
from engine.sampler import Sampler, pick
from models.spec import SamplingParams
from models.toy.delayed import SPEC

COLUMN = 1
NAME = SPEC.columns[COLUMN].name
N_IDS = SPEC.columns[COLUMN].n_ids
LOW = SPEC.columns[COLUMN].ids[0]
FIRST, OTHER = 3, 7
STRICT = SamplingParams(top_k=1, redraw_window=4)
"""The likeliest alone may be drawn, unless it has just been there."""


def of_all(params: SamplingParams) -> dict[str, SamplingParams]:
    """The same for every column: no other one needs a history."""
    return dict.fromkeys((column.name for column in SPEC.columns), params)


def sampler_of(*streams: SamplingParams) -> Sampler:
    sampler = Sampler(SPEC, 8, torch.device("cpu"))
    for slot, params in enumerate(streams):
        sampler.open_slot(slot, 10 + slot, of_all(params))
    return sampler


def peaked(id_: int, height: float = 1.0) -> Tensor:
    """Logits `(n_ids,)` of one id above all others."""
    return torch.zeros(N_IDS).index_fill(0, torch.tensor([id_]), height)


def draw(sampler: Sampler, logits: Tensor, *, feeds: int | None = None) -> list[int]:
    """Ids that the first slots draw from `logits` (B, n_ids), as indices; then each is fed."""
    slots = torch.arange(len(logits))
    phase = torch.zeros_like(slots)
    draws = sampler.begin(slots, phase, sampler.filters(np.arange(len(logits))))
    ids, is_sound = sampler.draw(sampler.shape(logits, COLUMN, draws), COLUMN, draws)
    assert bool(is_sound.all())
    taken = ids if feeds is None else torch.full_like(ids, LOW + feeds)
    rows = taken.unsqueeze(1).expand(-1, SPEC.n_columns)
    sampler.commit(draws, slots, rows, torch.ones_like(rows, dtype=torch.bool))
    return (ids - LOW).tolist()


def second_draws(seed_slot: int, logits: Tensor, n_rows: int) -> list[int]:
    """What the second random numbers of a slot give from all of `logits`."""
    sampler = sampler_of(*[STRICT] * (seed_slot + 1))
    seeds = sampler.tensors()["seeds"][seed_slot].expand(n_rows)
    numbers = uniforms(seeds, torch.arange(n_rows), torch.tensor([SPEC.n_columns + COLUMN + 1]))
    return pick(logits.expand(n_rows, -1), numbers[:, 0]).tolist()


def test_an_id_that_has_just_been_there_is_drawn_again_from_all_ids():
    sampler = sampler_of(STRICT)
    logits = peaked(FIRST)
    got = [draw(sampler, logits.unsqueeze(0), feeds=FIRST)[0] for _ in range(40)]
    assert got[0] == FIRST, "nothing was there before"
    assert got[1:] == second_draws(0, logits, 40)[1:]
    assert len(set(got)) > 10, "top-k does not hold for second draws"


def test_the_window_ends_and_the_count_is_held():
    twice = SamplingParams(top_k=1, redraw_window=4, redraw_count=2)
    sampler = sampler_of(STRICT, twice)
    logits = peaked(FIRST).expand(2, -1)
    draw(sampler, logits, feeds=FIRST)
    for age in range(1, 7):
        once, often = draw(sampler, logits, feeds=OTHER)
        again = second_draws(0, peaked(FIRST), age + 1)[age]
        assert once == (again if age <= 4 else FIRST), age
        assert often == FIRST, "once is not twice"
    draw(sampler, logits, feeds=FIRST)
    draw(sampler, logits, feeds=FIRST)
    assert draw(sampler, logits)[1] == second_draws(1, peaked(FIRST), 10)[9]


def test_a_greedy_row_takes_the_likeliest_always():
    sampler = sampler_of(SamplingParams(temperature=0.0, redraw_window=4), STRICT)
    logits = peaked(FIRST).expand(2, -1)
    assert [draw(sampler, logits, feeds=FIRST)[0] for _ in range(6)] == [FIRST] * 6


def test_what_the_model_forbids_is_never_drawn_again():
    sampler = sampler_of(STRICT)
    logits = torch.full((1, N_IDS), -torch.inf)
    logits[0, [FIRST, OTHER]] = torch.tensor([1.0, 0.0])
    got = {draw(sampler, logits, feeds=FIRST)[0] for _ in range(40)}
    assert got == {FIRST, OTHER}


def test_a_penalty_counts_beside_it_within_its_own_window():
    """The id was penalised until another is likelier, which has not been there."""
    both = SamplingParams(top_k=1, redraw_window=1, repetition_penalty=4.0, repetition_window=8)
    sampler = sampler_of(both)
    logits = peaked(FIRST, 2.0)
    logits[OTHER] = 1.0
    assert draw(sampler, logits.unsqueeze(0)) == [FIRST]
    assert draw(sampler, logits.unsqueeze(0)) == [OTHER]


def test_a_stream_that_comes_back_remembers_what_was_there():
    sampler, other = sampler_of(STRICT), sampler_of(SamplingParams(), STRICT)
    logits = peaked(FIRST).unsqueeze(0)
    draw(sampler, logits, feeds=FIRST)
    kept = sampler.take_out(0)
    expected = draw(sampler, logits)
    other.open_slot(0, 10, of_all(STRICT))
    other.put_back(0, kept)
    assert draw(other, logits) == expected != [FIRST]


def test_a_history_is_kept_for_those_that_need_one():
    for params, n_rows in ((SamplingParams(), 0), (STRICT, 4)):
        needed = sampler_of(params).filters(np.array([0]))
        assert (needed.n_redraw, needed.n_recent) == (n_rows, 0)


def test_the_shares_are_those_of_the_published_algorithm():
    """With the published settings; by VALL-E 2's algorithm the shares can be written down."""
    n_streams = 4000
    params = SamplingParams(top_k=3, top_p=0.5, is_top_p_of_all=True, redraw_window=10)
    sampler = Sampler(SPEC, n_streams, torch.device("cpu"))
    for slot in range(n_streams):
        sampler.open_slot(slot, slot, {NAME: params})
    logits = torch.full((N_IDS,), -torch.inf)
    shares = torch.tensor([0.4, 0.2, 0.15, 0.14, 0.11])
    logits[:5] = shares.log()
    draw(sampler, logits.expand(n_streams, -1), feeds=0)
    got = torch.bincount(torch.tensor(draw(sampler, logits.expand(n_streams, -1))), minlength=5)
    # Two ids hold half; the first of them has just been there, and all have its share then.
    expected = 0.4 / 0.6 * shares + torch.tensor([0.0, 0.2 / 0.6, 0.0, 0.0, 0.0])
    # Five standard errors of the widest share.
    torch.testing.assert_close(
        got / n_streams, expected, atol=5 * (0.25 / n_streams) ** 0.5, rtol=0
    )
